"""Trains a small network on handwritten digits in PyTorch, in the four steps that Horovod's users know.

    warren run -n 4 -- python examples/python/torch_horovod_steps.py [--epochs=N] [--wire=f16] [--weights_file=PATH]

A worker that is killed, at any moment, comes back, and the weights end as those of an undisturbed run, byte for byte.
Rank 0 writes the weights as they are in memory.
"""

import argparse
import os
import pathlib

import digits
import torch

import warren.torch

BATCH = 64  # images of all workers


def make_model():
    return torch.nn.Sequential(
        torch.nn.Linear(65, 64), torch.nn.BatchNorm1d(64), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(64, 10)
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--wire", choices=["f16", "bf16", "i8"], help="how gradients travel; float32 if it is not given")
    parser.add_argument("--weights_file")
    options = parser.parse_args()
    print(f"process {os.getpid()} begins", flush=True)
    train, test = ((torch.tensor(x, dtype=torch.float32), torch.tensor(y)) for x, y in digits.load())
    images = torch.utils.data.TensorDataset(*train)

    comm = warren.torch.init()  # 1. join
    rank, size = comm.rank, comm.size
    torch.manual_seed(7 + rank)
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)  # 2. a learning rate for this many workers
    optimizer = warren.torch.DistributedOptimizer(optimizer, wire=options.wire)  # 3. gradients are averaged
    warren.torch.broadcast_parameters(model.state_dict())  # 4. all begin with rank 0's weights
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

    model.eval()
    with torch.no_grad():
        accuracy = (model(test[0]).argmax(1) == test[1]).float().mean()
    if rank == 0:
        print(f"test accuracy {accuracy:.4f}", flush=True)
        if options.weights_file:
            tensors = model.state_dict().values()
            pathlib.Path(options.weights_file).write_bytes(b"".join(tensor.numpy().tobytes() for tensor in tensors))
    warren.torch.broadcast_parameters({"accuracy": accuracy})  # all ranks leave with rank 0's verdict
    comm.finalize()
    comm.destroy()
    if options.epochs >= 20 and accuracy < 0.94:
        raise SystemExit("the model has not learned: its accuracy is below 0.94")


main()
