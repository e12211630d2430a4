"""PYTHONPATH=build/release/python .venv/bin/torchrun --nproc-per-node 2 examples/ddp_over_tutti.py"""
import torch
import tutti_backend  # registers "tutti"

torch.distributed.init_process_group("tutti")
torch.manual_seed(torch.distributed.get_rank())
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(20):
    x = torch.randn(64, 8)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"rank {torch.distributed.get_rank()}: loss {loss.item():.4f}")
torch.distributed.destroy_process_group()
