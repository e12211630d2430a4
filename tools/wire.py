"""Two "hosts" of this machine: network namespaces with one wire between them, of a rate and a delay.

The wire is a veth pair, with tc's netem to slow it down where the kernel has that; else slow_link.cc. Needs root."""
import contextlib
import os
import pathlib
import subprocess
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ADDRESSES = ["10.77.0.1", "10.77.0.2"]


def call(*command, quiet=False):
    try:
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    except FileNotFoundError:
        raise RuntimeError(f"there is no {command[0]}: install iproute2") from None
    if done.returncode != 0 and not quiet:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return done.returncode == 0


class Wire:
    """`rate` in bits a second (None: as fast as it goes), `delay` in seconds one way. As a context manager; `names`
    are the namespaces. RuntimeError where there can be none."""

    def __init__(self, rate=None, delay=0):
        self.rate, self.delay, self.link = rate, delay, None
        self.names = [f"tutti-{os.getpid()}-{host}" for host in "ab"]

    def __enter__(self):
        if os.geteuid() != 0:
            raise RuntimeError("network namespaces need root")
        try:
            for name in self.names:
                call("ip", "netns", "add", name)
                call("ip", "-n", name, "link", "set", "lo", "up")
            self.kind = "netem" if self.veth() else "slow_link"
            if self.kind == "slow_link":
                self.tun()
            for name, address in zip(self.names, ADDRESSES):
                call("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "wire")
                call("ip", "-n", name, "link", "set", "wire", "mtu", 9000, "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def veth(self):
        a, b = self.names
        call("ip", "link", "add", "wire", "netns", a, "type", "veth", "peer", "name", "wire", "netns", b)
        if self.rate is None:
            return True
        milliseconds = f"{self.delay * 1e3}ms"
        if all(call("tc", "-n", name, "qdisc", "add", "dev", "wire", "root", "netem", "delay", milliseconds, "rate",
                    f"{self.rate:.0f}bit", "limit", 10000, quiet=True) for name in self.names):
            return True
        call("ip", "-n", a, "link", "del", "wire")
        return False

    def tun(self):
        self.folder = tempfile.TemporaryDirectory()
        program = pathlib.Path(self.folder.name) / "slow_link"
        call("c++", "-std=c++20", "-O2", "-pthread", HERE / "slow_link.cc", "-o", program)
        self.link = subprocess.Popen([program, *self.names, str(self.rate), str(self.delay)],
                                     stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if self.link.stdout.readline().strip() != b"ready":
            raise RuntimeError("slow_link did not start")

    def start(self, host, command, **more):
        return subprocess.Popen(["ip", "netns", "exec", self.names[host], *(str(word) for word in command)], **more)

    def sent(self):
        """Bytes that the first host has sent so far."""
        done = subprocess.run(["ip", "netns", "exec", self.names[0], "cat", "/sys/class/net/wire/statistics/tx_bytes"],
                              capture_output=True, text=True)
        return int(done.stdout)

    def __exit__(self, *_):
        if self.link:
            self.link.stdin.close()
            self.link.wait()
        for name in self.names:
            with contextlib.suppress(Exception):
                call("ip", "netns", "del", name, quiet=True)
