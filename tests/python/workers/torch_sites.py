"""Ranks call different things through torch.distributed: the error names this program's lines."""

import sys

import torch
import torch.distributed as dist

import warren.torch

dist.init_process_group("warren")
try:
    dist.all_reduce(torch.ones(4 + dist.get_rank()))
except warren.Desync as error:
    assert str(error).count("at torch_sites.py:12") == 2, error
    print("named", flush=True)
    sys.exit(3)
