"""DistributedDataParallel as it is in a process's first step, whatever steps were made before.

DDP puts gradients into buckets, one allreduce each. In its first step it makes one bucket of all gradients, or of a static
graph reduces them when all are there; then it learns in which order gradients come, and in its second step rank 0
broadcasts new buckets to all. A process that has been started again is in its first step while the others are in their
hundredth, and would make other calls than they. So each version begins with DDP as new, on all ranks.
"""

from __future__ import annotations

import typing

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def renew(module: typing.Any) -> None:
    """Makes DDP modules among the parts of a module as new. No collective. Gradients are dropped, as DDP keeps them."""
    for ddp in module.modules():
        if isinstance(ddp, DistributedDataParallel):
            _renew(ddp)


def _renew(ddp: typing.Any) -> None:
    if getattr(ddp, "_delay_all_reduce_all_params", False):
        return  # it has no reducer
    for parameter in ddp.parameters():
        parameter.grad = None  # with gradient_as_bucket_view it is a part of a bucket
    # The old reducer takes its hooks off the parameters when it goes.
    ddp.logger = None
    ddp.reducer = None
    parameters, expect_sparse_gradient = ddp._build_params_for_reducer()
    names = ddp._build_debug_param_to_name_mapping(parameters)
    ddp._ddp_init_helper(parameters, expect_sparse_gradient, names, ddp.static_graph)
    for hook, state in ddp._comm_hooks:
        dist._register_comm_hook(ddp.reducer, state, hook)
    if ddp.mixed_precision is not None:
        ddp.reducer._set_mixed_precision_param_dtype(ddp.mixed_precision.param_dtype)
    if any(hasattr(parameter, "_in_backward_optimizers") for parameter in ddp.parameters()):
        ddp.reducer._set_optimizer_in_backward()
    if ddp.static_graph:
        ddp._static_graph_delay_allreduce_enqueued = False
        ddp.reducer._set_static_graph()
        ddp.logger._set_static_graph()
    ddp._has_rebuilt_buckets = False
    # False after an evaluation, or within no_sync: the next forward would not broadcast buffers.
    ddp.require_forward_param_sync = True
