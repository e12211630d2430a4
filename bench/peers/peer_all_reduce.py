"""All-reduce of f32 over PyTorch's Gloo, verified: microseconds a call as JSON, by bytes.

    peer_all_reduce.py --ranks 2 --sizes 1024,4096
"""
import argparse
import json
import os
import statistics
import tempfile
import time

import torch
import torch.distributed as dist

SAMPLE_SECONDS = 100e-6


def pattern(rank, count):
    return torch.arange(count, dtype=torch.float32).add_(rank * 31).remainder_(251)


def check(data, ranks):
    data.copy_(pattern(dist.get_rank(), data.numel()))
    dist.all_reduce(data)
    expected = sum(pattern(rank, data.numel()) for rank in range(ranks))
    if not torch.equal(data, expected):
        raise SystemExit(f"all_reduce of {data.numel()} floats is wrong")


def seconds_of(data, calls):
    dist.barrier()
    start = time.perf_counter()
    for _ in range(calls):
        dist.all_reduce(data)
    return time.perf_counter() - start


def chosen(data, budget):
    """(calls in a sample, samples): rank 0's choice."""
    once = min(seconds_of(data, 2) / 2 for _ in range(3))
    calls = int(min(max(SAMPLE_SECONDS / once, 1), 500))
    samples = int(min(max(budget / (once * calls), 5), 4000))
    choice = torch.tensor([calls, samples])
    dist.broadcast(choice, 0)
    return choice.tolist()


def measure(bytes_, ranks, budget):
    data = torch.empty(bytes_ // 4)
    check(data, ranks)
    data.zero_()
    calls, samples = chosen(data, budget)
    times = torch.tensor([seconds_of(data, calls) for _ in range(samples)], dtype=torch.float64)
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    check(data, ranks)
    return statistics.median(times.tolist()) / calls


def run(rank, options, store):
    cores = sorted(os.sched_getaffinity(0))
    if options.ranks <= len(cores):
        os.sched_setaffinity(0, {cores[rank]})
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=options.ranks)
    found = {size: measure(size, options.ranks, options.seconds) for size in options.sizes}
    if rank == 0:
        print(json.dumps(found))
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--sizes", type=lambda text: [int(size) for size in text.split(",")], default=[1024])
    parser.add_argument("--seconds", type=float, default=0.3, help="of timed calls for each size")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(1, options.ranks):
            child = os.fork()
            if child == 0:
                run(rank, options, f"{folder}/store")
                os._exit(0)
            children.append(child)
        run(0, options, f"{folder}/store")
        if any(os.waitpid(child, 0)[1] for child in children):
            raise SystemExit("a rank failed")


if __name__ == "__main__":
    main()
