"""Warren on a Ray cluster: a function runs as the ranks of one job, and survives the actors and nodes that Ray loses.

    import numpy, ray, warren.ray

    def train(comm):
        state = {"w": numpy.zeros(3)}
        for epoch in comm.epochs(100, state):
            gradient = state["w"] - (comm.rank + 1)
            comm.allreduce(gradient, out=gradient)
            state["w"] -= 0.1 / comm.size * gradient
        return state["w"]

    ray.init()
    results = warren.ray.run(train, 4)              # a list: what each rank has returned

docs/dask-ray.md has the rest.
"""

from __future__ import annotations

import collections
import contextlib
import os
import signal
import threading
import time
import typing

import numpy
import ray
import ray.util
from ray.util.collective import register_collective_backend
from ray.util.collective.collective_group.base_collective_group import BaseGroup
from ray.util.collective.types import ReduceOp
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from ._cluster import FINALIZE_S, FINALIZED_S, LOGGER, OWN_SETTINGS, Job, Life, NotPlaced, Tracker, job_of
from ._communicator import Communicator, init

__all__ = ["NotPlaced", "communicator", "create_group", "destroy_group", "run"]

LOOK_S = 1.0  # how often the tracker is asked for ranks that are silent
# The last one: Ray's memory monitor has killed the actor.
LOST = (
    ray.exceptions.RayActorError, ray.exceptions.ObjectLostError, ray.exceptions.WorkerCrashedError,
    ray.exceptions.OutOfMemoryError,
)  # fmt: skip


def run(
    fn: typing.Callable[..., typing.Any],
    n: int,
    *,
    args: typing.Sequence[typing.Any] = (),
    each: typing.Sequence[typing.Any] | None = None,
    num_cpus: float = 1,
    num_gpus: float = 0,
    resources: dict[str, float] | None = None,
    strategy: str = "SPREAD",
    restarts: int = 20,
    timeout: float = 300.0,
    **options: typing.Any,
) -> list[typing.Any]:
    """Runs fn(comm, *args) as the n ranks of one job, each in an actor: a list of what each rank returned.

    fn: gets its rank's communicator as the first argument, and does not finalize it. Its results are those of an
    undisturbed run if it keeps to the rules of docs/python.md.
    args: the same for all ranks. each: n items, of which rank r gets each[r] after its communicator. References to Ray's
    objects are what they stand for, as in Ray's own calls.
    num_cpus, num_gpus, resources: what each rank takes. strategy: of the placement group that holds them.
    restarts: how often a rank may be started again. timeout: for how many seconds a rank waits for room.
    options: settings of warren.init, for all ranks: data_dir="/scratch/job", round_timeout_ms=5000, ….

    Raises what fn raises on any rank, as ray.get does, with a note that names the rank; the other ranks end. ValueError:
    the cluster has no room for n ranks. NotPlaced: a rank has found no room in time, or was started too often. On
    Ctrl-C, and whenever this call ends, the ranks end.
    """
    if each is not None and len(each) != n:
        raise ValueError(f"run: each has {len(each)} items for {n} ranks")
    if not ray.is_initialized():
        ray.init()
    takes = {name: amount for name, amount in {"CPU": num_cpus, "GPU": num_gpus, **(resources or {})}.items() if amount}
    with job_of("ray", fn, n, ray.util.get_node_ip_address(), restarts, options) as (job, tracker):
        room = sum(_room(node["Resources"], takes, n) for node in ray.nodes() if node["Alive"])
        if room < n:
            raise ValueError(f"run: {n} ranks need more than the cluster has: there is room for {room}, with {takes} for each")
        ranks = _Ranks(job, tracker, fn, args, each, takes, strategy, timeout)
        try:
            results = ranks.results()
            ranks.finalize()
            return results
        finally:
            ranks.end()


def _room(has: dict[str, float], takes: dict[str, float], most: int) -> int:
    return min([most, *(int(has.get(name, 0) // amount) for name, amount in takes.items())])


class _Rank:
    """The actor of a life: a process of its own."""

    def __init__(self, index: int, job: Job):
        self._released = threading.Event()
        self._life = Life(job, index, lambda: not self._released.is_set())

    def run(self, fn: typing.Any, has_item: bool, item: typing.Any, *args: typing.Any) -> typing.Any:
        def call(comm: Communicator) -> typing.Any:
            return fn(comm, *([item] if has_item else []), *args)

        return self._life.run(call)

    def where(self) -> tuple[str, int]:
        return ray.get_runtime_context().get_node_id(), os.getpid()

    def stay(self) -> None:
        """Never returns: the driver hears by it that this process is lost."""
        threading.Event().wait()

    def release(self) -> bool:
        """The rank finalizes when all of them are released: whether it has."""
        self._released.set()
        return self._life.wait(FINALIZE_S)


# Its calls beside `run` have threads of their own.
_ACTOR: typing.Any = ray.remote(concurrency_groups={"control": 4})(_Rank)


def _kill(process: int) -> None:
    os.kill(process, signal.SIGKILL)


class _Ranks:
    """The ranks of a job: which actor each has, and what it has returned."""

    def __init__(
        self,
        job: Job,
        tracker: Tracker | None,
        fn: typing.Callable[..., typing.Any],
        args: typing.Sequence[typing.Any],
        each: typing.Sequence[typing.Any] | None,
        takes: dict[str, float],
        strategy: str,
        timeout: float,
    ):
        self._job, self._tracker, self._takes, self._timeout = job, tracker, takes, timeout
        self._fn = ray.put(fn)  # once for all lives
        self._args = [_put(arg) for arg in args]
        self._each = None if each is None else [_put(item) for item in each]
        self._lives: collections.Counter[int] = collections.Counter()
        self._actors: dict[int, typing.Any] = {}
        self._runs: dict[typing.Any, int] = {}  # the ranks of references to results
        self._stays: dict[typing.Any, int] = {}
        self._where: dict[int, typing.Any] = {}  # references to what _Rank.where returns
        self._begun: dict[int, float] = {}  # when the actor was made
        self._asked: dict[int, tuple[float, typing.Any]] = {}  # ranks that are silent: since when, and a call to them
        self._next_look = 0.0
        self._group = ray.util.placement_group([dict(takes)] * job.size, strategy=strategy)

    def results(self) -> list[typing.Any]:
        found: dict[int, typing.Any] = {}
        if not self._group.wait(self._timeout):
            raise NotPlaced(f"the ranks of job {self._job.name} have found no room for {self._timeout:g} s: others use "
                            f"what the cluster has, {ray.available_resources()} is free")  # fmt: skip
        for each in range(self._job.size):
            self._begin(each)
        while len(found) < self._job.size:
            # The result of a rank comes before the news of its loss.
            ready, _ = ray.wait([*self._runs, *self._stays], timeout=LOOK_S)
            for reference in ready:
                if (rank := self._runs.pop(reference, None)) is not None:
                    try:
                        found[rank] = ray.get(reference)
                    except LOST:
                        self._begin(rank)
                    except ray.exceptions.RayTaskError as error:
                        if not hasattr(error, "__notes__"):
                            error.__notes__ = list(getattr(error.cause, "__notes__", ()))
                        raise
                elif (rank := self._stays.pop(reference, None)) is not None:
                    self._begin(rank)
            self._look()
        return [found[rank] for rank in range(self._job.size)]

    def finalize(self) -> None:
        ray.wait([actor.release.remote() for actor in self._actors.values()], num_returns=self._job.size, timeout=FINALIZED_S)

    def end(self) -> None:
        for actor in self._actors.values():
            ray.kill(actor)
        ray.util.remove_placement_group(self._group)

    def _begin(self, rank: int) -> None:
        """A new life of the rank."""
        self._runs = {reference: of for reference, of in self._runs.items() if of != rank}
        self._stays = {reference: of for reference, of in self._stays.items() if of != rank}
        self._asked.pop(rank, None)
        if (old := self._actors.pop(rank, None)) is not None:
            ray.kill(old)
        if self._lives[rank] > self._job.restarts:
            raise NotPlaced(f"rank {rank} of job {self._job.name} was started {self._lives[rank]} times, and its actor was "
                            f"lost each time: restarts is {self._job.restarts}")  # fmt: skip
        self._lives[rank] += 1
        actor = _ACTOR.options(
            num_cpus=self._takes.get("CPU", 0), num_gpus=self._takes.get("GPU", 0),
            resources={name: amount for name, amount in self._takes.items() if name not in ("CPU", "GPU")},
            max_restarts=0, scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, rank),
        ).remote(rank, self._job)  # fmt: skip
        self._actors[rank] = actor
        self._begun[rank] = time.monotonic()
        self._where[rank] = self._control(actor.where)
        self._stays[self._control(actor.stay)] = rank
        has_item = self._each is not None
        item = self._each[rank] if self._each is not None else None
        self._runs[actor.run.remote(self._fn, has_item, item, *self._args)] = rank

    @staticmethod
    def _control(method: typing.Any) -> typing.Any:
        return method.options(concurrency_group="control").remote()

    def _look(self) -> None:
        """Replaces ranks whose processes neither Warren nor Ray has an answer of, and ends the wait for room."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + LOOK_S
        placed = set(ray.wait(list(self._where.values()), num_returns=len(self._where), timeout=0)[0])
        for rank, reference in self._where.items():
            if reference not in placed and now - self._begun[rank] > self._timeout:
                raise NotPlaced(f"rank {rank} of job {self._job.name} has found no room for {self._timeout:g} s: others use "
                                f"what the cluster has, {ray.available_resources()} is free")  # fmt: skip
        if self._tracker is None:
            return
        self._tracker.check()
        silent = {rank for rank in self._tracker.silent() if self._where[rank] in placed}
        self._asked = {rank: asked for rank, asked in self._asked.items() if rank in silent}
        for rank in silent:
            if rank not in self._asked:
                self._asked[rank] = now, self._control(self._actors[rank].where)
            since, answer = self._asked[rank]
            if ray.wait([answer], timeout=0)[0]:
                del self._asked[rank]  # its process runs, or is known to be lost
            elif now - since > int(self._job.options.get("round_timeout_ms", 10000)) / 1000:
                node, process = ray.get(self._where[rank])
                LOGGER.warning("rank %d of job %s, process %d, is silent: it is killed, and begins anew", rank,
                               self._job.name, process)  # fmt: skip
                # A process that is stopped does not hear ray.kill.
                here = NodeAffinitySchedulingStrategy(node, soft=False)
                ray.remote(_kill).options(num_cpus=0, max_retries=0, scheduling_strategy=here).remote(process)
                self._begin(rank)


def _put(value: typing.Any) -> typing.Any:
    return value if isinstance(value, ray.ObjectRef) else ray.put(value)


# ---- ray.util.collective's backend "warren" ----

_TRACKERS: dict[str, typing.Any] = {}  # of the groups that this process has created
_GROUPS: dict[str, _WarrenGroup] = {}  # that this process is in
_OPERATIONS: dict[typing.Any, typing.Any] = {ReduceOp.SUM: "sum", ReduceOp.PRODUCT: "product", ReduceOp.MIN: "min", ReduceOp.MAX: "max"}


def create_group(world_size: int, group_name: str = "default", **options: typing.Any) -> None:
    """Makes a job for a group of ray.util.collective, with a tracker in an actor of this node.

    Called by the driver, once for a group, before its actors call init_collective_group(world_size, rank,
    backend="warren", group_name=group_name). The group lasts as long as the driver. options: settings of warren.init,
    for all ranks; on_rollback is "exit" unless it is among them.
    """
    if own := sorted(set(options) & (set(OWN_SETTINGS) | {"job", "tracker", "secret_file"}) - {"on_rollback"}):
        raise ValueError(f"create_group: {', '.join(own)}: the group sets that itself")
    if group_name in _TRACKERS:
        raise ValueError(f"create_group: this process has created the group {group_name!r} already")
    actor = ray.remote(num_cpus=0)(_GroupTracker).options(
        name=_tracker_name(group_name),
        scheduling_strategy=NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False),
    ).remote(group_name, world_size, options)  # fmt: skip
    ray.get(actor.job.remote())
    _TRACKERS[group_name] = actor


def destroy_group(group_name: str = "default") -> None:
    """Ends the tracker of a group that this process has created. Ranks that are still in the group end their calls."""
    actor = _TRACKERS.pop(group_name)
    ray.get(actor.end.remote())
    ray.kill(actor)


def communicator(group_name: str = "default") -> Communicator:
    """The communicator of a group that this process is in, for load_checkpoint, checkpoint, epochs and all else."""
    return _GROUPS[group_name].comm


def _tracker_name(group_name: str) -> str:
    return f"warren-tracker-of-{group_name}"


class _GroupTracker:
    """The actor of a group's tracker, which ends with it."""

    def __init__(self, group_name: str, world_size: int, options: dict[str, typing.Any]):
        self._stack = contextlib.ExitStack()
        host = ray.util.get_node_ip_address()
        self._job, _ = self._stack.enter_context(job_of("ray-group", create_group, world_size, host, 0, options))

    def job(self) -> Job:
        return self._job

    def end(self) -> None:
        self._stack.close()


class _WarrenGroup(BaseGroup):  # type: ignore[misc, unused-ignore]
    """A group of ray.util.collective over a communicator. Tensors are arrays of the CPU that Warren takes."""

    def __init__(self, world_size: int, rank: int, group_name: str):
        super().__init__(world_size, rank, group_name)
        try:
            tracker = ray.get_actor(_tracker_name(group_name))
        except ValueError as error:
            raise RuntimeError(f"the driver has not called warren.ray.create_group({world_size}, {group_name!r})") from error
        job: Job = ray.get(tracker.job.remote())
        with contextlib.ExitStack() as stack:
            given = {"job": job.name, "tracker": job.tracker, "worker_id": str(rank), "world_size": world_size, **job.options}
            if job.secret is not None:
                given["secret_file"] = stack.enter_context(job.secret.file())
            self.comm = init(**given)
        _GROUPS[group_name] = self

    @classmethod
    def backend(cls) -> str:
        return "WARREN"

    @classmethod
    def check_backend_availability(cls) -> bool:
        return True

    def destroy_group(self) -> None:
        """Collective: waits for all ranks."""
        _GROUPS.pop(self._group_name, None)
        self.comm.finalize()
        self.comm.destroy()

    def allreduce(self, tensors: typing.Any, options: typing.Any) -> None:
        self.comm.allreduce(tensors[0], _OPERATIONS[options.reduceOp], out=tensors[0])

    def barrier(self, options: typing.Any = None) -> None:
        self.comm.barrier()

    def reduce(self, tensors: typing.Any, options: typing.Any) -> None:
        out = tensors[0] if self.comm.rank == options.root_rank else None
        self.comm.reduce(tensors[0], _OPERATIONS[options.reduceOp], options.root_rank, out=out)

    def broadcast(self, tensors: typing.Any, options: typing.Any) -> None:
        self.comm.broadcast(tensors[0], options.root_rank)

    def allgather(self, tensor_lists: typing.Any, tensors: typing.Any, options: typing.Any = None) -> None:
        for into, part in zip(tensor_lists[0], self.comm.allgather(tensors[0]), strict=True):
            into[...] = part

    def reducescatter(self, tensors: typing.Any, tensor_lists: typing.Any, options: typing.Any) -> None:
        parts = numpy.stack(tensor_lists[0])
        self.comm.reduce_scatter(parts, _OPERATIONS[options.reduceOp], out=tensors[0])

    def send(self, tensors: typing.Any, options: typing.Any) -> None:
        self.comm.send(tensors[0], options.dst_rank)

    def recv(self, tensors: typing.Any, options: typing.Any) -> None:
        self.comm.recv(tensors[0], options.src_rank)


with contextlib.suppress(ValueError):  # registered already
    register_collective_backend("WARREN", _WarrenGroup)
