"""Each epoch uses each sample once, whatever is killed, and with another number of ranks. Argument: --weights_file=PATH."""

import argparse
import os
import pathlib

import torch
import torch.distributed as dist

import warren.torch

SAMPLES = 240
EPOCHS = 8


class Used:
    """The samples that were used, by epoch."""

    def __init__(self):
        self.epochs = [[] for _ in range(EPOCHS)]

    def state_dict(self):
        return {"epochs": self.epochs}

    def load_state_dict(self, state):
        self.epochs = state["epochs"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--weights_file")
    options = parser.parse_args()
    print(f"process {os.getpid()} begins", flush=True)
    dist.init_process_group("warren")
    rank, size = dist.get_rank(), dist.get_world_size()
    model = torch.nn.BatchNorm1d(1)
    used, sampler = Used(), warren.torch.Sampler(SAMPLES, seed=9)
    loader = torch.utils.data.DataLoader(torch.arange(SAMPLES), batch_size=5, sampler=sampler)
    training = warren.torch.Training(sampler=sampler, used=used, model=model)
    for epoch in training.epochs(EPOCHS):
        for batch in training.batches(loader, every=2):
            model(batch[:, None].float())
            all = [torch.empty_like(batch) for _ in range(size)]
            dist.all_gather(all, batch)
            used.epochs[epoch] += torch.cat(all).tolist()
            if rank == 0 and training.batch == 5:
                print(f"epoch {epoch + 1:3}: {size} ranks", flush=True)
    for samples in used.epochs:
        assert sorted(samples) == list(range(SAMPLES)), sorted(samples)
    assert len({tuple(samples) for samples in used.epochs}) == EPOCHS  # in another order each
    if rank == 0 and options.weights_file:
        pathlib.Path(options.weights_file).write_text(str(used.epochs), encoding="ascii")
    dist.destroy_process_group()


main()
