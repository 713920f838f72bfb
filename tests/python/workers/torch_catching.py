"""Ranks end their loop by an exception, and destroy the process group while they handle it. Argument: what follows.

`ends`: the program ends well. `fails`: rank 0's first life ends with exit code 3. `again`: it joins anew.
"""

import os
import sys

import torch
import torch.distributed as dist

import warren.torch


class Enough(Exception):
    pass


def main():
    dist.init_process_group("warren")
    x = torch.ones(2)
    dist.all_reduce(x)
    if sys.argv[1] != "ends" and dist.get_rank() == 0 and first_life:
        raise Enough
    dist.all_reduce(x)
    assert x.tolist() == [4, 4]
    raise Enough


first_life = os.environ["WARREN_ATTEMPT"] == "0"
for _ in range(2):
    try:
        main()
    except Enough:
        rank = dist.get_rank()
        dist.destroy_process_group()
        if rank == 0 and first_life and sys.argv[1] == "fails":
            sys.exit(3)
        if rank != 0 or not first_life or sys.argv[1] != "again":
            break
        first_life = False
print("done", flush=True)
