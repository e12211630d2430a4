"""All-reduce of Tutti over shared memory beside PyTorch's Gloo and OpenMPI, in turns, in one sitting.

    .venv/bin/python bench/comm_vs_peers.py [--ranks 2] [--rounds 5] [--sizes 1kb..64mb] [--out FILE]

In each round every side runs once, all sizes, in an order that turns; each measures alike (after a barrier, calls back
to back, the slowest rank, the median) and checks its sums. Printed by size: the median microseconds of each side and
the median over the rounds of the ratio of the peer's time to ours, for buffers in shared memory and for ordinary ones;
then the share of the memory's limit that our largest all-reduce attains.

OpenMPI takes part where mpicc and mpirun are there. With no more ranks than cores it binds each to its own, as the
other sides do; with more, its waiting ranks yield. --mpi-yield makes them yield always.
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import sys
import tempfile

from runs import ROOT, run

PEERS = ROOT / "bench" / "peers"


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", default="1kb..64mb", help="as of tutti bench comm")
    parser.add_argument("--seconds", type=float, default=0.3, help="of timed calls for each size and side")
    parser.add_argument("--mpi-yield", action="store_true")
    parser.add_argument("--out", type=pathlib.Path, help="also write the result here as JSON")
    return parser.parse_args()


class Bench:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.sizes, self.shares = [], []
        self.sides = {"tutti": self.tutti, "gloo": self.gloo}
        if shutil.which("mpicc") and shutil.which("mpirun"):
            run(["mpicc", "-O2", PEERS / "mpi_all_reduce.c", "-o", folder / "mpi"])
            self.sides["openmpi"] = self.openmpi
        else:
            print("no OpenMPI here: apt-get install openmpi-bin libopenmpi-dev", file=sys.stderr)

    def tutti(self):
        binary = os.environ.get("TUTTI_BIN", ROOT / "build" / "release" / "bin")
        out = json.loads(run([f"{binary}/tutti", "bench", "comm", "--ranks", self.options.ranks, "--json",
                              "--transports", "shm", "--operations", "all_reduce", "--sizes", self.options.sizes,
                              "--seconds", self.options.seconds]))
        self.shares.append(out["memory"]["all_reduce_share"])
        found = {table["buffers"]: {point["bytes"]: point["seconds"] for point in table["points"]}
                 for table in out["tables"]}
        self.sizes = list(found["shared"])
        return found

    def gloo(self):
        sizes = ",".join(map(str, self.sizes))
        return self.peer([sys.executable, PEERS / "peer_all_reduce.py", "--ranks", self.options.ranks,
                          "--sizes", sizes, "--seconds", self.options.seconds])

    def openmpi(self):
        crowded = self.options.ranks > len(os.sched_getaffinity(0))
        where = ["--oversubscribe"] if crowded else ["--bind-to", "core"]
        idle = ["--mca", "mpi_yield_when_idle", "1"] if crowded or self.options.mpi_yield else []
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        return self.peer(["mpirun", *root, *where, *idle, "-np", self.options.ranks, self.folder / "mpi",
                          self.options.seconds, *self.sizes])

    @staticmethod
    def peer(command):
        return {int(size): seconds for size, seconds in json.loads(run(command)).items()}


def measure(bench, rounds):
    """[{side: {bytes: seconds}}] of each round; ours twice, by kind of buffer."""
    found = []
    bench.sizes or bench.tutti()  # the sizes, and warm files
    bench.shares.clear()
    for number in range(rounds):
        names = list(bench.sides)
        turn = number % len(names)
        done = {name: bench.sides[name]() for name in names[turn:] + names[:turn]}
        ours = done.pop("tutti")
        found.append({"shared": ours["shared"], "ordinary": ours["ordinary"], **done})
        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
    return found


def rows_of(rounds, sizes, peers):
    for size in sizes:
        row = {"bytes": size}
        for side in rounds[0]:
            row[side] = statistics.median(times[side][size] for times in rounds)
        for peer in peers:
            for ours in ("shared", "ordinary"):
                ratios = [times[peer][size] / times[ours][size] for times in rounds]
                row[f"{peer} / {ours}"] = [statistics.median(ratios), min(ratios), max(ratios)]
        yield row


def main():
    options = parse()
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(options, pathlib.Path(name))
        rounds = measure(bench, options.rounds)
    peers = [side for side in bench.sides if side != "tutti"]
    rows = list(rows_of(rounds, bench.sizes, peers))
    print(f"{options.ranks} ranks on {len(os.sched_getaffinity(0))} cores, {options.rounds} rounds; "
          f"load {os.getloadavg()[0]:.1f}; microseconds, and ratios as median (least to most)")
    for row in rows:
        times = "  ".join(f"{side} {1e6 * row[side]:.1f}" for side in ("shared", "ordinary", *peers))
        ratios = "  ".join(f"{key} {value[0]:.2f}x ({value[1]:.2f} to {value[2]:.2f})"
                           for key, value in row.items() if isinstance(value, list))
        print(f"{row['bytes']:9}  {times}   {ratios}")
    share = statistics.median(bench.shares)
    print(f"share of the memory's limit at {rows[-1]['bytes']} bytes: {share:.2f} "
          f"({min(bench.shares):.2f} to {max(bench.shares):.2f})")
    if options.out:
        result = {"ranks": options.ranks, "rounds": options.rounds, "rows": rows, "memory_share": share}
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
