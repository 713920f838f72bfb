"""Works that are asked before they can be complete, on several threads; and groups that are given up."""

import gc
import os
import select
import threading
import weakref

import torch
import torch.distributed as dist

import warren.torch
from warren.torch import _job


class Handle:
    """A call that ends when `end` is called, and tells whether a thread has waited inside it."""

    def __init__(self):
        self.receiver, self.sender = os.pipe()
        self.waited_inside = False

    def _completion_descriptor(self):
        return self.receiver

    def end(self):
        os.write(self.sender, b"x")

    def wait(self, seconds=None):
        if not select.select([self.receiver], [], [], seconds)[0]:
            self.waited_inside = True
            raise TimeoutError
        return "result"


dist.init_process_group("warren")
rank = dist.get_rank()

# Rank 1 sends once rank 0 has asked whether its works are complete.
incoming = [torch.zeros(3), torch.zeros(5)]
if rank == 0:
    (together,) = dist.batch_isend_irecv([dist.P2POp(dist.irecv, tensor, 1) for tensor in incoming])
    assert not together.is_completed()
    dist.send(torch.zeros(1), 1)
    together.wait()
    assert together.is_completed() and [tensor[0] for tensor in incoming] == [3, 5]
else:
    dist.recv(torch.empty(1), 0)
    for tensor in incoming:
        dist.send(torch.full_like(tensor, len(tensor)), 0)

# A second thread that waits leaves the lock to the first one.
job, handle, results = _job.join(), Handle(), []
job.other_threads = False
second = threading.Thread(target=lambda: results.append(job.wait(handle)))
second.start()
while not job.other_threads and not handle.waited_inside:
    pass
assert not handle.waited_inside
handle.end()
second.join()
assert results == ["result"]

# A group that has had a thread goes once it is destroyed.
group = dist.new_group()
dist.all_reduce(torch.ones(1), group=group, async_op=True).get_future().wait()
assert len(job.groups) == 2
gone = weakref.ref(group)
dist.destroy_process_group(group)
del group
gc.collect()
assert gone() is None, gc.get_referrers(gone())
assert len(job.groups) == 1
print("works are complete")
dist.destroy_process_group()
