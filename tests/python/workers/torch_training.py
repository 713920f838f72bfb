"""Trains several models side by side, each in another way of torch's, with checkpoints in the midst of epochs.

Rank 0 writes a line for each way: a hash of all ranks' weights, buffers, optimizers and random numbers. Arguments:
--weights_file=PATH, --ways=NAMES, --epochs=N.
"""

import argparse
import hashlib
import os
import pathlib
import random

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import warren.torch

SAMPLES = 139  # which neither the ranks nor the batches divide
BATCH = 6
EVERY = 3  # batches a checkpoint


class Net(nn.Module):
    """One of its branches is used, or both."""

    def __init__(self, normalize=True):
        super().__init__()
        self.first = nn.Linear(16, 24)
        self.norm = nn.BatchNorm1d(24) if normalize else nn.Identity()
        self.left, self.right = nn.Linear(24, 24), nn.Linear(24, 24)
        self.drop = nn.Dropout(0.3)
        self.last = nn.Linear(24, 4)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x, branches=(True, True)):
        self.calls += 1
        x = torch.relu(self.norm(self.first(x)))
        if branches[0]:
            x = x + torch.relu(self.left(x))
        if branches[1]:
            x = x + torch.tanh(self.right(x))
        return self.last(self.drop(x))


class Plain:
    def __init__(self):
        self.model = self.make()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.99)

    def make(self):
        return DistributedDataParallel(Net())

    def parts(self):
        return {"model": self.model, "optimizer": self.optimizer, "schedule": self.schedule}

    def loss(self, x, y, step):
        return nn.functional.cross_entropy(self.model(x), y)

    def step(self, x, y, step):
        self.optimizer.zero_grad()
        self.loss(x, y, step).backward()
        self.optimizer.step()
        self.schedule.step()

    def evaluate(self, x):
        self.model.eval()
        with torch.no_grad():
            self.model(x)
        self.model.train()


class SmallBuckets(Plain):
    def make(self):
        return DistributedDataParallel(Net(), bucket_cap_mb=0.002, gradient_as_bucket_view=True)


class Unused(Plain):
    """Branches that come and go, other ones on other ranks; gradients of two half batches are added up."""

    def make(self):
        return DistributedDataParallel(Net(), find_unused_parameters=True)

    def step(self, x, y, step):
        branches = (step % 3 != 0, (step + dist.get_rank()) % 2 == 0)
        self.optimizer.zero_grad()
        half = len(x) // 2
        with self.model.no_sync():
            nn.functional.cross_entropy(self.model(x[:half], branches), y[:half]).backward()
        nn.functional.cross_entropy(self.model(x[half:], branches), y[half:]).backward()
        self.optimizer.step()
        self.schedule.step()


class Static(Plain):
    def make(self):
        return DistributedDataParallel(Net(), static_graph=True, bucket_cap_mb=0.002)

    def loss(self, x, y, step):
        return nn.functional.cross_entropy(self.model(x, (True, False)), y)


class Mixed(Plain):
    """Float16 with a loss scale, and gradients that travel in 16 bits."""

    def __init__(self):
        super().__init__()
        self.model.register_comm_hook(None, default_hooks.bf16_compress_hook)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=7)

    def parts(self):
        return {**super().parts(), "scaler": self.scaler}

    def step(self, x, y, step):
        self.optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = self.loss(x, y, step)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.schedule.step()


class Sharded(Plain):
    def make(self):
        model = Net(normalize=False)
        for layer in (model.left, model.right):
            fully_shard(layer)
        return fully_shard(model)


class Horovod(Plain):
    def __init__(self):
        self.model = Net()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        self.optimizer = warren.torch.DistributedOptimizer(self.optimizer, wire="bf16", backward_passes_per_step=2)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.99)
        warren.torch.broadcast_parameters(self.model.named_parameters())

    def step(self, x, y, step):
        self.optimizer.zero_grad()
        branches = (step % 3 != 0, (step + dist.get_rank()) % 2 == 0)
        for part in (slice(None, None, 2), slice(1, None, 2)):
            nn.functional.cross_entropy(self.model(x[part], branches), y[part]).backward()
        self.optimizer.synchronize()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        with self.optimizer.skip_synchronize():
            self.optimizer.step()
        self.schedule.step()


WAYS = {
    "plain": Plain, "small_buckets": SmallBuckets, "unused": Unused, "static": Static, "mixed": Mixed, "sharded": Sharded,
    "horovod": Horovod,
}  # fmt: skip


def digest(*values):
    """A hash of all that these hold."""
    sum = hashlib.sha256()

    def add(value):
        if isinstance(value, torch.Tensor):
            local = value.to_local() if hasattr(value, "to_local") else value
            data = local.detach().contiguous().view(-1).view(torch.uint8)
            sum.update(repr((local.dtype, local.shape)).encode() + data.numpy().tobytes())
        elif isinstance(value, dict):
            for key in sorted(value, key=str):
                sum.update(repr(key).encode())
                add(value[key])
        elif isinstance(value, (list, tuple)):
            for item in value:
                add(item)
        else:
            sum.update(repr(value).encode())

    add(values)
    return sum.hexdigest()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--weights_file")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    print(f"process {os.getpid()} begins", flush=True)
    draws = np.random.default_rng(1)
    x = torch.tensor(draws.standard_normal((SAMPLES, 16)), dtype=torch.float32)
    y = torch.tensor(draws.integers(0, 4, SAMPLES))

    dist.init_process_group("warren")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(3)
    ways = {name: WAYS[name]() for name in options.ways.split(",")}
    torch.manual_seed(10 + rank)
    np.random.seed(20 + rank)
    random.seed(30 + rank)
    sampler = warren.torch.Sampler(SAMPLES, seed=5)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=BATCH, sampler=sampler)
    training = warren.torch.Training(
        sampler=sampler, **{f"{name} {part}": value for name, way in ways.items() for part, value in way.parts().items()}
    )
    epochs = training.epochs(options.epochs)
    print(f"goes on at batch {training.batch}", flush=True)
    for epoch in epochs:
        for a, b in training.batches(loader, every=EVERY):
            step = epoch * 1000 + training.batch
            a = a + 0.01 * float(np.random.standard_normal()) + 0.01 * random.random()
            for way in ways.values():
                way.step(a, b, step)
            if rank == 0 and training.batch == EVERY + 1:  # kills come after it: lives begin in the midst of epochs
                print(f"epoch {epoch + 1:3}", flush=True)
        for way in ways.values():
            way.evaluate(x[:5])  # just before a checkpoint

    draws = digest(torch.get_rng_state(), np.random.get_state(), random.getstate())
    mine = {"random": draws, "sampler": digest(sampler.state_dict())}
    for name, way in ways.items():
        buffers = dict(way.model.named_buffers())
        mine[name] = digest(way.model.state_dict(), buffers, *(value.state_dict() for value in way.parts().values()))
    every = [None] * size
    dist.all_gather_object(every, mine)
    if rank == 0 and options.weights_file:
        lines = [f"{name} {' '.join(one[name] for one in every)}\n" for name in mine]
        pathlib.Path(options.weights_file).write_text("".join(lines), encoding="ascii")
    dist.destroy_process_group()


main()
