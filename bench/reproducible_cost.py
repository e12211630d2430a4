"""What `reproducible: on` costs: tokens/s with it over tokens/s without, by layout.

    .venv/bin/python bench/reproducible_cost.py [--layout zero3] [--pairs 5] [--steps 30] [--out FILE]

The run of recipes/peer.yaml with four micro-batches a step, 2 processes with one thread each, in
alternating pairs as in train_vs_pytorch.py. Printed: the ratio of each pair (below 1: it costs) and,
of each layout, the median.
"""
import argparse
import json
import os
import pathlib
import statistics
import tempfile

from train_vs_pytorch import PROCESSES, ROOT, read_events, run, text_file

TOKENS = 16 * 128
LAYOUTS = {
    "data2": {},
    "zero3": {"parallel.engine": "sharded", "parallel.zero": 3},
    "pipeline2": {"parallel.engine": "mesh", "parallel.pipeline": 2},
    "tensor2": {"parallel.engine": "mesh", "parallel.tensor": 2},
}


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layout", choices=sorted(LAYOUTS), action="append")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--skip", type=int, default=6, help="first steps left out of the timing")
    parser.add_argument("--out", type=pathlib.Path, help="also write the result here as JSON")
    return parser.parse_args()


def measure(options, folder, text, layout, reproducible):
    """(tokens/s, losses) of one run."""
    out = pathlib.Path(tempfile.mkdtemp(dir=folder)) / "run"
    sets = {"data.train": text, "duration": f"{options.steps} steps", "batch.global": 16,
            "parallel.workers": PROCESSES, "parallel.threads": 1, "reproducible": reproducible,
            **LAYOUTS[layout]}
    binary = os.environ.get("TUTTI_BIN", ROOT / "build" / "release" / "bin")
    run([f"{binary}/tutti", "train", ROOT / "recipes" / "peer.yaml", "--json", "--out", out,
         *(part for name, value in sets.items() for part in ("--set", f"{name}={value}"))])
    seconds, losses = read_events(out, options.skip)
    return TOKENS / seconds, losses


def compare(options, folder, text, layout):
    rates, ratios, worst = {"on": [], "off": []}, [], 0.0
    for pair in range(options.pairs):
        done = {side: measure(options, folder, text, layout, side)
                for side in (("on", "off") if pair % 2 == 0 else ("off", "on"))}
        for side, (rate, _) in done.items():
            rates[side].append(rate)
        ratios.append(done["on"][0] / done["off"][0])
        worst = max(worst, *(abs(a - b) for a, b in zip(done["on"][1], done["off"][1])))
        print(f"{layout}: on {done['on'][0]:.0f} tokens/s, off {done['off'][0]:.0f}, ratio "
              f"{ratios[-1]:.3f}", flush=True)
    return {"layout": layout, "pairs": options.pairs, "ratio_median": round(statistics.median(ratios), 4),
            "ratio_min": round(min(ratios), 4), "ratio_max": round(max(ratios), 4),
            "on_tokens_per_s": round(statistics.median(rates["on"]), 1),
            "off_tokens_per_s": round(statistics.median(rates["off"]), 1), "worst_loss_difference": worst}


def main():
    options = parse()
    results = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        text = text_file(folder)
        for layout in options.layout or LAYOUTS:
            results.append(compare(options, folder, text, layout))
            print(json.dumps(results[-1]), flush=True)
    if options.out:
        options.out.write_text(json.dumps(results) + "\n")


if __name__ == "__main__":
    main()
