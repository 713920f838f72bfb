"""Tensors come back from a checkpoint's bytes with their elements, and in their order in memory, which sums follow from."""

import collections

import torch

from warren import _state
from warren.torch import _states

images = torch.randn(8, 3, 5, 7).to(memory_format=torch.channels_last)
for tensor in (images, images.bfloat16(), images.transpose(0, 3), torch.randn(4, 5).t(), torch.randn(3, 4), torch.tensor(3.0)):
    data = b"".join(_state.encode(_states.encode({"exp_avg": tensor})))
    back = _states.decode(_state.decode(data))["exp_avg"]
    assert torch.equal(tensor, back) and back.dtype == tensor.dtype
    assert back.stride() == tensor.stride(), (tensor.shape, tensor.stride(), back.stride())

try:
    _states.restore(torch.zeros(4, 5), _states.array_of(torch.ones(5, 4)), "weight")
except ValueError as error:
    assert "weight is torch.float32 of shape (4, 5), and in the checkpoint float32 of shape (5, 4)" in str(error), error
else:
    raise AssertionError("another shape was taken")
for tensor in (torch.tensor(3.0), torch.ones(2, 3).bfloat16()):
    place = torch.zeros_like(tensor)
    _states.restore(place, _states.array_of(tensor), "weight")
    assert torch.equal(place, tensor)

schedule = torch.optim.lr_scheduler.MultiStepLR(torch.optim.SGD([torch.ones(1)], lr=1.0), [2, 2, 5])
back = _states.decode(_state.decode(b"".join(_state.encode(_states.encode(schedule.state_dict())))))
assert type(back["milestones"]) is collections.Counter and back["milestones"] == schedule.milestones, back
print("states are equal")
