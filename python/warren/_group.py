"""What communicators of the job and of groups have beside _core's calls: objects, and fusion."""

from __future__ import annotations

import contextlib
import pickle
import typing

from . import _core
from ._errors import Error, InvalidArgument

if typing.TYPE_CHECKING:
    import numpy  # otherwise the first object imports it

Group = _core.Group


def _pickled(value: typing.Any) -> numpy.ndarray:
    import numpy

    return numpy.frombuffer(pickle.dumps(value, protocol=5), numpy.uint8)


def _padded(data: numpy.ndarray, length: int, call: str) -> numpy.ndarray:
    """The pickle in a buffer of the length that the ranks have agreed on. What comes after its end is not read.

    A worker that is started again, and pickles the object once more, may get another number of bytes than in its life
    before, whose number has been logged.
    """
    import numpy

    if len(data) > length:
        raise InvalidArgument(
            f"{call}: the object's pickle has {len(data)} bytes, and had {length} in this worker's life before: "
            "pickle it to bytes in an order that stays, and give these"
        )
    buffer = numpy.zeros(length, numpy.uint8)
    buffer[: len(data)] = data
    return buffer


def broadcast_object(self: Group, value: typing.Any, root: int = 0) -> typing.Any:
    """Collective: the root's object on all ranks, by pickle; other ranks' `value` is not looked at.

    Each rank unpickles a copy, the root too. Unpickling runs code of the sender's. Two rounds: length, and bytes.
    """
    import numpy

    own = _pickled(value) if self.rank == root else numpy.zeros(0, numpy.uint8)
    length = int(self.broadcast(numpy.array([len(own)], numpy.int64), root)[0])
    return pickle.loads(self.broadcast(_padded(own, length, "broadcast_object"), root).data)


def allgather_object(self: Group, value: typing.Any) -> list[typing.Any]:
    """Collective: all ranks' objects on all of them, in a list in the order of the ranks, by pickle.

    Unpickling runs code of the sender's. Two rounds: lengths, and bytes.
    """
    import numpy

    own = _pickled(value)
    lengths = self.allgather(numpy.array([len(own)], numpy.int64))[:, 0].tolist()
    data = self.allgatherv(_padded(own, lengths[self.rank], "allgather_object"), lengths)
    ends = numpy.cumsum(lengths).tolist()
    return [pickle.loads(data[end - length : end].data) for length, end in zip(lengths, ends)]


def gather_object(self: Group, value: typing.Any, root: int = 0) -> list[typing.Any] | None:
    """Collective: all ranks' objects at the root, in a list in the order of the ranks, by pickle; None elsewhere.

    Unpickling runs code of the sender's. Two rounds: the largest length, and bytes, as many for each rank.
    """
    own = _pickled(value)
    length = self.allreduce(len(own), "max")
    data = self.gather(_padded(own, length, "gather_object"), root)
    return None if data is None else [pickle.loads(part.data) for part in data]


def scatter_object(self: Group, values: typing.Sequence[typing.Any] | None, root: int = 0) -> typing.Any:
    """Collective: rank r gets the root's values[r], by pickle; other ranks' `values` is not looked at.

    Unpickling runs code of the sender's. Two rounds: the largest length, and bytes, as many for each rank.
    """
    import numpy

    parts: list[numpy.ndarray] = []
    if self.rank == root:
        if values is None or len(values) != self.size:
            given = "None" if values is None else f"{len(values)} objects"
            raise ValueError(f"scatter_object: values is {given} at the root; it has one for each of {self.size} ranks")
        parts = [_pickled(value) for value in values]
    length = int(self.broadcast(numpy.array([max(map(len, parts), default=0)], numpy.int64), root)[0])
    rows = numpy.stack([_padded(part, length, "scatter_object") for part in parts]) if parts else None
    return pickle.loads(self.scatter(rows, root, out=numpy.empty(length, numpy.uint8)).data)


@contextlib.contextmanager
def fuse(self: Group, max_bytes: int | None = None) -> typing.Iterator[None]:
    """A block in which asynchronous allreduces that follow each other are put together into rounds.

        with comm.fuse():
            handles = [comm.allreduce_async(gradient, out=gradient) for gradient in gradients]
        for handle in handles:
            handle.wait()

    max_bytes: of a round, equal on all ranks; None: the setting fusion_bytes. All ranks have the block, with the same
    calls in it. Messages, calls of other communicators and another block are InvalidArgument in it.
    """
    if max_bytes is not None and max_bytes < 0:
        raise ValueError(f"fuse: max_bytes is {max_bytes}")
    self._begin_fusion(-1 if max_bytes is None else max_bytes)
    try:
        yield
    except BaseException:
        with contextlib.suppress(Error):  # what the block raised says more
            self._end_fusion()
        raise
    self._end_fusion()


for _function in (broadcast_object, allgather_object, gather_object, scatter_object, fuse):
    setattr(Group, _function.__name__, _function)
