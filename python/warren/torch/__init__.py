"""PyTorch over Warren: torch.distributed with a backend whose workers may be killed at any moment.

    import torch.distributed as dist
    import warren.torch

    dist.init_process_group("warren")
    model = torch.nn.parallel.DistributedDataParallel(make_model())
    optimizer = torch.optim.Adam(model.parameters())
    training = warren.torch.Training(model=model, optimizer=optimizer)
    for epoch in training.epochs(20):
        for x, y in loader:
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()
    dist.destroy_process_group()

`warren run -n 4 -- python train.py` starts it. docs/pytorch.md has the rest.
"""

from __future__ import annotations

import os
import typing

import torch
import warren
from warren import _core

from . import _job
from ._hook import HookState, comm_hook
from ._optimizer import DistributedOptimizer, broadcast_optimizer_state, broadcast_parameters
from ._process_group import ProcessGroup, register
from ._sampler import Sampler
from ._training import Training

__all__ = [
    "DistributedOptimizer",
    "HookState",
    "ProcessGroup",
    "Sampler",
    "Training",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "comm_hook",
    "init",
    "register",
]

_core._add_layer(os.path.dirname(torch.__file__) + os.sep)
register()


def init(**options: typing.Any) -> warren.Communicator:
    """The communicator of this process. The first call joins the job: with options, as warren.init has them.

    init_process_group("warren") makes the first call if the program has not.
    """
    return _job.join(**options).comm
