"""Training of 4 workers on 2 "hosts" (network namespaces of this machine) with a slow wire between them.

    sudo .venv/bin/python bench/links.py [--rate 100e6] [--delay 0.01] [--steps 40] [--loss-steps 300] [--cases all]

Both sides train the same model from the same weights on the same samples in the same order (recipes/peer.yaml,
bench/peers/peer_train.py): Tutti with `tutti train --hosts 2` and `tutti join`, PyTorch's DistributedDataParallel over
Gloo with its own communication hooks. Printed for each case: tokens/s over the steps after the first --skip (all their
seconds, so that a step that waits for the wire counts), the share of the throughput without a wire (all workers on one
host just before; medians of --pairs) and bytes that a host sent a step. The delay is one way. DiLoCo takes --steps or, if they are fewer, two of its
rounds. Losses of cases that compute the same sums must be equal to the bit; the script fails if they are not. The loss
in the table is the mean of the last tenth of --loss-steps steps, run on one host: no wire changes a number.
"""
import argparse
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile

from runs import ROOT, read_records, run

sys.path.insert(0, str(ROOT / "tools"))
from wire import ADDRESSES, Wire  # noqa: E402

PEER = ROOT / "bench" / "peers" / "peer_train.py"
WORKERS, BATCH, MICRO, SEQUENCE = 4, 8, 2, 128
LOSSY = {"reproducible": "off"}
ROUND = 50  # steps between means of islands
TUTTI = {  # case: fields of the recipe
    "one host": {},
    "flat": {"parallel.transport": "tcp"},
    "hierarchical": {},
    "encrypted": {"parallel.encrypt": "on"},
    "bf16": {"parallel.compress": "bf16", **LOSSY},
    "int8": {"parallel.compress": "int8", **LOSSY},
    "powersgd": {"parallel.compress": "powersgd", "parallel.compress_after": 10, **LOSSY},
    "topk": {"parallel.compress": "topk", "parallel.compress_after": 10, **LOSSY},
    "fp16": {"parallel.compress": "fp16", **LOSSY},
    "sign": {"parallel.compress": "sign", "parallel.compress_after": 10, **LOSSY},
    "diloco": {"parallel.islands": 2, "parallel.local_steps": ROUND},
    "streaming": {"parallel.islands": 2, "parallel.local_steps": ROUND, "parallel.fragments": 2,
                  "parallel.overlap_steps": 5},
    "diloco bf16": {"parallel.islands": 2, "parallel.local_steps": ROUND, "optimizer.outer_type": "bf16"},
    "diloco int4": {"parallel.islands": 2, "parallel.local_steps": ROUND, "optimizer.outer_type": "int4"},
}
EXACT = ["one host", "flat", "hierarchical", "encrypted"]
PEERS = {"ddp": [], "ddp fp16": ["--hook", "fp16"], "ddp powersgd": ["--hook", "powersgd"]}


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=100e6, help="bits a second")
    parser.add_argument("--delay", type=float, default=0.01, help="seconds, one way")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--skip", type=int, default=5, help="first steps left out of the timing; of DiLoCo a round")
    parser.add_argument("--pairs", type=int, default=1, help="how often each case is run beside one host")
    parser.add_argument("--loss-steps", type=int, default=300, help="of the runs that the loss is taken from; 0: none")
    parser.add_argument("--cases", default="all", help=f"of {', '.join([*TUTTI, *PEERS])}")
    parser.add_argument("--set", action="append", default=[], help="further fields of the recipe, of all cases")
    parser.add_argument("--out", type=pathlib.Path, help="also write the result here as JSON")
    return parser.parse_args()


class Bench:
    def __init__(self, options, folder, wire):
        self.options, self.folder, self.wire, self.runs = options, folder, wire, 0
        self.binary = os.environ.get("TUTTI_BIN", ROOT / "build" / "release" / "bin")
        self.text = folder / "plays.txt"
        plays = sorted((ROOT / "corpus" / "shakespeare" / "train").glob("*.txt"))
        if not plays:
            run([sys.executable, ROOT / "tools" / "corpus.py"])
            plays = sorted((ROOT / "corpus" / "shakespeare" / "train").glob("*.txt"))
        self.text.write_bytes(b"".join(play.read_bytes() for play in plays))
        self.start = folder / "start" / "model.safetensors"
        run([sys.executable, PEER, *self.peer_words(12), "--save-init", self.start])

    def peer_words(self, steps):
        return ["--data", self.text, "--threads", 1, "--micro-batch", MICRO, "--global-batch", BATCH, "--seq", SEQUENCE,
                "--sgemm", 512, "--steps", steps]

    def finish(self, processes, name):
        for process in processes:
            if process.wait() != 0:
                for other in processes:
                    other.send_signal(signal.SIGTERM)
                sys.exit(f"{name}: {' '.join(map(str, process.args))} ended with {process.returncode}")

    def tutti(self, name, steps, here):
        self.runs += 1
        out = self.folder / f"{name.replace(' ', '-')}-{self.runs}"
        fields = {"model.from": self.start.parent, "data.train": self.text, "batch.micro": MICRO,
                  "duration": f"{steps} steps", "parallel.workers": WORKERS, "parallel.threads": 1,
                  **TUTTI[name]}
        words = [f"{field}={value}" for field, value in fields.items()] + self.options.set
        train = [f"{self.binary}/tutti", "train", ROOT / "recipes" / "peer.yaml", "--json", "--out", out,
                 *(part for word in words for part in ("--set", word))]
        if here:
            run(train)
        else:
            processes = [
                self.wire.start(0, [*train, "--hosts", 2, "--address", ADDRESSES[0]], stdout=subprocess.DEVNULL),
                self.wire.start(1, [f"{self.binary}/tutti", "join", out, "--host", 1, "--address", ADDRESSES[1]],
                                stderr=subprocess.DEVNULL)]
            self.finish(processes, name)
        records = read_records(out)
        return [record["step_seconds"] for record in records], [record["loss"] for record in records]

    def peer(self, name, steps, here):
        result = self.folder / "peer.json"
        result.unlink(missing_ok=True)
        common = {**os.environ, "PEER_WORKER": "1", "PEER_RESULT": str(result), "WORLD_SIZE": str(WORKERS),
                  "MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": "29400", "GLOO_SOCKET_IFNAME": "wire",
                  "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        command = [sys.executable, PEER, *self.peer_words(steps), "--procs", WORKERS,
                   "--skip", self.options.skip, "--init", self.start, *PEERS[name]]
        processes = [self.wire.start(0 if here else rank // 2, command, env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank % 2)},
                                     stdout=subprocess.DEVNULL) for rank in range(WORKERS)]
        self.finish(processes, name)
        found = json.loads(result.read_text())
        return found["step_seconds"], found["losses"]

    def loss(self, name):
        steps = self.options.loss_steps
        _, losses = (self.tutti if name in TUTTI else self.peer)(name, steps, True)
        return statistics.fmean(losses[-max(1, len(losses) // 10):])

    def measure(self, name):
        train = self.tutti if name in TUTTI else self.peer
        rounds = "parallel.local_steps" in TUTTI.get(name, {})
        steps = max(2, -(-self.options.steps // ROUND)) * ROUND if rounds else self.options.steps
        before = self.wire.sent()
        seconds, losses = train(name, steps, name == "one host")
        sent = self.wire.sent() - before
        steady = seconds[ROUND if rounds else self.options.skip:]
        return {"case": name, "tokens_per_second": BATCH * SEQUENCE * len(steady) / sum(steady),
                "bytes_per_step": sent / len(losses), "losses": losses}

    def beside_one_host(self, name):
        pairs = [(self.measure("one host"), self.measure(name)) for _ in range(self.options.pairs)]
        row = dict(pairs[0][1])
        row["tokens_per_second"] = statistics.median(case["tokens_per_second"] for _, case in pairs)
        row["share"] = statistics.median(case["tokens_per_second"] / here["tokens_per_second"] for here, case in pairs)
        row["one_host"] = pairs[0][0]["losses"]
        row["loss"] = self.loss(name) if self.options.loss_steps and name not in EXACT[1:] else None
        return row


def main():
    options = parse()
    cases = [*TUTTI, *PEERS] if options.cases == "all" else [case.strip() for case in options.cases.split(",")]
    unknown = set(cases) - set(TUTTI) - set(PEERS)
    if unknown:
        sys.exit(f"--cases: no such case: {', '.join(sorted(unknown))}")
    rows = []
    with tempfile.TemporaryDirectory() as folder, Wire(options.rate, options.delay) as wire:
        print(f"{options.rate / 1e6:.0f} Mbit/s, {options.delay * 1e3:.0f} ms one way ({wire.kind}), {options.steps} "
              f"steps of {BATCH * SEQUENCE} tokens, {WORKERS} workers on 2 hosts", flush=True)
        bench = Bench(options, pathlib.Path(folder), wire)
        for case in cases:
            row = bench.beside_one_host(case)
            rows.append(row)
            loss = f"  loss {row['loss']:.4f}" if row["loss"] else ""
            print(f"{case:14} {row['tokens_per_second']:7.0f} tokens/s  {row['share']:5.3f} of one host  "
                  f"{row['bytes_per_step'] / 1e6:7.2f} MB a step and host{loss}", flush=True)
    exact = [row for row in rows if row["case"] in EXACT]
    equal = all(row["losses"] == row["one_host"] for row in exact)
    if exact:
        print(f"losses of {', '.join(row['case'] for row in exact)}: {'equal to the bit' if equal else 'DIFFER'}")
    if options.out:
        options.out.write_text(json.dumps({"rate": options.rate, "delay": options.delay, "rows": rows}) + "\n")
    if not equal:
        sys.exit(1)


if __name__ == "__main__":
    main()
