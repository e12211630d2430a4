"""How peer_train.py's model lies over processes: what each of PyTorch's ways asks for, in its documented form.

  ddp     DistributedDataParallel
  fsdp    fully_shard (FSDP2) of each block, then of the rest: ZeRO 3
  tensor  parallelize_module: q, k, v, gate and up by columns, o and down by rows; between them the residual stream and
          the norms are cut by tokens (SequenceParallel); embedding and head by the vocabulary, with loss_parallel
"""
import contextlib


def whole(x):
    return x.full_tensor() if hasattr(x, "full_tensor") else x


def add_hook(net, hook):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
    if hook == "fp16":  # the one of bf16 refuses Gloo on CPUs
        net.register_comm_hook(None, default_hooks.fp16_compress_hook)
    if hook == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=10)
        net.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def spread(model, kind, world, compiled, hook="none"):
    """(what to call, scope(last) of a micro-batch: only the last one reduces, scope() of the loss and its backward)."""
    import torch
    nothing = contextlib.nullcontext
    if world == 1:
        return torch.compile(model) if compiled else model, lambda last: nothing(), nothing
    if kind == "ddp":
        # The chained sums of PowerSGD's buckets mix on Gloo (it aborts): one bucket has no order to lose.
        buckets = {"bucket_cap_mb": 1000} if hook == "powersgd" else {}
        net = torch.nn.parallel.DistributedDataParallel(model, **buckets)
        add_hook(net, hook)
        scope = lambda last: nothing() if last else net.no_sync()
        return torch.compile(net) if compiled else net, scope, nothing
    from torch.distributed.device_mesh import init_device_mesh
    mesh = init_device_mesh("cpu", (world,))
    if kind == "fsdp":
        return fsdp(model, mesh, compiled), last_of(model), nothing
    return tensor(model, mesh, compiled)


def fsdp(model, mesh, compiled):
    from torch.distributed.fsdp import fully_shard
    for layer in model.model.layers:
        if compiled:
            layer.compile()
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def last_of(model):
    def scope(last):
        model.set_requires_gradient_sync(last)
        return contextlib.nullcontext()
    return scope


def tensor(model, mesh, compiled):
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (ColwiseParallel, PrepareModuleInput, RowwiseParallel,
                                                   SequenceParallel, loss_parallel, parallelize_module)
    tokens = Shard(1)
    gather = lambda more: PrepareModuleInput(input_layouts=(tokens,) + (None,) * more,
                                             desired_input_layouts=(Replicate(),) + (None,) * more)
    block = {"input_layernorm": SequenceParallel(), "post_attention_layernorm": SequenceParallel(),
             "self_attn": gather(2), "mlp": gather(0),
             **{f"self_attn.{x}_proj": ColwiseParallel() for x in "qkv"},
             "self_attn.o_proj": RowwiseParallel(output_layouts=tokens),
             "mlp.gate_proj": ColwiseParallel(), "mlp.up_proj": ColwiseParallel(),
             "mlp.down_proj": RowwiseParallel(output_layouts=tokens)}
    for layer in model.model.layers:
        parallelize_module(layer, mesh, block)
        if compiled:
            layer.compile()
    parallelize_module(model, mesh, {
        "model.embed_tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=tokens),
        "model.norm": SequenceParallel(),
        "lm_head": ColwiseParallel(input_layouts=tokens, output_layouts=Shard(-1), use_local_output=False)})
    nothing = contextlib.nullcontext
    return model, lambda last: nothing(), loss_parallel
