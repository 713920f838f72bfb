"""Warren on a Dask cluster: a function runs as the ranks of one job, and survives the workers that Dask loses.

    import dask.distributed, numpy, warren.dask

    def train(comm):
        state = {"w": numpy.zeros(3)}
        for epoch in comm.epochs(100, state):
            gradient = state["w"] - (comm.rank + 1)
            comm.allreduce(gradient, out=gradient)
            state["w"] -= 0.1 / comm.size * gradient
        return state["w"]

    client = dask.distributed.Client("scheduler:8786")
    results = warren.dask.run(client, train, 4)     # a list: what each rank has returned

docs/dask-ray.md has the rest.
"""

from __future__ import annotations

import collections
import contextlib
import concurrent.futures
import queue
import threading
import time
import typing

import distributed
from distributed.core import Status

from ._cluster import LOGGER, Job, Life, NotPlaced, Tracker, address_towards, job_of

if typing.TYPE_CHECKING:
    from ._communicator import Communicator

__all__ = ["NotPlaced", "run"]

LOOK_S = 0.1  # how often the cluster is asked for its workers
GONE = (Status.closing, Status.closed, Status.failed, Status.stopped)


def run(
    client: distributed.Client,
    fn: typing.Callable[..., typing.Any],
    n: int,
    *,
    args: typing.Sequence[typing.Any] = (),
    each: typing.Sequence[typing.Any] | None = None,
    resources: dict[str, float] | None = None,
    ranks_per_worker: int = 1,
    restarts: int = 20,
    timeout: float = 300.0,
    **options: typing.Any,
) -> list[typing.Any]:
    """Runs fn(comm, *args) as the n ranks of one job on workers of the cluster: a list of what each rank returned.

    fn: gets its rank's communicator as the first argument, and does not finalize it. Its results are those of an
    undisturbed run if it keeps to the rules of docs/python.md.
    args: the same for all ranks. each: n items, of which rank r gets each[r] after its communicator. Futures and other
    collections of Dask's among both are what they stand for, as in client.submit.
    resources: what each rank takes of its worker, such as {"GPU": 1}: ranks run where there is so much.
    ranks_per_worker: how many ranks of the job a worker process may have.
    restarts: how often a rank may be started again. timeout: for how many seconds a rank waits for a worker.
    options: settings of warren.init, for all ranks: data_dir="/scratch/job", round_timeout_ms=5000, ….

    Raises what fn raises on any rank, with a note that names the rank; the other ranks end. ValueError: the cluster has
    fewer workers than n ranks need. NotPlaced: a rank has found no worker in time, or was started too often. On Ctrl-C,
    and whenever this call ends, the ranks end.
    """
    if client.asynchronous:
        raise TypeError("run: the client is asynchronous; run() waits: give it a client of its own, in a thread")
    if each is not None and len(each) != n:
        raise ValueError(f"run: each has {len(each)} items for {n} ranks")
    if ranks_per_worker < 1:
        raise ValueError(f"run: ranks_per_worker is {ranks_per_worker}")
    host = distributed.comm.get_address_host(client.scheduler.address)
    if client.scheduler.address.startswith("inproc:"):
        host = "127.0.0.1"
    with job_of("dask", fn, n, address_towards(host), restarts, options) as (job, tracker):
        ranks = _Ranks(client, job, tracker, fn, args, each, resources or {}, ranks_per_worker, timeout)
        try:
            return ranks.results()
        finally:
            ranks.release()


def _rank(
    index: int, item: typing.Any, *, job: Job, fn: typing.Any, args: typing.Sequence[typing.Any], has_item: bool
) -> typing.Any:
    """The task of a life. The rank stays in the job after it, as long as the scheduler wants the task's result."""
    worker = distributed.get_worker()
    key = worker.get_current_task()

    def wanted() -> bool:
        task = worker.state.tasks.get(key)
        return worker.status not in GONE and task is not None and task.state not in ("cancelled", "released", "error")

    def call(comm: Communicator) -> typing.Any:
        return fn(comm, *([item] if has_item else []), *args)

    return Life(job, index, wanted).run(call)


class _Ranks:
    """The ranks of a job: which life of each is where, and what it has returned."""

    def __init__(
        self,
        client: distributed.Client,
        job: Job,
        tracker: Tracker | None,
        fn: typing.Callable[..., typing.Any],
        args: typing.Sequence[typing.Any],
        each: typing.Sequence[typing.Any] | None,
        resources: dict[str, float],
        ranks_per_worker: int,
        timeout: float,
    ):
        self._client, self._job, self._tracker = client, job, tracker
        self._each, self._resources, self._per_worker, self._timeout = each, resources, ranks_per_worker, timeout
        self._call = {"fn": fn, "args": tuple(args), "job": job, "has_item": each is not None}
        self._futures: dict[int, distributed.Future] = {}
        self._where: dict[int, str] = {}  # the worker's address; none while a rank has no worker
        self._lives: collections.Counter[int] = collections.Counter()
        self._unplaced: dict[int, float] = {}  # since when
        self._done: queue.SimpleQueue[tuple[int, distributed.Future, typing.Any, BaseException | None]] = queue.SimpleQueue()
        self._fetching = concurrent.futures.ThreadPoolExecutor(4, thread_name_prefix="warren-results")
        self._stopped: set[str] = set()  # workers that get no more ranks
        self._next_look_for_stopped = 0.0

    def results(self) -> list[typing.Any]:
        found: dict[int, typing.Any] = {}
        everybody = range(self._job.size)
        room = sum(self._free(self._workers()).values())
        if room < self._job.size:
            raise ValueError(
                f"run: {self._job.size} ranks need more workers than the cluster has: there is room for {room}, with "
                f"{self._per_worker} in each process{f' that has {self._resources}' if self._resources else ''}; start "
                "workers, and client.wait_for_workers()"
            )
        self._place(list(everybody))
        while len(found) < self._job.size:
            try:
                rank, future, value, error = self._done.get(timeout=LOOK_S)
            except queue.Empty:
                self._look()
                continue
            if future is not self._futures.get(rank):
                continue  # of a life before
            if error is None:
                found[rank] = value
            elif isinstance(error, distributed.scheduler.KilledWorker):  # too often for Dask
                self._place([rank])
            else:
                raise error
        return [found[rank] for rank in everybody]

    def release(self) -> None:
        """The ranks finalize if they have their results, and end their calls if not."""
        self._client.cancel(list(self._futures.values()), force=True)
        self._futures.clear()
        self._fetching.shutdown(wait=False, cancel_futures=True)

    def _workers(self) -> dict[str, typing.Any]:
        workers: dict[str, typing.Any] = self._client.scheduler_info(n_workers=-1)["workers"]
        return workers

    def _free(self, workers: dict[str, typing.Any]) -> dict[str, int]:
        """How many more ranks each worker may have."""
        taken = collections.Counter(self._where.values())
        free = {}
        for address, worker in workers.items():
            room = [self._per_worker, worker["nthreads"]]
            room += [int(worker["resources"].get(name, 0) // amount) for name, amount in self._resources.items() if amount]
            if worker["status"] == "running" and address not in self._stopped and min(room) > taken[address]:
                free[address] = min(room) - taken[address]
        return free

    def _place(self, ranks: list[int]) -> None:
        """Starts a life of each of these ranks where there is room. What finds none waits for a worker."""
        for rank in ranks:
            self._where.pop(rank, None)
            if (old := self._futures.pop(rank, None)) is not None:
                self._client.cancel([old], force=True)
            self._unplaced.setdefault(rank, time.monotonic())
        workers = self._workers()
        free = self._free(workers)
        busy = {address: len(keys) for address, keys in self._client.processing(list(free)).items()} if free else {}
        placed: dict[int, str] = {}
        for rank in ranks:
            if not free:
                break
            # The least busy one, and of those one on a host that has few ranks of the job.
            on_host = collections.Counter(_host(address) for address in (*self._where.values(), *placed.values()))
            address = min(free, key=lambda a: (busy.get(a, 0), on_host[_host(a)]))
            placed[rank] = address
            busy[address] = busy.get(address, 0) + 1
            free[address] -= 1
            if not free[address]:
                del free[address]
        for rank, address in placed.items():
            if self._lives[rank] > self._job.restarts:
                raise NotPlaced(f"rank {rank} of job {self._job.name} was started {self._lives[rank]} times, and its "
                                f"worker was lost each time: restarts is {self._job.restarts}")  # fmt: skip
            self._lives[rank] += 1
            self._where[rank] = address
            del self._unplaced[rank]
            future = self._client.submit(
                _rank, rank, None if self._each is None else self._each[rank], **self._call,
                key=f"warren-{self._job.name}-rank-{rank}-life-{self._lives[rank]}", workers=[address],
                allow_other_workers=False, resources=self._resources or None, retries=0,
            )  # fmt: skip
            self._futures[rank] = future
            future.add_done_callback(lambda done, rank=rank: self._fetch_soon(rank, done))

    def _fetch_soon(self, rank: int, future: distributed.Future) -> None:
        with contextlib.suppress(RuntimeError):  # after release
            self._fetching.submit(self._fetch, rank, future)

    def _fetch(self, rank: int, future: distributed.Future) -> None:
        try:
            self._done.put((rank, future, future.result(), None))
        except BaseException as error:
            self._done.put((rank, future, None, error))

    def _look(self) -> None:
        """Starts ranks again whose workers the scheduler has lost, and restarts workers that are stopped."""
        if self._tracker is not None:
            self._tracker.check()
        addresses = self._client.nthreads()
        lost = [rank for rank, address in self._where.items() if address not in addresses]
        if lost or self._unplaced:
            self._place(sorted({*lost, *self._unplaced}))
        now = time.monotonic()
        if self._tracker is not None and now >= self._next_look_for_stopped:
            self._next_look_for_stopped = now + 1
            self._look_for_stopped(self._tracker)
        for rank, since in self._unplaced.items():
            if now - since > self._timeout:
                raise NotPlaced(f"rank {rank} of job {self._job.name} has found no worker for {self._timeout:g} s: the "
                                f"cluster has {len(addresses)} workers")  # fmt: skip


    def _look_for_stopped(self, tracker: Tracker) -> None:
        """Replaces the lives of ranks whose workers neither Warren nor Dask has heard, and restarts these workers.

        Such a process is stopped, swapped out or cut off. Dask itself gives it up after its `worker-ttl`, 5 minutes.
        """
        silent = {rank: self._where[rank] for rank in tracker.silent() if rank in self._where}
        if not silent:
            return
        workers = self._workers()
        newest = max((worker["last_seen"] for worker in workers.values()), default=0.0)
        timeout = int(self._job.options.get("round_timeout_ms", 10000)) / 1000
        longest = max(timeout, 3 * distributed.scheduler.heartbeat_interval(len(workers)))
        stopped = {rank: a for rank, a in silent.items() if a in workers and newest - workers[a]["last_seen"] > longest}
        self._stopped.update(stopped.values())
        for address in set(stopped.values()):
            LOGGER.warning("worker %s has been silent for %g s: its ranks move, and its nanny, if it has one, is told to "
                           "restart it", address, longest)  # fmt: skip
            if workers[address].get("nanny"):
                threading.Thread(target=self._restart, args=(address,), name="warren-restart", daemon=True).start()
        if stopped:
            self._place(sorted(stopped))

    def _restart(self, address: str) -> None:
        with contextlib.suppress(Exception):  # it may be gone, or its nanny
            self._client.restart_workers([address], timeout=2, raise_for_error=False)


def _host(address: str) -> str:
    return str(distributed.comm.get_address_host(address))
