"""Trains a small network on handwritten digits in PyTorch, its parameters sharded over the workers by FSDP2.

    warren run -n 4 -- python examples/python/torch_fsdp2.py [--epochs=N] [--weights_file=PATH]

Each worker holds a part of every parameter and of the optimizer's state. A worker that is killed comes back, gets its
part from the others, and the weights end as those of an undisturbed run, byte for byte. Rank 0 writes them.
"""

import argparse
import os
import pathlib

import digits
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

import warren.torch

BATCH = 64  # images of all workers


def make_model():
    model = torch.nn.Sequential(
        torch.nn.Linear(65, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
    )
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer)
    return fully_shard(model)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--weights_file")
    options = parser.parse_args()
    print(f"process {os.getpid()} begins", flush=True)
    train, test = ((torch.tensor(x, dtype=torch.float32), torch.tensor(y)) for x, y in digits.load())
    images = torch.utils.data.TensorDataset(*train)

    dist.init_process_group("warren")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(7)  # the same weights on all workers, which FSDP2 does not see to
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    sampler = warren.torch.Sampler(images, seed=1)
    loader = torch.utils.data.DataLoader(images, batch_size=BATCH // size, sampler=sampler)
    training = warren.torch.Training(model=model, optimizer=optimizer, sampler=sampler)
    for epoch in training.epochs(options.epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch + 1:3} of {options.epochs}: loss {loss.item():.4f}", flush=True)

    with torch.no_grad():
        accuracy = (model(test[0]).argmax(1) == test[1]).float().mean()
    tensors = [tensor.full_tensor() for tensor in model.state_dict().values()]  # on all workers
    if rank == 0:
        print(f"test accuracy {accuracy:.4f}", flush=True)
        if options.weights_file:
            pathlib.Path(options.weights_file).write_bytes(b"".join(tensor.numpy().tobytes() for tensor in tensors))
    dist.broadcast(accuracy, 0)  # all ranks leave with rank 0's verdict
    dist.destroy_process_group()
    if options.epochs >= 20 and accuracy < 0.94:
        raise SystemExit("the model has not learned: its accuracy is below 0.94")


main()
