"""What benches share: running commands, and Tutti's own training runs with their times and losses."""
import json
import os
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def run(command, **more):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, cwd=ROOT,
                          **more)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\nended with {done.returncode}:\n"
                 f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return done.stdout


def train(recipe, settings, out, skip):
    """Trains into the folder `out`; (seconds of the median steady step, losses in the order of the steps)."""
    binary = os.environ.get("TUTTI_BIN", ROOT / "build" / "release" / "bin")
    run([f"{binary}/tutti", "train", recipe, "--json", "--out", out,
         *(part for setting in settings for part in ("--set", setting))])
    return read_events(out, skip)


def read_records(out):
    """The scalars of each step of the run in the folder `out`, in their order."""
    records = []
    for line in (out / "events" / "rank-000.jsonl").read_text().splitlines():
        record = json.loads(line)
        if record.get("kind") == "scalars" and "step_seconds" in record:
            records.append(record)
    records.sort(key=lambda record: record["step"])
    if [record["step"] for record in records] != list(range(1, len(records) + 1)):
        sys.exit(f"{out}: the events do not have each step once")
    return records


def read_events(out, skip):
    records = read_records(out)
    steady = statistics.median(record["step_seconds"] for record in records[skip:])
    return steady, [record["loss"] for record in records]
