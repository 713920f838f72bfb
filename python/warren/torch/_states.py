"""States of torch's objects as states that a checkpoint takes, and back.

Tensors are arrays; those whose type NumPy does not know are arrays of bytes. A DTensor is this rank's part of it.
"""

from __future__ import annotations

import collections
import sys
import typing

import torch

NUMPY_TYPES = {
    torch.bool: "bool", torch.int8: "int8", torch.uint8: "uint8", torch.int16: "int16", torch.int32: "int32",
    torch.int64: "int64", torch.float16: "float16", torch.float32: "float32", torch.float64: "float64",
}  # fmt: skip


def is_shard(value: typing.Any) -> bool:
    """Whether it is a DTensor. A program without any has not imported their module, which takes half a second."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if is_shard(tensor) else tensor


def array_of(tensor: torch.Tensor) -> typing.Any:
    """This rank's part of the tensor, as an array that a checkpoint takes; it shares memory with tensors of the CPU."""
    tensor = local_part(tensor).detach().cpu().contiguous()
    if tensor.dtype in NUMPY_TYPES:
        return tensor.numpy()
    return tensor.reshape(-1).view(torch.uint8).numpy()


def order_of(tensor: torch.Tensor) -> list[int] | None:
    """The dimensions as they lie in memory, the slowest first; None: as in C, or with gaps.

    Sums of floats follow from the order in memory, and tensors that are made like a parameter have its order.
    """
    if tensor.is_contiguous():
        return None
    order = sorted(range(tensor.dim()), key=lambda dimension: -tensor.stride(dimension))
    return order if tensor.permute(order).is_contiguous() else None


def tensor_of(array: typing.Any, dtype: torch.dtype, shape: typing.Sequence[int]) -> torch.Tensor:
    tensor = torch.from_numpy(array)
    if dtype not in NUMPY_TYPES:
        tensor = tensor.view(dtype)
    return tensor.reshape(tuple(shape))


def restore(tensor: torch.Tensor, array: typing.Any, name: str) -> None:
    """Writes what array_of() gave into the tensor, where it is."""
    place = local_part(tensor)
    known = place.dtype in NUMPY_TYPES  # others are bytes, which have no shape
    if (
        place.nbytes != array.nbytes
        or NUMPY_TYPES.get(place.dtype, "uint8") != array.dtype.name
        or (known and tuple(place.shape) != array.shape)
    ):
        raise ValueError(
            f"{name} is {place.dtype} of shape {tuple(place.shape)}, and in the checkpoint {array.dtype} of shape "
            f"{array.shape}: what is trained has changed since"
        )
    with torch.no_grad():
        place.copy_(tensor_of(array, place.dtype, place.shape))


def encode(value: typing.Any) -> typing.Any:
    """A state_dict, or a part of one. Equal ones give equal states, whatever the order of their keys."""
    if isinstance(value, torch.Tensor):
        return {
            "tensor": array_of(value), "type": str(value.dtype).removeprefix("torch."), "shape": list(local_part(value).shape),
            "order": order_of(local_part(value)), "sharded": is_shard(value),
        }  # fmt: skip
    if isinstance(value, dict):
        items = sorted(value.items(), key=lambda item: (type(item[0]).__name__, item[0]))
        encoded: dict[str, typing.Any] = {"items": [[key, encode(item)] for key, item in items]}
        return {**encoded, "counts": True} if isinstance(value, collections.Counter) else encoded
    if isinstance(value, (list, tuple)):
        return {"tuple" if isinstance(value, tuple) else "list": [encode(item) for item in value]}
    return value  # the checkpoint says by name where it is of a type that it does not take


def decode(state: typing.Any) -> typing.Any:
    if isinstance(state, dict):
        if "tensor" in state:
            tensor = tensor_of(state["tensor"], getattr(torch, state["type"]), state["shape"])
            if (order := state["order"]) is not None:
                place = torch.empty([tensor.shape[i] for i in order], dtype=tensor.dtype)
                tensor = place.permute([order.index(i) for i in range(len(order))]).copy_(tensor)
            return _Shard(tensor) if state["sharded"] else tensor
        if "items" in state:
            items = {key: decode(item) for key, item in state["items"]}
            return collections.Counter(items) if "counts" in state else items
        if "tuple" in state:
            return tuple(decode(item) for item in state["tuple"])
        return [decode(item) for item in state["list"]]
    return state


class _Shard:
    """This rank's part of a DTensor, whose mesh only the program knows."""

    def __init__(self, local: torch.Tensor):
        self.local = local


def has_shards(value: typing.Any) -> bool:
    """Whether a state_dict holds DTensors."""
    if isinstance(value, dict):
        return any(has_shards(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return any(has_shards(item) for item in value)
    return is_shard(value)


def join_shards(optimizer: torch.optim.Optimizer, state: typing.Any) -> typing.Any:
    """An optimizer's state_dict with DTensors like its parameters in place of shards."""
    if not any(is_shard(parameter) for group in optimizer.param_groups for parameter in group["params"]):
        return state
    from torch.distributed.tensor import DTensor

    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]

    def joined(value: typing.Any, parameter: typing.Any) -> typing.Any:
        if isinstance(value, _Shard):
            return DTensor.from_local(
                value.local.to(parameter.device), parameter.device_mesh, parameter.placements, run_check=False,
                shape=parameter.shape, stride=parameter.stride(),
            )  # fmt: skip
        if isinstance(value, dict):
            return {key: joined(item, parameter) for key, item in value.items()}
        return value

    of_parameters = {index: joined(value, parameters[index]) for index, value in state["state"].items()}
    return {**state, "state": of_parameters}
