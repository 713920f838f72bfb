"""Trains a small network on handwritten digits with Accelerate, as it is, over Warren.

    warren run -n 4 -- python -m warren.torch examples/python/torch_accelerate.py [--epochs=N] [--weights_file=PATH]

The one thing in it that is Warren's is the name of the backend. On CPUs Accelerate takes no other backend than its own by
name, but one that is there already; on GPUs InitProcessGroupKwargs(backend="warren") names it.
"""

import argparse
import os
import pathlib

import digits
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed

BATCH = 64  # images of all workers


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--weights_file")
    options = parser.parse_args()
    print(f"process {os.getpid()} begins", flush=True)
    train, test = ((torch.tensor(x, dtype=torch.float32), torch.tensor(y)) for x, y in digits.load())
    torch.distributed.init_process_group("warren")
    accelerator = Accelerator(cpu=True)
    set_seed(7)
    model = torch.nn.Sequential(
        torch.nn.Linear(65, 64), torch.nn.BatchNorm1d(64), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(64, 10)
    )
    images = torch.utils.data.TensorDataset(*train)
    loader = torch.utils.data.DataLoader(images, batch_size=BATCH // accelerator.num_processes, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.Adam(model.parameters(), lr=3e-3), loader)
    for epoch in range(options.epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
        mean = accelerator.reduce(loss.detach(), "mean").item()
        if accelerator.is_main_process:
            print(f"epoch {epoch + 1:3} of {options.epochs}: loss {mean:.4f}", flush=True)

    model = accelerator.unwrap_model(model).eval()
    if accelerator.is_main_process:
        with torch.no_grad():
            accuracy = (model(test[0]).argmax(1) == test[1]).float().mean()
        print(f"test accuracy {accuracy:.4f}", flush=True)
        if options.weights_file:
            tensors = model.state_dict().values()
            pathlib.Path(options.weights_file).write_bytes(b"".join(tensor.numpy().tobytes() for tensor in tensors))
    accelerator.wait_for_everyone()
    accelerator.end_training()


main()
