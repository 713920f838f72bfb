"""A backward pass of DDP whose allreduce fails raises the error, and the program ends. Rank 1 makes no step."""

import sys
import threading

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import warren.torch

dist.init_process_group("warren")
model = DistributedDataParallel(torch.nn.Linear(4, 4))
comm = warren.torch.init()
if dist.get_rank() == 1:
    comm.recv(bytearray(1), 0)  # which nobody sends
loss = model(torch.ones(2, 4)).sum()
group = dist.group.WORLD
complete = group.complete


def complete_and_abort(work):
    complete(work)
    threading.Thread(target=lambda: comm.abort("on purpose")).start()


group.complete = complete_and_abort
try:
    loss.backward()
except Exception as error:
    print("caught:", error, flush=True)
    group.complete = complete
    dist.destroy_process_group()
    sys.exit(3)
