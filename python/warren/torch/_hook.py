"""DDP's communication hook: gradients by Warren, in programs whose process group is of another backend."""

# Annotations are objects here, not texts: torch compares those of the hook.
import torch
import torch.distributed as dist

import warren

from . import _job
from ._process_group import ProcessGroup


class HookState:
    """The state of comm_hook: a communicator, and how float32 gradients travel.

    comm: a communicator of this process's job, or a group of it; None: all ranks. wire: "f16", "bf16" or "i8"; None: as
    they are.
    """

    def __init__(self, comm: warren.Group | None = None, *, wire: str | None = None):
        job = _job.join()
        self.comm: warren.Group = job.comm if comm is None else comm
        self.wire = wire
        self._group = ProcessGroup(job, self.comm, is_world=False)  # torch.distributed does not know it

    def average(self, tensor: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        """Begins to replace the tensor by its average over the ranks, and returns a future of it."""
        work = self._group.average(tensor, self.wire if tensor.dtype == torch.float32 else None)
        return work.get_future().then(lambda done: done.value()[0])


def comm_hook(state: HookState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A hook for DistributedDataParallel that averages gradients by Warren during the backward pass.

        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        warren.torch.broadcast_parameters(model.state_dict())
        model = DistributedDataParallel(model)
        model.register_comm_hook(warren.torch.HookState(), warren.torch.comm_hook)

    The process group may be of each process alone, as here: a group that processes share does not survive them.
    """
    return state.average(bucket.buffer())
