"""A program of torch's that ends by sys.exit(0), with a process group or after it. Argument: whether it destroys the group."""

import sys

import torch
import torch.distributed as dist

dist.init_process_group("warren")
x = torch.ones(2)
try:
    dist.all_reduce(x)
    sys.exit(0)
finally:
    if sys.argv[1] == "destroys":
        dist.destroy_process_group()
