"""A sampler whose place in an epoch is part of the checkpoint."""

from __future__ import annotations

import typing

import torch

from . import _job


class Sampler(torch.utils.data.Sampler[int]):
    """Deals the samples of each epoch out to the ranks: each of them once, whatever fails, and with another number of ranks.

        loader = DataLoader(dataset, batch_size=32, sampler=sampler)
        training = warren.torch.Training(model=model, optimizer=optimizer, sampler=sampler)

    The order of an epoch follows from the seed and the epoch. Rank r gets each size-th sample of what is left, from the
    r-th on. All ranks get as many: where the rest does not divide, the first samples of the order fill it up, or with
    drop_last the rest is left out.
    """

    def __init__(
        self, dataset: typing.Sized | int, *, shuffle: bool = True, seed: int = 0, drop_last: bool = False
    ):
        """dataset: or how many samples there are."""
        self.length = dataset if isinstance(dataset, int) else len(dataset)
        self.shuffle, self.seed, self.drop_last = shuffle, seed, drop_last
        self.epoch = 0
        self.used = 0  # of this epoch, by all ranks
        comm = _job.join().comm
        self._rank, self._size = comm.rank, comm.size

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch, unless it is the one that is under way. Training.epochs() calls it."""
        if epoch != self.epoch:
            self.epoch, self.used = epoch, 0

    def __len__(self) -> int:
        left = max(self.length - self.used, 0)
        return left // self._size if self.drop_last else -(-left // self._size)

    def __iter__(self) -> typing.Iterator[int]:
        order = self._order()
        left = order[self.used :]
        share = len(self)
        if len(left) < share * self._size:
            fill = order * (-(-self._size // max(len(order), 1)))
            left = left + fill[: share * self._size - len(left)]
        return iter(left[self._rank : share * self._size : self._size])

    def _order(self) -> list[int]:
        if not self.shuffle:
            return list(range(self.length))
        draws = torch.Generator()
        draws.manual_seed((self.seed * 1000003 + self.epoch) % 2**63)
        return torch.randperm(self.length, generator=draws).tolist()  # type: ignore[no-any-return]

    def state_dict(self) -> dict[str, typing.Any]:
        return {"epoch": self.epoch, "used": self.used, "seed": self.seed, "length": self.length}

    def load_state_dict(self, state: dict[str, typing.Any]) -> None:
        if state["length"] != self.length or state["seed"] != self.seed:
            raise ValueError(
                f"Sampler: {self.length} samples and seed {self.seed}, and in the checkpoint {state['length']} and "
                f"{state['seed']}: what is trained has changed since"
            )
        self.epoch, self.used = state["epoch"], state["used"]
