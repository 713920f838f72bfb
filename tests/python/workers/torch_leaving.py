"""Rank 0 fails once while a call of it waits for rank 1, and destroys the process group on its way out."""

import os

import torch
import torch.distributed as dist

import warren.torch

dist.init_process_group("warren")
x = torch.ones(2)
try:
    if dist.get_rank() == 0:
        future = dist.all_reduce(x, async_op=True).get_future()
        if os.environ["WARREN_ATTEMPT"] == "0":
            raise ValueError("on purpose")
        dist.send(torch.zeros(1), 1)
        future.wait()
    else:
        dist.recv(torch.empty(1), 0)
        dist.all_reduce(x)
    assert x.tolist() == [2, 2]
    print("done", flush=True)
finally:
    dist.destroy_process_group()
