"""Step time of plain PyTorch DDP on the backend "tutti" against "gloo", in one sitting.

    .venv/bin/python bench/ddp_backend.py [--pairs 3] [--steps 6] [--skip 2]

An MLP of 10 and of 100 million parameters, plain SGD, two processes of one thread each. A pair is one
run of each backend, taken in turns (who goes first alternates). Printed: the medians over the pairs of
both backends' median steps and of their ratio, the ratio of each pair, and the worst difference of the
loss of a step. Exits with 1 when the losses differ.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from runs import ROOT

BACKENDS = ("tutti", "gloo")
# Millions of parameters -> (width, layers, rows of a batch of one process).
MODELS = {10: (1024, 10, 32), 100: (2048, 24, 32)}
PROCESSES = 2


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--skip", type=int, default=2, help="first steps left out of the timing")
    parser.add_argument("--models", type=int, nargs="+", choices=sorted(MODELS),
                        default=sorted(MODELS))
    parser.add_argument("--rank", nargs=4, metavar=("RANK", "STORE", "BACKEND", "MODEL"),
                        help=argparse.SUPPRESS)
    return parser.parse_args()


def train(rank, store, backend, model, steps):
    """One rank's run: prints its step times and losses as JSON."""
    import torch
    import torch.distributed as dist
    import tutti_backend  # noqa: F401

    torch.set_num_threads(1)
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=PROCESSES)
    torch.manual_seed(1)
    width, layers, rows = MODELS[model]
    blocks = [layer for _ in range(layers)
              for layer in (torch.nn.Linear(width, width), torch.nn.Tanh())]
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*blocks))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    torch.manual_seed(2 + rank)
    seconds, losses = [], []
    for _ in range(steps):
        batch = torch.randn(rows, width)
        dist.barrier()
        began = time.perf_counter()
        optimizer.zero_grad()
        loss = (net(batch) - batch).square().mean()
        loss.backward()
        optimizer.step()
        seconds.append(time.perf_counter() - began)
        losses.append(loss.item())
    print(json.dumps({"seconds": seconds, "losses": losses}))
    dist.destroy_process_group()


def run(backend, model, steps):
    """(step times, losses) of rank 0."""
    package = pathlib.Path(os.environ.get("TUTTI_BIN", ROOT / "build" / "release" / "bin"))
    environment = {**os.environ, "PYTHONPATH": str(package.resolve().parent / "python"),
                   "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        ranks = [subprocess.Popen(
            [sys.executable, __file__, "--steps", str(steps), "--rank", str(rank),
             f"{folder}/store", backend, str(model)],
            env=environment, stdout=subprocess.PIPE, text=True) for rank in range(PROCESSES)]
        outputs = [process.communicate()[0] for process in ranks]
    if any(process.returncode for process in ranks):
        sys.exit(f"{backend}, {model}M: a rank failed")
    result = json.loads(outputs[0])
    return result["seconds"], result["losses"]


def compare(model, arguments):
    times, ratios, worst = {backend: [] for backend in BACKENDS}, [], 0.0
    for pair in range(arguments.pairs):
        losses, medians = {}, {}
        for backend in BACKENDS if pair % 2 == 0 else reversed(BACKENDS):
            seconds, losses[backend] = run(backend, model, arguments.steps)
            medians[backend] = statistics.median(seconds[arguments.skip:])
            times[backend].append(medians[backend])
        ratios.append(medians["tutti"] / medians["gloo"])
        worst = max(worst, *(abs(a - b) for a, b in zip(*losses.values(), strict=True)))
    ours, theirs = (statistics.median(times[backend]) for backend in BACKENDS)
    print(f"{model:6}M{ours * 1e3:10.1f}{theirs * 1e3:10.1f}{statistics.median(ratios):8.3f}"
          f"   {' '.join(f'{ratio:.3f}' for ratio in ratios):24}{worst:12.1e}", flush=True)
    return worst


def main():
    arguments = parse()
    if arguments.rank:
        rank, store, backend, model = arguments.rank
        return train(int(rank), store, backend, int(model), arguments.steps)
    print(f"{'model':>7}{'tutti ms':>10}{'gloo ms':>10}{'ratio':>8}   {'of each pair':24}"
          f"{'loss apart':>12}")
    worst = max(compare(model, arguments) for model in arguments.models)
    return sys.exit("the losses differ" if worst > 1e-5 else 0)


if __name__ == "__main__":
    main()
