"""This process's place in the job, as torch.distributed sees it: a communicator, its lock, and a rendezvous."""

from __future__ import annotations

import atexit
import importlib
import os
import select
import sys
import threading
import typing
import urllib.parse
import weakref

import torch.distributed as dist
import warren

# A thread that alone makes calls waits inside them, and looks this often, in seconds, whether it is still alone.
ALONE_S = 0.02
ADDRESS = "warren"  # MASTER_ADDR of a process that `python -m warren.torch` has started


class ProcessStore(dist.Store):
    """A torch.distributed.Store of this process alone.

    The backend finds its peers by Warren's tracker, so a store that rank 0 serves, and that would die with it, is not
    needed. Torch itself reads from a store only what the same process has written. A key that another rank would have
    to write is an error at once instead of a wait.
    """

    def __init__(self) -> None:
        super().__init__()
        self._values: dict[str, bytes] = {}

    def _known(self, key: str) -> bytes:
        if key not in self._values:
            raise dist.DistStoreError(
                f"the store of the backend \"warren\" has no key {key!r}: the store is of this process alone. Send "
                "values by a collective, such as broadcast_object_list. If the program has asked for another backend, "
                "such as \"gloo\": name \"warren\" in init_process_group and new_group, as others find no peers by this store"
            )
        return self._values[key]

    def set(self, key: str, value: str | bytes) -> None:
        self._values[key] = value.encode() if isinstance(value, str) else bytes(value)

    def get(self, key: str) -> bytes:
        return self._known(key)

    def add(self, key: str, value: int) -> int:
        total = int(self._values.get(key, b"0")) + value
        self._values[key] = str(total).encode()
        return total

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        expected = expected.encode() if isinstance(expected, str) else bytes(expected)
        if self._values.get(key, b"") == expected:
            self.set(key, desired)
        return self._values.get(key, expected)

    def wait(self, keys: list[str], timeout: object = None) -> None:
        for key in keys:
            self._known(key)

    def check(self, keys: list[str]) -> bool:
        return all(key in self._values for key in keys)

    def delete_key(self, key: str) -> bool:
        return self._values.pop(key, None) is not None

    def num_keys(self) -> int:
        return len(self._values)

    def set_timeout(self, timeout: object) -> None:
        """Nothing waits here."""


class Job:
    """A communicator that several threads make calls on, one at a time.

    DDP issues allreduces from autograd's threads while the program's thread may issue others.
    """

    def __init__(self, comm: warren.Communicator):
        self.comm = comm
        self.store = ProcessStore()  # torch keeps its C++ part alone
        self.lock = threading.RLock()
        # Process groups that may have threads, which end when no call can be under way any more. The job does not keep
        # a group that the program has given up.
        self.groups: weakref.WeakSet[typing.Any] = weakref.WeakSet()
        self.other_threads = False  # whether threads beside the first one have made calls
        self._first_thread = threading.get_ident()

    def wait(self, handle: warren.Handle[typing.Any]) -> typing.Any:
        """Waits until the call has finished, and returns its result, or raises what it has failed with.

        A thread that alone makes calls waits inside one, which is quickest: it moves the bytes itself. With other
        threads about it leaves the communicator to them.
        """
        if threading.get_ident() != self._first_thread:
            self.other_threads = True  # it would hold the lock that the first thread needs for its next call
        while not self.other_threads:
            try:
                with self.lock:
                    return handle.wait(ALONE_S)
            except TimeoutError as error:
                if isinstance(error, warren.Error):
                    raise
        poll = select.poll()
        with self.lock:
            poll.register(handle._completion_descriptor(), select.POLLIN)
        poll.poll()
        with self.lock:
            return handle.wait()

    def enter(self) -> typing.Any:
        """The lock under which a thread makes calls that do not wait."""
        if threading.get_ident() != self._first_thread:
            self.other_threads = True
        return self.lock


_job: Job | None = None
_leaves_later = False  # the program has left while it handled an exception: how it ends decides
_exit_code: object = None  # what sys.exit() was called with since then


def join(**options: typing.Any) -> Job:
    """The job of this process, which is joined by the first call."""
    global _job
    if _leaves_later:  # the program tries again: a new life
        abandon()
    if _job is None:
        # DDP and the first optimizer import it, which takes a second: a spare has it when its turn comes.
        importlib.import_module("torch._dynamo")
        _job = Job(warren.init(**options))
        atexit.register(_end_open_job)
    elif options:
        raise ValueError("warren.torch.init: this process has joined its job already; options come with the first call")
    return _job


def joined() -> Job | None:
    return _job


def leave() -> None:
    """Ends this worker's part in the job, in order. While an exception is handled, the end of the program decides.

    The exception may end the program (`finally`), or may be its way to end a loop (`except`). If the program then ends
    well, the worker finalizes at the end. If the program fails, the worker's next life takes its place.
    """
    global _leaves_later, _exit_code
    if not fails():
        _finalize()
    elif isinstance(sys.exc_info()[1], SystemExit):  # with another code than 0
        abandon()
    elif _job is not None and not _leaves_later:
        _leaves_later, _exit_code = True, None
        _watch_exit()


def _finalize() -> None:
    if _job is not None and _job.comm.is_open:
        with _job.enter():
            _job.comm.finalize()
        abandon()


def _watch_exit() -> None:
    """Keeps the code of sys.exit(), which functions of atexit cannot ask for. `raise SystemExit(1)` is not seen."""
    exit = sys.exit

    def exit_and_tell(code: object = None, /) -> typing.NoReturn:
        global _exit_code
        _exit_code = code
        exit(code)  # type: ignore[arg-type]

    sys.exit = exit_and_tell


def fails() -> bool:
    """Whether an exception has been raised that is being handled, or that ends the program."""
    error = sys.exc_info()[1]
    if isinstance(error, SystemExit) and error.code in (None, 0):  # as sys.exit() ends a program that has ended well
        error = None
    return error is not None or getattr(sys, "last_value", None) is not None


def abandon() -> None:
    """Ends this worker's part in the job, whose next life continues, if the job is not finished."""
    global _job, _leaves_later
    job, _job, _leaves_later = _job, None, False
    if job is not None and job.comm.is_open:
        with job.enter():
            job.comm.destroy()
        for group in list(job.groups):
            group.end_completer()


def _end_open_job() -> None:
    if _leaves_later and getattr(sys, "last_value", None) is None and _exit_code in (None, 0):
        _finalize()
    # An exception that ended the program says enough.
    if _job is not None and _job.comm.is_open and not _leaves_later and getattr(sys, "last_value", None) is None:
        print(
            "warren: the program ends without torch.distributed.destroy_process_group(), which ends the job: for the "
            "launcher this worker has failed",
            file=sys.stderr,
        )
    abandon()


def _serve(rank: int | None, world_size: int | None) -> typing.Iterator[tuple[dist.Store, int, int]]:
    job = join()
    comm = job.comm
    for name, given, actual in (("rank", rank, comm.rank), ("world_size", world_size, comm.size)):
        if given is not None and given not in (-1, actual):
            raise ValueError(f"init_process_group: {name} is {given}, and Warren's tracker says {actual}")
    yield job.store, comm.rank, comm.size
    raise RuntimeError("a rendezvous of Warren's is made once")


def _asked(url: str) -> tuple[int | None, int | None]:
    query = urllib.parse.parse_qs(urllib.parse.urlparse(url).query)
    rank, world_size = (int(query[name][0]) if name in query else None for name in ("rank", "world_size"))
    return rank, world_size


def _by_url(url: str, **options: object) -> typing.Iterator[tuple[dist.Store, int, int]]:
    return _serve(*_asked(url))


def offer_rendezvous() -> None:
    """Makes init_process_group() work without an address, in programs that have none: those of `warren run`.

    With MASTER_ADDR in the environment, as torchrun sets it, torch's own rendezvous is made.
    """
    rendezvous: typing.Any = importlib.import_module("torch.distributed.rendezvous")  # a function hides it
    handlers = rendezvous._rendezvous_handlers
    if "warren" in handlers:
        return
    by_environment = handlers["env"]

    def by_environment_or_tracker(url: str, **options: typing.Any) -> typing.Any:
        if os.environ.get("MASTER_ADDR", ADDRESS) == ADDRESS:
            return _serve(*_asked(url))
        return by_environment(url, **options)

    rendezvous.register_rendezvous_handler("warren", _by_url)
    handlers["env"] = by_environment_or_tracker
