"""Horovod's way: an optimizer that averages gradients over the ranks, while the backward pass computes the next ones."""

from __future__ import annotations

import contextlib
import typing

import torch

import warren

from . import _job
from ._process_group import _array, _moved

BUCKET_BYTES = 4 << 20  # gradients that are sent together, at least, as long as there are more


def DistributedOptimizer(  # noqa: N802: as Horovod's users know it
    optimizer: typing.Any, *, op: str = "average", wire: str | None = None, backward_passes_per_step: int = 1
) -> typing.Any:
    """Makes an optimizer combine its gradients over all ranks before each step, and returns it.

    op: "average" or "sum". wire: "f16", "bf16" or "i8": how float32 gradients travel. backward_passes_per_step: so many
    backward passes are added up locally before gradients travel. Gradients travel in an order of their own, from the last
    parameter to the first, so that ranks may use other parameters; where a rank has no gradient it adds zeros.

        optimizer.synchronize()                         # to clip combined gradients
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with optimizer.skip_synchronize():
            optimizer.step()

    A learning rate scheduler is made after it.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"DistributedOptimizer: optimizer is {type(optimizer).__name__}")
    if "step" in optimizer.__dict__:
        raise ValueError("DistributedOptimizer: something has replaced the optimizer's step: make its scheduler afterwards")
    if op not in ("average", "sum") or backward_passes_per_step < 1:
        raise ValueError(f"DistributedOptimizer: op is {op!r}, backward_passes_per_step {backward_passes_per_step}")
    kind = type(optimizer)
    optimizer.__class__ = type(kind.__name__, (_Distributed, kind), {})
    typing.cast(typing.Any, optimizer)._begin(op, wire, backward_passes_per_step)
    return optimizer


class _Distributed:
    """The methods of a distributed optimizer; the class that it was of comes after them."""

    def _begin(self, op: str, wire: str | None, passes: int) -> None:
        self._job = _job.join()
        self._op: typing.Any = op
        self._wire: typing.Any = wire
        self._passes = passes
        groups: typing.Any = self.param_groups  # type: ignore[attr-defined]
        parameters = [p for group in groups for p in group["params"] if p.requires_grad][::-1]
        self._buckets: list[list[torch.nn.Parameter]] = [[]]
        size = 0
        for parameter in parameters:
            if size >= BUCKET_BYTES:
                self._buckets.append([])
                size = 0
            self._buckets[-1].append(parameter)
            size += parameter.nbytes
        self._bucket_of = {parameter: i for i, bucket in enumerate(self._buckets) for parameter in bucket}
        self._skip = False
        self._reset()
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(self._ready)

    def _reset(self) -> None:
        self._seen = dict.fromkeys(self._bucket_of, 0)  # backward passes that have given a gradient
        self._missing = [len(bucket) for bucket in self._buckets]
        self._sent = 0  # buckets
        self._handles: list[warren.Handle[typing.Any]] = []

    def _ready(self, parameter: torch.nn.Parameter) -> None:
        """A backward pass has added to this gradient."""
        self._seen[parameter] += 1
        if self._seen[parameter] > self._passes:
            raise RuntimeError(
                f"DistributedOptimizer: more than {self._passes} backward passes before step(): give "
                "backward_passes_per_step"
            )
        if self._seen[parameter] == self._passes:
            self._missing[self._bucket_of[parameter]] -= 1
            while self._sent < len(self._buckets) and self._missing[self._sent] == 0:
                self._send()

    def _send(self) -> None:
        bucket = self._buckets[self._sent]
        self._sent += 1
        for parameter in bucket:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            elif parameter.grad.is_sparse:
                raise ValueError("DistributedOptimizer: sparse gradients are not served: make them dense")
            elif not parameter.grad.is_contiguous():
                parameter.grad = parameter.grad.contiguous()
        gradients = [_array(parameter.grad) for parameter in bucket if parameter.grad is not None]
        with self._job.enter(), self._job.comm.fuse():
            for parameter, gradient in zip(bucket, gradients):
                wire = self._wire if parameter.dtype == torch.float32 else None
                self._handles.append(self._job.comm.allreduce_async(gradient, self._op, gradient, wire=wire))

    def synchronize(self) -> None:
        """Waits until all gradients are combined, and sends those that the backward passes have not given."""
        while self._sent < len(self._buckets):
            self._send()
        for handle in self._handles:
            self._job.wait(handle)
        self._reset()

    @contextlib.contextmanager
    def skip_synchronize(self) -> typing.Iterator[None]:
        """A block in which step() takes gradients as they are: synchronize() has been called."""
        self._skip = True
        try:
            yield
        finally:
            self._skip = False

    def step(self, closure: typing.Any = None) -> typing.Any:
        if closure is not None:
            raise ValueError("DistributedOptimizer: step takes no closure")
        if not self._skip:
            self.synchronize()
        return super().step()  # type: ignore[misc]

    def zero_grad(self, set_to_none: bool = True) -> None:
        if self._handles:
            raise RuntimeError("DistributedOptimizer: zero_grad comes after step or synchronize, as gradients are under way")
        super().zero_grad(set_to_none)  # type: ignore[misc]


def broadcast_parameters(
    parameters: typing.Mapping[str, torch.Tensor] | typing.Iterable[tuple[str, torch.Tensor]], root_rank: int = 0
) -> None:
    """Writes the root's tensors, of a state_dict or of named_parameters(), to those of all ranks, in the order given."""
    job = _job.join()
    items = parameters.items() if isinstance(parameters, typing.Mapping) else parameters
    copies = []
    handles = []
    for name, tensor in items:
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"broadcast_parameters: {name} is {type(tensor).__name__}, which is no tensor")
        flat = tensor.detach().contiguous()
        copies.append((tensor, flat))
        with job.enter():
            handles.append(job.comm.broadcast_async(_moved(flat), root_rank))
    for handle, (tensor, flat) in zip(handles, copies):
        job.wait(handle)
        if flat.data_ptr() != tensor.data_ptr():
            with torch.no_grad():
                tensor.copy_(flat)


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int = 0) -> None:
    """Gives all ranks the root's state of the optimizer, by pickle."""
    job = _job.join()
    with job.enter():
        state = job.comm.broadcast_object(optimizer.state_dict() if job.comm.rank == root_rank else None, root_rank)
    if job.comm.rank != root_rank:
        optimizer.load_state_dict(state)
