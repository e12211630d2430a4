"""Tutti beside plain PyTorch (over gloo) on the same training run, both in one sitting.

    .venv/bin/python bench/train_vs_pytorch.py [--peer ddp] [--pairs 5] [--steps 60] [--compile]
                                               [--out FILE]

--peer says which layout: ddp (data parallel), fsdp (FSDP2, fully_shard of each block, beside ZeRO 3)
or tensor (parallelize_module with sequence-parallel norms and vocabulary-parallel embedding, head
and loss, beside tensor: 2; both run two micro-batches).

Both start from the same weights, see the same samples in the same order and use two processes with
one thread each. A pair is one run of each, taken in turns (who goes first alternates), so that what
else the machine does falls on both. Printed: tokens/s of both over the steady steps (the median step
after the first --skip), the ratio of each pair and its median, and the worst difference of the loss
of a step. Exits with 1 when the losses differ by more than --tolerance.
"""
import argparse
import json
import pathlib
import statistics
import sys
import tempfile

from runs import ROOT, run, train

PEER = ROOT / "bench" / "peers" / "peer_train.py"
PROCESSES, THREADS = 2, 1
LOSS_STEPS = 50
TOKENS = 8 * 128
OURS = {"ddp": {}, "fsdp": {"parallel.engine": "sharded", "parallel.zero": 3},
        "tensor": {"parallel.engine": "mesh", "parallel.tensor": 2}}


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", choices=sorted(OURS), default="ddp")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--skip", type=int, default=10, help="first steps left out of the timing")
    parser.add_argument("--compile", action="store_true", help="the peer uses torch.compile")
    parser.add_argument("--precision", default="fp32", choices=["fp32", "fp32-fast"],
                        help="of Tutti; the peer computes in fp32")
    parser.add_argument("--tolerance", type=float, default=2e-3)
    parser.add_argument("--set", action="append", default=[], help="further fields of the recipe")
    parser.add_argument("--peer-option", action="append", default=[],
                        help="further options of the peer, like --peer-option=--hidden=512")
    parser.add_argument("--out", type=pathlib.Path, help="also write the result here as JSON")
    return parser.parse_args()


def text_file(folder):
    """One file of plays: neither side then has to agree on what lies between two documents."""
    plays = sorted((ROOT / "corpus" / "shakespeare" / "train").glob("*.txt"))
    if not plays:
        run([sys.executable, ROOT / "tools" / "corpus.py"])
        plays = sorted((ROOT / "corpus" / "shakespeare" / "train").glob("*.txt"))
    path = folder / "plays.txt"
    path.write_bytes(b"".join(play.read_bytes() for play in plays))
    return path


class Bench:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.text = text_file(folder)
        self.start = folder / "start" / "model.safetensors"
        self.count = 0
        self.peer(["--steps", "12", "--save-init", self.start])

    def peer(self, more):
        out = self.folder / "peer.json"
        run([sys.executable, PEER, "--data", self.text, "--procs", PROCESSES, "--threads", THREADS,
             "--micro-batch", 4, "--global-batch", 8, "--seq", 128, "--sgemm", 512, "--out", out,
             "--spread", self.options.peer, *self.options.peer_option, *more])
        return json.loads(out.read_text())

    def measure_peer(self):
        options = self.options
        result = self.peer(["--steps", options.steps, "--skip", options.skip, "--init", self.start,
                            *(["--compile"] if options.compile else [])])
        return result["tokens_per_s"], result["losses"]

    def measure_tutti(self):
        options = self.options
        self.count += 1
        out = self.folder / f"run{self.count}"
        sets = {"model.from": self.start.parent, "data.train": self.text,
                "duration": f"{options.steps} steps", "precision": options.precision,
                "parallel.workers": PROCESSES, "parallel.threads": THREADS,
                **OURS[options.peer]}
        words = [f"{name}={value}" for name, value in sets.items()] + options.set
        seconds, losses = train(ROOT / "recipes" / "peer.yaml", words, out, options.skip)
        return TOKENS / seconds, losses


def main():
    options = parse()
    rows, worst = [], 0.0
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(options, pathlib.Path(name))
        for pair in range(options.pairs):
            sides = [("pytorch", bench.measure_peer), ("tutti", bench.measure_tutti)]
            done = {side: measure() for side, measure in (sides if pair % 2 == 0 else sides[::-1])}
            ours, theirs = done["tutti"], done["pytorch"]
            if len(ours[1]) != len(theirs[1]):
                sys.exit(f"tutti took {len(ours[1])} steps, PyTorch {len(theirs[1])}")
            differences = [abs(a - b) for a, b in zip(ours[1], theirs[1])][:LOSS_STEPS]
            worst = max(worst, *differences)
            rows.append((ours[0], theirs[0], ours[0] / theirs[0]))
            print(f"pair {pair + 1}: tutti {ours[0]:.0f} tokens/s, PyTorch {theirs[0]:.0f}, ratio "
                  f"{rows[-1][2]:.3f}, worst loss difference {max(differences):.1e}", flush=True)
    ratios = [row[2] for row in rows]
    result = {"peer": options.peer, "pairs": options.pairs, "steps": options.steps, "compile": options.compile,
              "precision": options.precision, "ratio_median": round(statistics.median(ratios), 4),
              "ratio_min": round(min(ratios), 4), "ratio_max": round(max(ratios), 4),
              "tutti_tokens_per_s": round(statistics.median(row[0] for row in rows), 1),
              "pytorch_tokens_per_s": round(statistics.median(row[1] for row in rows), 1),
              "worst_loss_difference": worst}
    print(json.dumps(result))
    if options.out:
        options.out.write_text(json.dumps(result) + "\n")
    if worst > options.tolerance:
        sys.exit(f"the losses differ by {worst:.1e}; {options.tolerance:.0e} is allowed")


if __name__ == "__main__":
    main()
