"""The communicator of a job: collectives are _core's, and checkpoints and epochs lie over it here."""

from __future__ import annotations

import dataclasses
import typing
import warnings
import zlib

from . import _core
from ._errors import InvalidArgument

if typing.TYPE_CHECKING:
    import logging  # the program imports it if it has a logger

    from ._log import LogLines


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """What load_checkpoint found."""

    version: int
    """How many checkpoints the program had taken."""
    state: typing.Any
    """The state that all ranks gave."""
    local: typing.Any
    """This rank's local state; None where none was given, or where the job had another number of ranks."""
    world_size: int
    """How many ranks the job had then."""


class Communicator(_core.Communicator):
    """A worker's place in a job. Made by warren.init.

    As a context manager it ends the job in order: at the end of the block it is finalized, which waits for all ranks,
    and destroyed. A block that an exception leaves is destroyed without finalize: the others wait for this worker's
    next life. One thread at a time may make calls.
    """

    def __init__(self, options: dict[str, typing.Any], logger: logging.Logger | None = None):
        self._log_lines: LogLines | None = None
        self._loaded = False
        checked = _core.Options(options)
        if logger is None:
            super().__init__(checked)
            return
        from ._log import LogLines

        self._log_lines = LogLines(logger)
        try:
            super().__init__(checked, self._log_lines.queue)
        except BaseException:
            self._log_lines.wait_for_last()
            raise

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            if kind is None and self.is_open:
                self.finalize()
        finally:
            self.destroy()

    def __repr__(self) -> str:
        return f"<warren.Communicator: {f'rank {self.rank} of {self.size}' if self.is_open else 'closed'}>"

    def destroy(self) -> None:
        """Leaves the job, and closes the communicator and those split from it.

        Without finalize the other ranks wait for this worker's next life.
        """
        super().destroy()
        if self._log_lines is not None:
            self._log_lines.wait_for_last()

    def checkpoint(
        self, state: typing.Any, local: typing.Any = None, *, root: int | None = None, pickle: bool = False
    ) -> None:
        """Collective. Returns when a copy of the state is taken; it is stored and committed behind the program's back.

        Comes after load_checkpoint. state: equal on all ranks, with the same order of a dict's keys, else Desync. local:
        this rank's own; either all ranks give one or none does. Both are arrays, numbers, str, bytes,
        numpy.random.Generator, and dicts, lists and tuples of these. TypeError: the state holds something else.
        root: the rank whose state is that of all; the `state` of other ranks is not looked at. pickle: other objects are
        pickled. As pickles of equal objects differ between processes, it is then the root's state that counts, which is
        rank 0 if none is given. Not in mode shrink.
        """
        from . import _state

        own = None if local is None else _state.encode(local, pickle)
        if root is None and not pickle:
            self._checkpoint(_state.encode(state), own)
            return
        root = root or 0
        self._checkpoint_from(root, _state.encode(state, pickle) if self.rank == root else [], own)

    def lazy_checkpoint(self, make_state: typing.Callable[[], typing.Any], *, pickle: bool = False) -> None:
        """Collective. Takes a checkpoint whose state `make_state()` returns later, if it is still needed then.

        make_state: called once, on the thread of the next call of this job (a collective, a message, a checkpoint,
        finalize), before that call does anything. It returns a state as of `checkpoint`, equal on all ranks, and makes
        no calls. What it reads must not change between the last call before the checkpoint and the return of the first
        one after it. Should it raise something, the call that runs it fails with Internal, raised from that, and this
        worker's life in the job is over. There is no local state. The next load_checkpoint loads it as any other.
        """
        from . import _state

        self._lazy_checkpoint(lambda: b"".join(_state.encode(make_state(), pickle)))

    def load_checkpoint(self, *, pickle: bool = False) -> Checkpoint | None:
        """Collective, once a life: the newest committed checkpoint, or None at the beginning of the job.

        pickle: whether pickled objects may be unpickled, which runs code of theirs; without it they are a TypeError.
        """
        from . import _state

        version, state, local = self._load_checkpoint()
        self._loaded = True
        if version == 0:
            return None
        return Checkpoint(
            version,
            _state.decode(state, pickle),
            None if local is None else _state.decode(local, pickle),
            self._checkpoint_world_size,
        )

    def epochs(
        self, count: int, state: dict[str, typing.Any], *, local: dict[str, typing.Any] | None = None, every: int = 1
    ) -> Epochs:
        """Collective: loads the newest checkpoint into `state`, and iterates over the epochs that are left of `count`.

        After each `every` epochs, and after the last one, a checkpoint of `state` is taken. state: a dict with all that
        the program continues from. It is restored in place: its arrays keep their memory. Results of the loop have to get
        into it: `state["w"] -= step` or `state["w"] = …`. local: the same, of this rank alone; all ranks give one, or
        none does. A program has one such loop.
        The loop computes from the state, the epoch and the data alone: a random generator that is not in the
        state is made anew in each epoch. ValueError, at a checkpoint: an array has another shape or type than before the
        loop, or a dict has lost a key, so that a restarted worker could not restore the state. Lists may grow, and dicts
        may get more keys.
        """
        return Epochs(self, count, state, local, every)


class Epochs:
    """The epochs that are left of a loop; see Communicator.epochs."""

    def __init__(
        self,
        comm: Communicator,
        count: int,
        state: dict[str, typing.Any],
        local: dict[str, typing.Any] | None,
        every: int,
    ):
        if not isinstance(state, dict) or not isinstance(local, (dict, type(None))):
            raise TypeError("epochs: state and local are dicts, which are restored in place")
        if count < 0 or every < 1:
            raise ValueError(f"epochs: count is {count}, and every is {every}; they are at least 0 and 1")
        if comm._loaded:
            raise InvalidArgument(
                "epochs: this program has loaded already; a program has one loop of epochs, which loads by itself"
            )
        self._comm, self._count, self._state, self._local, self._every = comm, count, state, local, every
        self._next = 0  # the epoch that comes next
        self._inside = False
        self._begun: int | None = None  # what the state was before the first epoch, as a checksum
        from . import _state

        self._outlines = [_state.outline(part) for part in (state, local)]  # what a restarted worker restores into
        loaded = comm.load_checkpoint()
        if loaded is None:
            self._begun = self._checksum()
        else:
            self._restore(loaded)

    def _restore(self, loaded: Checkpoint) -> None:
        from . import _state

        saved = loaded.state
        if not isinstance(saved, dict) or saved.keys() != {"epochs", "state"}:
            raise InvalidArgument("epochs: the newest checkpoint is not of such a loop: the program has changed since")
        _state.copy_into(self._state, saved["state"])
        if self._local is not None and loaded.local is not None:
            _state.copy_into(self._local, loaded.local)
        self._next = saved["epochs"]

    def _check_that_it_can_be_restored(self) -> None:
        from . import _state

        try:
            for before, now in zip(self._outlines, (self._state, self._local)):
                _state.copy_into(_state.outline(before), now)
        except ValueError as error:
            raise ValueError(
                f"epochs: {error}. A restarted worker could not restore that in place: arrays keep their shape and type, "
                "and dicts their keys; lists may grow, and dicts get more keys"
            ) from None

    def _checksum(self) -> int:
        from . import _state

        checksum = 0
        for part in [*_state.encode(self._state), *([] if self._local is None else _state.encode(self._local))]:
            checksum = zlib.crc32(part, checksum)
        return checksum

    def _end_epoch(self) -> None:
        self._next += 1
        if self._begun is not None:
            if self._begun == self._checksum():
                warnings.warn(
                    "the state that epochs() was given is the same after the first epoch: put what the loop computes "
                    'into it (state["w"] = w), or a restarted worker goes on without it',
                    RuntimeWarning,
                    stacklevel=3,
                )
            self._begun = None
        if self._next % self._every == 0 or self._next == self._count:
            self._check_that_it_can_be_restored()
            self._comm.checkpoint({"epochs": self._next, "state": self._state}, self._local)

    def __iter__(self) -> Epochs:
        return self

    def __next__(self) -> int:
        if self._inside:
            self._inside = False
            self._end_epoch()
        if self._next >= self._count:
            raise StopIteration
        self._inside = True
        return self._next


def init(*, logger: logging.Logger | None = None, **options: typing.Any) -> Communicator:
    """Joins the job and waits until all of it is there.

    logger: gets the library's log lines, on a thread of their own, in place of standard error.

    options: any setting by its name in docs/settings.md, such as world_size=4. What is not given, or None, comes from
    WARREN_* variables, the file that WARREN_CONFIG names, the launcher, or the default. A value is a str, a path, a
    bool, an int, or such text as variables have (chunk_bytes="1M"). TypeError: an unknown name. InvalidArgument: a
    value that the setting cannot have. Other errors: the job cannot be joined.
    """
    return Communicator(options, logger)
