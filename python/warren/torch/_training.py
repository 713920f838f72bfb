"""Models, optimizers, samplers and random numbers in checkpoints."""

from __future__ import annotations

import random
import typing

import numpy
import torch

import warren

from . import _job, _states
from ._ddp import renew
from ._sampler import Sampler


class Stateful(typing.Protocol):
    def state_dict(self) -> typing.Any: ...
    def load_state_dict(self, state: typing.Any) -> object: ...


class Training:
    """All that a training continues from.

        training = warren.torch.Training(model=model, optimizer=optimizer)
        for epoch in training.epochs(20):
            for x, y in loader:
                ...

    Parts have names: modules (DDP's and FSDP2's too), optimizers, schedulers, samplers, and other objects with state_dict
    and load_state_dict. They are equal on all ranks, but for a module's buffers, DTensors, and the parts named in
    `local`. The state of the random numbers of torch (on the CPU and on GPUs), NumPy and Python is each rank's own.

    A checkpoint drops gradients, on all ranks, and makes DDP as new. So it is taken between steps.
    """

    def __init__(self, *, local: typing.Collection[str] = (), **parts: torch.nn.Module | Stateful):
        if unknown := set(local) - parts.keys():
            raise ValueError(f"Training: local names {', '.join(sorted(unknown))}, and there is no such part")
        for name, part in parts.items():
            if not hasattr(part, "state_dict") or not hasattr(part, "load_state_dict"):
                raise TypeError(f"Training: {name} is {type(part).__name__}, which has no state_dict and load_state_dict")
        self.epoch = 0
        """The epoch that is under way, or comes next."""
        self.batch = 0
        """How many batches of this epoch are done; batches() counts them."""
        self._parts, self._local = parts, frozenset(local)
        self._job = _job.join()
        self._loaded = False
        self._random: typing.Any = None  # to be restored once a loader has drawn its seed again

    @property
    def comm(self) -> warren.Communicator:
        return self._job.comm

    def load(self, *, random: bool = True) -> int:
        """Collective, once a life: restores the newest checkpoint into the parts, if there is one. Returns its version.

        Modules are made, DDP's and FSDP2's too, and groups, before it. random: False leaves the random numbers to
        restore_random(), for programs that draw some between the load and the place where checkpoints are taken.
        """
        if self._loaded:
            raise warren.InvalidArgument("Training: this life has loaded already")
        self._loaded = True
        with self._job.enter():
            loaded = self.comm.load_checkpoint()
        if loaded is not None:
            if not isinstance(loaded.state, dict) or not {"parts", "epoch", "batch"} <= loaded.state.keys():
                raise warren.InvalidArgument("Training: the newest checkpoint is not of a Training: the program has changed")
            self._restore(loaded.state, loaded.local)
            if random and self.batch == 0:
                self.restore_random()
        self._renew()
        return 0 if loaded is None else loaded.version

    def checkpoint(self) -> None:
        """Collective: takes a checkpoint of all parts, between steps."""
        if not self._loaded:
            raise warren.InvalidArgument("Training: checkpoint comes after load, or within epochs")
        state: dict[str, typing.Any] = {
            "epoch": self.epoch, "batch": self.batch, "names": sorted(self._parts), "parts": {}, "buffers": {},
        }  # fmt: skip
        own: dict[str, typing.Any] = {"parts": {}, "random": _random_state()}
        with self._job.enter():
            for name, part in self._parts.items():
                if isinstance(part, torch.nn.Module):
                    tensors = _tensors_of(part)
                    buffers = {key for key, _ in part.named_buffers()}
                    differing = tensors.keys() if name in self._local else buffers
                    shards = {key for key, tensor in tensors.items() if _states.is_shard(tensor)}
                    arrays = {key: _states.array_of(tensor) for key, tensor in tensors.items()}
                    state["parts"][name] = {key: arrays[key] for key in arrays.keys() - differing - shards}
                    own["parts"][name] = {key: arrays[key] for key in differing | shards}
                    state["buffers"][name] = self._of_rank_0({key: arrays[key] for key in sorted(differing - shards)})
                    continue
                value = part.state_dict()
                place = own if name in self._local or _states.has_shards(value) else state
                place["parts"][name] = _states.encode(value)
            self.comm.checkpoint(state, own)
        self._renew()

    def _of_rank_0(self, arrays: dict[str, numpy.ndarray]) -> dict[str, numpy.ndarray]:
        """Rank 0's arrays, on all ranks: what a job of another size continues from."""
        if not arrays:
            return {}
        data = numpy.concatenate([array.reshape(-1).view(numpy.uint8) for array in arrays.values()])
        self.comm.broadcast(data)
        ends = numpy.cumsum([array.nbytes for array in arrays.values()])
        return {
            key: data[end - array.nbytes : end].view(array.dtype).reshape(array.shape)
            for (key, array), end in zip(arrays.items(), ends)
        }

    def epochs(self, count: int, every: int = 1) -> typing.Iterator[int]:
        """Collective: loads the newest checkpoint, and iterates over the epochs that are left of `count`.

        After each `every` epochs, and after the last one, a checkpoint is taken.
        """
        if count < 0 or every < 1:
            raise ValueError(f"epochs: count is {count}, and every is {every}; they are at least 0 and 1")
        self.load()
        return self._epochs(count, every)

    def _epochs(self, count: int, every: int) -> typing.Iterator[int]:
        while self.epoch < count:
            for sampler in self._samplers():
                sampler.set_epoch(self.epoch)
            yield self.epoch
            self.epoch, self.batch = self.epoch + 1, 0
            for sampler in self._samplers():
                sampler.set_epoch(self.epoch)
            if self.epoch % every == 0 or self.epoch == count:
                self.checkpoint()

    def batches(self, loader: typing.Iterable[typing.Any], every: int | None = None) -> typing.Iterator[typing.Any]:
        """The batches that are left of the epoch, from a loader whose sampler is one of the parts.

        every: a checkpoint is taken after so many batches. A life that begins in the midst of an epoch continues with the
        samples that no rank has had in it. ValueError: no part holds the place of this loader, so such a life would get
        the epoch's first samples again.
        """
        samplers = self._samplers_of(loader)
        if every is not None and not samplers and not self._holds_place_of(loader):
            raise ValueError("batches: `every` takes checkpoints in the midst of an epoch, and the loader's sampler is no part: "
                             "a restarted worker would get the epoch's first samples again. Use warren.torch.Sampler, and name "
                             "it in Training(sampler=…)")  # fmt: skip
        samples = self.comm.size * _batch_size(loader) if samplers else 0
        batches = iter(loader)
        self.restore_random()  # the iterator has drawn a seed, as it has when the epoch began
        for batch in batches:
            yield batch
            self.batch += 1
            for sampler in samplers:
                sampler.used += samples
            if every is not None and self.batch % every == 0:
                self.checkpoint()

    def _samplers(self) -> list[Sampler]:
        return [part for part in self._parts.values() if isinstance(part, Sampler)]

    def _samplers_of(self, loader: typing.Any) -> list[Sampler]:
        """The parts that deal out the loader's samples; the only sampler, of a loader that does not say."""
        own = getattr(loader, "sampler", None), getattr(getattr(loader, "batch_sampler", None), "sampler", None)
        samplers = self._samplers()
        if len(samplers) < 2:
            return samplers
        if not any(part in own for part in samplers):
            raise ValueError("batches: several parts are samplers, and none of them is the loader's own")
        return [part for part in samplers if part in own]

    def _holds_place_of(self, loader: typing.Any) -> bool:
        """Whether a part may: of a stream, or of what is no DataLoader, only the program knows."""
        data = torch.utils.data
        if not isinstance(loader, data.DataLoader) or isinstance(loader.dataset, data.IterableDataset):
            return True
        batches = loader.batch_sampler
        holders = loader, loader.dataset, loader.sampler, batches, getattr(batches, "sampler", None)
        return any(part is holder for part in self._parts.values() for holder in holders)

    def _renew(self) -> None:
        for part in self._parts.values():
            if isinstance(part, torch.nn.Module):
                for parameter in part.parameters():
                    parameter.grad = None
                renew(part)

    def _restore(self, state: typing.Any, own: typing.Any) -> None:
        if state["names"] != sorted(self._parts):
            raise ValueError(f"Training: the parts are {sorted(self._parts)}, and in the checkpoint {state['names']}")
        self.epoch, self.batch = state["epoch"], state["batch"]
        for name, part in self._parts.items():
            if isinstance(part, torch.nn.Module):
                # None: the job had another number of ranks, and rank 0's buffers are everybody's.
                others = state["buffers"][name] if own is None else own["parts"][name]
                self._restore_module(name, part, {**state["parts"][name], **others})
                continue
            if own is None and name not in state["parts"]:
                raise ValueError(f"Training: {name} is each rank's own, and the job had another number of ranks")
            value = _states.decode((state if name in state["parts"] else own)["parts"][name])
            part.load_state_dict(_states.join_shards(part, value) if isinstance(part, torch.optim.Optimizer) else value)
        if own is not None:
            self._random = own["random"]

    def _restore_module(self, name: str, module: torch.nn.Module, arrays: dict[str, numpy.ndarray]) -> None:
        tensors = _tensors_of(module)
        if missing := arrays.keys() ^ tensors.keys():
            raise ValueError(f"Training: {name} and the checkpoint differ in {', '.join(sorted(missing)[:5])}")
        for key, tensor in tensors.items():
            _states.restore(tensor, arrays[key], f"{name}.{key}")

    def restore_random(self) -> None:
        """Sets the random numbers to those of the checkpoint, if they were not set since load()."""
        if self._random is not None:
            _set_random_state(self._random)
            self._random = None


def _batch_size(loader: typing.Any) -> int:
    """How many samples a batch of the loader has."""
    size = getattr(loader, "batch_size", None)
    if size is None and (of_batches := getattr(loader, "batch_sampler", None)) is not None:
        size = getattr(of_batches, "batch_size", None)
        if not isinstance(size, int):
            raise ValueError(
                f"batches: the loader's batch_sampler is {type(of_batches).__name__}, which has no batch_size: nobody "
                "knows how many samples are used"
            )
    return 1 if size is None else int(size)


def _tensors_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers, also those that its state_dict leaves out."""
    if any(key.endswith("_extra_state") for key in module.state_dict()):
        raise TypeError("Training: a module has get_extra_state, which checkpoints do not hold: make it a part of its own")
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _random_state() -> dict[str, typing.Any]:
    _, keys, position, has_gauss, gauss = numpy.random.get_state(legacy=True)
    version, words, next_gauss = random.getstate()
    return {
        "torch": torch.get_rng_state().numpy(),
        "cuda": [state.numpy() for state in torch.cuda.get_rng_state_all()] if torch.cuda.is_initialized() else [],
        "numpy": [keys, int(position), int(has_gauss), float(gauss)],
        "python": [version, numpy.array(words, numpy.uint32), next_gauss],
    }


def _set_random_state(state: dict[str, typing.Any]) -> None:
    torch.set_rng_state(torch.from_numpy(state["torch"]))
    if state["cuda"]:
        torch.cuda.set_rng_state_all([torch.from_numpy(one) for one in state["cuda"]])
    numpy.random.set_state(("MT19937", *state["numpy"]))
    version, words, next_gauss = state["python"]
    random.setstate((version, tuple(words.tolist()), next_gauss))
