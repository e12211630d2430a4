"""What one rank of tests/e2e/python_backend.py does.

    python backend_ranks.py CASE RANK SIZE STORE
"""
import contextlib
import datetime
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import tutti_backend  # noqa: F401

OPS = {"sum": dist.ReduceOp.SUM, "product": dist.ReduceOp.PRODUCT, "max": dist.ReduceOp.MAX,
       "min": dist.ReduceOp.MIN}
TYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8,
         torch.int16, torch.int32, torch.int64, torch.bool]
NOT_IN_GLOO = {torch.int16}
COUNTS = [0, 1, 509, (1 << 20) + 3]


def values(rank, count, dtype):
    """Whole numbers that three ranks reduce exactly in every type."""
    return ((torch.arange(count) * 3 + rank * 7) % 4).to(dtype)


def same(ours, theirs, what):
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one, other), f"{what}: {one.flatten()[:8]}, not {other.flatten()[:8]}"


def movements(group, rank, size, make):
    """Results of the operations that reduce nothing, by name."""
    mine = make(rank)
    everybody = [torch.empty_like(mine) for _ in range(size)]
    whole, taken = torch.cat([mine] * size), torch.empty_like(mine)
    swapped = torch.empty_like(whole)
    for root in range(size):
        data = make(rank)
        dist.broadcast(data, root, group=group)
        yield f"broadcast {root}", [data]
        gathered = [torch.empty_like(mine) for _ in range(size)] if rank == root else None
        dist.gather(mine, gathered, dst=root, group=group)
        yield f"gather {root}", gathered or []
        parts = [make(r + root) for r in range(size)] if rank == root else None
        dist.scatter(taken, parts, src=root, group=group)
        yield f"scatter {root}", [taken.clone()]
    dist.all_gather(everybody, mine, group=group)
    yield "all_gather", everybody
    dist.all_gather_into_tensor(whole, mine, group=group)
    yield "all_gather_into_tensor", [whole]
    dist.all_to_all_single(swapped, whole, group=group)
    yield "all_to_all_single", [swapped]


def reductions(group, rank, size, make, op):
    data = make(rank)
    dist.all_reduce(data, op, group=group)
    yield "all_reduce", [data]
    for root in range(size):
        data = make(rank)
        dist.reduce(data, root, op, group=group)
        yield f"reduce {root}", [data] if rank == root else []
    whole, part = torch.cat([make(rank + r) for r in range(size)]), make(rank)
    dist.reduce_scatter_tensor(part, whole, op, group=group)
    yield "reduce_scatter_tensor", [part]


def compare(ours, theirs, what):
    for (name, got), (_, expected) in zip(ours, theirs, strict=True):
        same(got, expected, f"{name} of {what}")


def beside_gloo(rank, size):
    gloo = dist.new_group(backend="gloo")
    for dtype in TYPES:
        for count in COUNTS:
            def make(r, count=count, dtype=dtype):
                return values(r, count, dtype)
            if dtype in NOT_IN_GLOO or count == 0:
                continue
            what = f"{count} {dtype}"
            compare(movements(None, rank, size, make), movements(gloo, rank, size, make), what)
            for name, op in OPS.items():
                compare(reductions(None, rank, size, make, op),
                        reductions(gloo, rank, size, make, op), f"{name}, {what}")


def rest(rank, size):
    """What Gloo has not, or has otherwise: against its meaning."""
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        data = torch.full((1000,), float(size * (rank + 1)), dtype=dtype)
        dist.all_reduce(data, dist.ReduceOp.AVG)
        assert data.eq(size * (size + 1) / 2).all()
    short = torch.full((7,), rank + 1, dtype=torch.int16)
    dist.all_reduce(short)
    assert short.eq(size * (size + 1) // 2).all()
    empty = torch.empty(0)
    dist.all_reduce(empty)
    across = torch.arange(12.0).view(3, 4).t() + rank  # not contiguous
    expected = torch.arange(12.0).view(3, 4).t() * size + size * (size - 1) / 2
    dist.all_reduce(across)
    assert across.equal(expected)
    uneven_lists(rank, size)
    coalesced(rank, size)
    messages(rank, size)
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": r} for r in range(size)]
    future = dist.all_reduce(torch.ones(3), async_op=True).get_future()
    assert future.then(lambda f: f.value()[0].sum().item()).wait() == 3 * size


def uneven_lists(rank, size):
    parts = [torch.empty(r + 1) for r in range(size)]
    dist.all_gather(parts, torch.full((rank + 1,), float(rank)))
    assert all(part.eq(r).all() for r, part in enumerate(parts))
    part = torch.empty(rank + 1)
    dist.reduce_scatter(part, [torch.full((r + 1,), float(r)) for r in range(size)])
    assert part.eq(rank * size).all()
    got = [torch.empty(2 * r + rank) for r in range(size)]
    dist.all_to_all(got, [torch.full((2 * rank + r,), float(rank)) for r in range(size)])
    assert all(part.eq(r).all() for r, part in enumerate(got))


def coalesced(rank, size):
    group = dist.group.WORLD
    inputs = [torch.full((n,), float(rank)) for n in (1, 1000)]
    outputs = [torch.empty(n * size) for n in (1, 1000)]
    group.allgather_into_tensor_coalesced(outputs, inputs).wait()
    for n, out in zip((1, 1000), outputs):
        assert out.view(size, n).eq(torch.arange(size).view(size, 1)).all()
    sums = [torch.empty(n) for n in (1, 1000)]
    group.reduce_scatter_tensor_coalesced(sums, outputs).wait()
    assert all(each.eq(rank * size).all() for each in sums)
    group.allreduce_coalesced(inputs).wait()
    assert all(each.eq(size * (size - 1) / 2).all() for each in inputs)


def messages(rank, size):
    if size == 1:
        return
    around, got = (rank + 1) % size, torch.empty(300_000)
    sending = dist.isend(torch.full((300_000,), float(rank)), around)
    dist.recv(got, (rank - 1) % size)
    sending.wait()
    assert got.eq((rank - 1) % size).all()


def said(call, *words):
    try:
        call()
    except (RuntimeError, ValueError) as error:
        assert all(word in str(error) for word in words), str(error)
        return
    raise AssertionError(f"no error names {words}")


def mistakes(rank, size):
    said(lambda: dist.all_reduce(torch.ones(3, dtype=torch.int32), dist.ReduceOp.AVG),
         "average of I32", "only floats")
    said(lambda: dist.all_reduce(torch.ones(3, dtype=torch.complex64).real.to(torch.float8_e5m2)),
         "Float8_e5m2")
    said(lambda: dist.all_reduce(torch.ones(3, dtype=torch.int32), dist.ReduceOp.BAND), "SUM, AVG")
    if size > 1:
        said(lambda: dist.send(torch.ones(3), (rank + 1) % size, tag=4), "tag 4")
    dist.barrier()  # none of them broke the group
    if size > 1:
        said(lambda: dist.all_reduce(torch.ones(3 + rank)), "rank ", "all_reduce", "same calls")


def operations(rank, size):
    beside_gloo(rank, size)
    rest(rank, size)
    mistakes(rank, size)


def subgroups(rank, size):
    pairs = [dist.new_group([r, (r + 1) % size]) for r in range(size)]
    alone = [dist.new_group([r]) for r in range(size)]
    works = []
    for r, pair in enumerate(pairs):
        if rank in (r, (r + 1) % size):
            data = torch.full((5000,), float(rank))
            works.append((dist.all_reduce(data, group=pair, async_op=True), data,
                          r + (r + 1) % size))
    for work, data, expected in works:
        work.wait()
        assert data.eq(expected).all()
    data = torch.full((10,), float(rank))
    dist.all_reduce(data, group=alone[rank])
    assert data.eq(rank).all()
    dist.broadcast(data, size - 1)
    assert data.eq(size - 1).all()
    for _ in range(3):  # made and destroyed again and again
        group = dist.new_group(list(reversed(range(size))))
        ones = torch.ones(100)
        dist.all_reduce(ones, group=group)
        assert ones.eq(size).all()
        dist.destroy_process_group(group)


def network():
    torch.manual_seed(5)
    layers = [torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh(),
              torch.nn.Linear(64, 1)]
    return torch.nn.Sequential(*layers)


def steps(model, rank, count=5):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(count):
        torch.manual_seed(100 * step + rank)
        optimizer.zero_grad()
        model(torch.randn(16, 32)).square().mean().backward()
        optimizer.step()


def ddp(group, rank):
    model = DistributedDataParallel(network(), process_group=group, bucket_cap_mb=0.01)
    steps(model, rank)
    return [parameter.detach() for parameter in model.parameters()]


def fsdp(group, rank):
    mesh = DeviceMesh.from_group(group or dist.group.WORLD, "cpu")
    model = network()
    for layer in model:
        if list(layer.parameters()):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    steps(model, rank)
    return [parameter.detach().full_tensor() for parameter in model.parameters()]


def training(rank, size):
    gloo = dist.new_group(backend="gloo")
    alone = network()
    before = [parameter.detach().clone() for parameter in alone.parameters()]
    for train in (ddp, fsdp):
        ours, theirs = train(None, rank), train(gloo, rank)
        moved = max((a - b).abs().max().item() for a, b in zip(ours, before))
        worst = max((a - b).abs().max().item() for a, b in zip(ours, theirs, strict=True))
        assert moved > 1e-3, f"{train.__name__} did not train"
        assert worst <= 1e-6, f"{train.__name__}: {worst} from gloo's"
        print(train.__name__, "differs by", worst)


class Slow(torch.autograd.Function):
    """Notes, late in the backward pass, which reductions are done by then."""

    @staticmethod
    def forward(context, x, look):
        context.look = look
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        context.look()
        return gradient, None


def overlap(rank, size):
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Linear(32, 32))
    first, last = model
    futures, seen = [], []  # of each bucket; whether its reduction was done by then

    def look():
        if not look.on:
            return
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and not (futures and futures[0].done()):
            time.sleep(0.01)
        seen.append([future.done() for future in futures])

    def forward(x):
        return last(Slow.apply(first(x), look))

    model.forward = forward
    wrapped = DistributedDataParallel(model, bucket_cap_mb=0.001)

    def hook(_, bucket):
        future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        futures.append(future)
        return future.then(lambda f: f.value()[0].div_(size))

    wrapped.register_comm_hook(None, hook)
    for step in range(3):
        look.on = step > 0  # DDP orders its buckets after the first step
        futures.clear()
        wrapped(torch.randn(4, 32)).sum().backward()
    assert len(futures) > 1 and len(seen) == 2 and all(each and each[0] for each in seen), seen


@contextlib.contextmanager
def wait_after_kill(rank):
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    try:
        yield
    finally:
        print(f"waited {time.monotonic() - began:.1f} s")


def killed_in_ddp(rank, size):
    model = DistributedDataParallel(network())
    steps(model, rank, 2)
    with wait_after_kill(rank):
        steps(model, rank)


def killed_in_recv(rank, size):
    dist.barrier()
    with wait_after_kill(rank):
        dist.recv(torch.empty(3), 1)


def late(rank, size):
    dist.barrier()
    if rank == 1:
        time.sleep(6)
        return
    dist.all_reduce(torch.ones(3))


def main():
    case, rank, size, store = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    torch.set_num_threads(1)
    timeout = datetime.timedelta(seconds=2 if case == "late" else 120)
    dist.init_process_group("tutti", init_method=f"file://{store}", rank=rank, world_size=size,
                            timeout=timeout)
    assert dist.get_backend() == "tutti"
    globals()[case](rank, size)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
