"""One recipe with different settings, in turns, in one sitting: tokens/s of each beside the first.

    .venv/bin/python bench/compare.py recipes/peer.yaml --set parallel.engine=mesh --set parallel.tensor=2 \\
        --side parallel.tensor_chunks=1 --side parallel.tensor_chunks=2 [--pairs 7] [--steps 30]

A --side is one or more settings with commas between them; "" is the recipe as it is. In each round every side runs
once, in an order that turns. Printed: tokens/s of the median steady step (after the first --skip), the ratio to the
first side of each round and its median, and whether the losses were the same bits.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--set", action="append", default=[], help="a setting of all sides")
    parser.add_argument("--side", action="append", required=True, help="the settings of one side")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--skip", type=int, default=5, help="first steps left out of the timing")
    return parser.parse_args()


def measure(options, side, out):
    """(seconds of the median steady step, losses)."""
    words = [*options.set, *filter(None, side.split(",")), f"duration={options.steps} steps"]
    binary = os.environ.get("TUTTI_BIN", ROOT / "build" / "release" / "bin")
    command = [f"{binary}/tutti", "train", options.recipe, "--json", "--out", out,
               *(part for word in words for part in ("--set", word))]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, cwd=ROOT)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\nended with {done.returncode}:\n{done.stderr[-3000:]}")
    records = [json.loads(line) for line in (out / "events" / "rank-000.jsonl").read_text().splitlines()]
    steps = [r for r in records if r.get("kind") == "scalars" and "step_seconds" in r]
    return statistics.median(r["step_seconds"] for r in steps[options.skip:]), [r["loss"] for r in steps]


def main():
    options = parse()
    ratios = {side: [] for side in options.side}
    seconds = {side: [] for side in options.side}
    losses = {}
    with tempfile.TemporaryDirectory() as name:
        for round_ in range(options.pairs):
            turn = round_ % len(options.side)
            for side in options.side[turn:] + options.side[:turn]:
                took, losses[side] = measure(options, side, pathlib.Path(name) / f"{round_}-{options.side.index(side)}")
                seconds[side].append(took)
            for side in options.side:
                ratios[side].append(seconds[options.side[0]][-1] / seconds[side][-1])
    for side in options.side:
        r = ratios[side]
        same = "same losses" if losses[side] == losses[options.side[0]] else "other bits of losses"
        print(f"{side or 'as it is':40} {1e3 * statistics.median(seconds[side]):8.1f} ms a step   x{statistics.median(r):.3f} "
              f"({min(r):.3f} to {max(r):.3f})   {same}")


if __name__ == "__main__":
    main()
