"""Seconds from the command to the end of the first step, of two workers.

    .venv/bin/python bench/start_up.py [--runs 7]
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent


def seconds(out):
    start = time.time()
    subprocess.run([ROOT / "tutti", "train", ROOT / "recipes" / "peer.yaml", "--out", out, "--json",
                    "--set", "duration=11 steps"], check=True, capture_output=True, cwd=ROOT)
    for line in (out / "events" / "rank-000.jsonl").read_text().splitlines():
        record = json.loads(line)
        if record["step"] == 1 and "step_seconds" in record:
            return record["time"] - start
    raise SystemExit("no first step in the events")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7)
    with tempfile.TemporaryDirectory() as folder:
        times = [seconds(pathlib.Path(folder) / str(i)) for i in range(parser.parse_args().runs)]
    print(f"median {statistics.median(times):.2f} s, worst {max(times):.2f} s")


if __name__ == "__main__":
    main()
