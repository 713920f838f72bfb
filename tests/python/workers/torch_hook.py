"""DDP in a process group of each process alone, whose gradients a communication hook averages over Warren.

Rank 0 writes the weights and the optimizer's state. Arguments: --weights_file=PATH, --epochs=N, --wire=TYPE.
"""

import argparse
import os
import pathlib

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import warren.torch

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=8)
parser.add_argument("--weights_file")
parser.add_argument("--wire")
options = parser.parse_args()
print(f"process {os.getpid()} begins", flush=True)

comm = warren.torch.init()
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
torch.manual_seed(7 + comm.rank)
sizes = (16, 32, 32, 4)
layers = [layer for a, b in zip(sizes, sizes[1:]) for layer in (torch.nn.Linear(a, b), torch.nn.Dropout(0.2))]
model = torch.nn.Sequential(*layers)
warren.torch.broadcast_parameters(model.state_dict())
model = DistributedDataParallel(model, bucket_cap_mb=0.002)
model.register_comm_hook(warren.torch.HookState(wire=options.wire), warren.torch.comm_hook)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
training = warren.torch.Training(model=model, optimizer=optimizer)
for epoch in training.epochs(options.epochs):
    for step in range(5):
        x = torch.randn(8, 16)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), x[:, :4].argmax(1)).backward()
        if step == 0 and epoch == 0:
            gradient = layers[0].weight.grad
            assert torch.equal(gradient, torch.from_numpy(comm.allreduce(gradient.numpy(), "max"))), "other averages"
        optimizer.step()
    if comm.rank == 0:
        print(f"epoch {epoch + 1:3} of {options.epochs}", flush=True)
# By name: the order of an optimizer's state is another one in a life that has loaded it.
tensors = [*model.state_dict().values(), *(one[name] for one in optimizer.state.values() for name in sorted(one))]
data = b"".join(tensor.numpy().tobytes() for tensor in tensors)
assert len(set(comm.allgather_object(data))) == 1
if comm.rank == 0 and options.weights_file:
    pathlib.Path(options.weights_file).write_bytes(data)
dist.destroy_process_group()
comm.finalize()
comm.destroy()
