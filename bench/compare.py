"""One recipe with different settings, in turns, in one sitting: tokens/s of each beside the first.

    .venv/bin/python bench/compare.py recipes/peer.yaml --set parallel.engine=mesh --set parallel.tensor=2 \\
        --side parallel.tensor_chunks=1 --side parallel.tensor_chunks=2 [--pairs 7] [--steps 30]

A --side is one or more settings with commas between them; "" is the recipe as it is. In each round every side runs
once, in an order that turns. Printed: tokens/s of the median steady step (after the first --skip), the ratio to the
first side of each round and its median, and whether the losses were the same bits.
"""
import argparse
import pathlib
import statistics
import tempfile

from runs import train


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
    settings = [*options.set, *filter(None, side.split(",")), f"duration={options.steps} steps"]
    return train(options.recipe, settings, out, options.skip)


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
