"""Registers the torch.distributed backend "tutti": Tutti's shared-memory collectives.

    import tutti_backend
    torch.distributed.init_process_group("tutti")
"""
import torch  # loads the libraries that _C needs
import torch.distributed as dist

from . import _C


def _group_name(options):
    ranks = list(options.global_ranks_in_group)
    if not ranks or (options.group_id == "0" and len(ranks) == options.group_size):
        return "world"
    shown = ranks if len(ranks) <= 8 else [*ranks[:4], "...", ranks[-1]]
    return f"ranks {', '.join(map(str, shown))}"


def _create(options, _):
    return _C.join(options.store, options.group_rank, options.group_size,
                   options.timeout.total_seconds(), _group_name(options))


dist.Backend.register_backend("tutti", _create, extended_api=True, devices=["cpu"])
