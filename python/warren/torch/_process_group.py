"""The c10d backend "warren": torch.distributed's collectives and messages as calls of a communicator."""

from __future__ import annotations

import collections
import contextlib
import datetime
import threading
import typing

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend as C10dBackend
from torch.distributed import ReduceOp

import warren

from . import _job

Tensors = list[torch.Tensor]

DEVICES = ["cpu", "cuda"]
OPS = {
    ReduceOp.SUM: "sum",
    ReduceOp.AVG: "average",
    ReduceOp.PRODUCT: "product",
    ReduceOp.MIN: "min",
    ReduceOp.MAX: "max",
    ReduceOp.BAND: "bit_and",
    ReduceOp.BOR: "bit_or",
    ReduceOp.BXOR: "bit_xor",
}
NUMPY_TYPES = {
    torch.bool, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32,
    torch.float64,
    # Which torch has from 2.3 on.
    *(getattr(torch, name) for name in ("uint16", "uint32", "uint64") if hasattr(torch, name)),
}  # fmt: skip


def _op(given: object) -> typing.Any:
    """The name of a reduction of torch's."""
    for known, name in OPS.items():
        if given == known:
            return name
    raise ValueError(f"the backend \"warren\" has no {given}; it has {', '.join(name for name in OPS.values())}")


def _array(tensor: torch.Tensor) -> typing.Any:
    """A contiguous tensor as the communicator takes it, without a copy, for calls that compute with it."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.device.type == "cpu" and tensor.dtype in NUMPY_TYPES:
        return tensor.numpy()
    return tensor  # by DLPack: bfloat16, and tensors on a GPU


def _moved(tensor: torch.Tensor) -> typing.Any:
    """A contiguous tensor for calls that only move it: types that Warren does not know travel as bytes."""
    if tensor.dtype in NUMPY_TYPES or tensor.dtype == torch.bfloat16:
        return _array(tensor)
    return _array(tensor.detach().reshape(-1).view(torch.uint8))


def _contiguous(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself, or a copy where its elements do not follow one another."""
    if tensor.layout != torch.strided:
        raise TypeError(
            f"the backend \"warren\" takes dense tensors, and this one is {tensor.layout}: give tensor.to_dense(), or, "
            "for gradients, nn.Embedding(..., sparse=False)"
        )
    return tensor.contiguous()


class Work(dist.Work):
    """Calls that are under way. They are finished by whichever thread waits for them first."""

    def __init__(
        self,
        group: ProcessGroup,
        handles: list[warren.Handle[typing.Any]],
        tensors: Tensors,
        finish: typing.Callable[[], object] | None = None,
    ):
        """tensors: the results. finish: called once when the calls have finished, to copy results to their places."""
        super().__init__()
        self._group, self._handles, self._tensors, self._finish = group, handles, tensors, finish
        self._future: torch.futures.Future[Tensors] | None = None
        self._error: BaseException | None = None
        self._done = False
        self._ending = threading.Lock()

    def _end(self) -> None:
        """Waits for the calls, and raises what one of them has failed with."""
        with self._ending:
            if not self._done:
                try:
                    for handle in self._handles:
                        self._group.job.wait(handle)
                    if self._finish is not None:
                        with torch.no_grad():
                            self._finish()
                except BaseException as error:
                    self._error = error
                self._handles, self._finish = [], None
                self._done = True
        if self._error is not None:
            raise self._error

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        self._end()
        return True

    def synchronize(self) -> None:
        self._end()

    def is_completed(self) -> bool:
        if self._done:
            return True
        if not self._ending.acquire(blocking=False):
            return False
        self._ending.release()
        with self._group.job.enter():
            if not all(handle.done() for handle in self._handles):
                return False
        with contextlib.suppress(BaseException):  # exception() tells
            self._end()
        return True

    def is_success(self) -> bool:
        return self._done and self._error is None

    def exception(self) -> BaseException | None:
        return self._error

    def result(self) -> Tensors:
        self._end()
        return self._tensors

    def source_rank(self) -> int:
        raise RuntimeError("source_rank: messages from any rank are not served")

    def get_future(self) -> torch.futures.Future[Tensors]:
        if self._future is None:
            self._finished: torch.futures.Future[None] = torch.futures.Future()
            # An exception that is set on a future would be a result for torch's C++ code, which would take it for tensors.
            self._future = self._finished.then(self._outcome)
            self._group.complete(self)
        return self._future

    def _outcome(self, _: object) -> Tensors:
        if self._error is not None:
            raise self._error
        return self._tensors

    def complete_future(self) -> None:
        """On the group's thread: waits for the calls, and completes the future with their result."""
        with contextlib.suppress(BaseException):  # the future tells
            self._end()
        self._finished.set_result(None)


class _Together(Work):
    """Works that were made as one call."""

    def __init__(self, group: ProcessGroup, works: list[Work]):
        super().__init__(group, [], [tensor for work in works for tensor in work._tensors], self._wait_for_all)
        self._works = works

    def _wait_for_all(self) -> None:
        works, self._works = self._works, []
        for work in works:
            work.wait()

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works) and super().is_completed()


class _NamedBackend(C10dBackend):
    """A backend without calls, which torch's own C++ code asks for names and devices."""

    def getBackendName(self) -> str:
        return "warren"


class ProcessGroup(dist.ProcessGroup):
    """A communicator of Warren's as a process group. Calls are numbered in the order in which they are made.

    Futures of a group complete in the order in which its works were made, on a thread of the group's, which is started
    with the first of them.
    """

    def __init__(self, job: _job.Job, comm: warren.Group, is_world: bool):
        super().__init__(job.store, comm.rank, comm.size)
        self._backend = _NamedBackend(comm.rank, comm.size)
        for device in DEVICES:
            self._register_backend(torch.device(device), dist.ProcessGroup.BackendType.CUSTOM, self._backend)
        self._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
        self.job, self.comm, self.is_world = job, comm, is_world
        self._rank, self._size = comm.rank, comm.size
        self._pending: collections.deque[Work] = collections.deque()
        self._has_pending = threading.Condition()
        self._completer: threading.Thread | None = None
        job.groups.add(self)
        self._coalesced: list[Work] | None = None

    # Questions that torch asks of a group.

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    def name(self) -> str:
        return "warren"

    getBackendName = _get_backend_name = name

    def _get_backend(self, device: object) -> ProcessGroup:
        return self

    get_backend = _get_backend

    @property
    def supports_splitting(self) -> bool:
        return False

    @property
    def supports_coalescing(self) -> bool:
        return True

    def set_timeout(self, timeout: object) -> None:
        """Calls wait for lost workers for as long as the job does."""

    _add_ephemeral_timeout = set_timeout

    def shutdown(self) -> None:
        """Called by destroy_process_group() for each group. The group of the whole job ends this worker's part in it."""
        if not _job.fails():  # otherwise a call may wait for a rank that waits for this one
            self.end_completer()
        if self.is_world:
            _job.leave()

    def end_completer(self) -> None:
        """Ends the group's thread once all futures are complete."""
        with self._has_pending:
            completer, self._completer = self._completer, None
            self._has_pending.notify()
        if completer is not None and completer is not threading.current_thread():
            completer.join()

    def abort(self) -> None:
        self.job.comm.abort("torch.distributed: abort of a process group")

    def __repr__(self) -> str:
        return f"<warren.torch.ProcessGroup {self.group_name}: rank {self._rank} of {self._size}>"

    def complete(self, work: Work) -> None:
        """Has the group's thread complete the future of this work."""
        self.job.other_threads = True
        with self._has_pending:
            self._pending.append(work)
            if self._completer is None:
                self._completer = threading.Thread(target=self._complete_all, name="warren futures", daemon=True)
                self._completer.start()
            self._has_pending.notify()

    def _complete_all(self) -> None:
        while True:
            with self._has_pending:
                while not self._pending:
                    if self._completer is not threading.current_thread():
                        return
                    self._has_pending.wait()
                work = self._pending.popleft()
            work.complete_future()
            del work

    @contextlib.contextmanager
    def _calling(self, tensor: torch.Tensor | None = None) -> typing.Iterator[warren.Group]:
        with self.job.enter():
            if tensor is not None and tensor.is_cuda:
                self.comm.use_stream(torch.cuda.current_stream(tensor.device).cuda_stream)
            yield self.comm

    def _work(
        self,
        handles: list[warren.Handle[typing.Any]],
        tensors: Tensors,
        finish: typing.Callable[[], object] | None = None,
    ) -> Work:
        work = Work(self, handles, tensors, finish)
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    # Calls. Tensors that are not contiguous go by way of a copy.

    def allreduce(self, tensors: Tensors, opts: typing.Any = None) -> Work:
        (tensor,) = tensors
        return self._allreduce(tensor, _op(opts.reduceOp if opts is not None else ReduceOp.SUM))

    def average(self, tensor: torch.Tensor, wire: str | None) -> Work:
        """An allreduce whose bytes travel as `wire` says: of comm_hook, and none of torch's calls."""
        return self._allreduce(tensor, "average", wire)

    def _allreduce(self, tensor: torch.Tensor, op: typing.Any, wire: typing.Any = None) -> Work:
        flat = _contiguous(tensor)
        with self._calling(tensor) as comm:
            array = _array(flat)
            handle = comm.allreduce_async(array, op, array, wire=wire)
        return self._work([handle], [tensor], None if flat is tensor else lambda: tensor.copy_(flat))

    def allreduce_coalesced(self, tensors: Tensors, opts: typing.Any = None) -> Work:
        op = _op(opts.reduceOp if opts is not None else ReduceOp.SUM)
        flat = [_contiguous(tensor) for tensor in tensors]
        with self._calling(flat[0] if flat else None) as comm, comm.fuse():
            arrays = [_array(tensor) for tensor in flat]
            handles = [comm.allreduce_async(array, op, array) for array in arrays]

        def finish() -> None:
            for tensor, result in zip(tensors, flat):
                if result is not tensor:
                    tensor.copy_(result)

        return self._work(handles, tensors, finish)

    def broadcast(self, tensors: Tensors, opts: typing.Any) -> Work:
        (tensor,) = tensors
        flat = _contiguous(tensor)
        with self._calling(tensor) as comm:
            handle = comm.broadcast_async(_moved(flat), opts.rootRank)
        return self._work([handle], tensors, None if flat is tensor else lambda: tensor.copy_(flat))

    def reduce(self, tensors: Tensors, opts: typing.Any) -> Work:
        (tensor,) = tensors
        flat = _contiguous(tensor)
        at_root = self._rank == opts.rootRank
        with self._calling(tensor) as comm:
            array = _array(flat)
            handle = comm.reduce_async(array, _op(opts.reduceOp), opts.rootRank, array if at_root else None)
        return self._work([handle], tensors, (lambda: tensor.copy_(flat)) if at_root and flat is not tensor else None)

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: typing.Any = None) -> Work:
        flat, source = _contiguous(output), _contiguous(input)
        if source.data_ptr() == flat.data_ptr() + self._rank * source.nbytes:
            source = source.clone()  # in place, as torch allows
        with self._calling(output) as comm:
            handle = comm.allgather_async(_moved(source), _moved(flat))
        return self._work([handle], [output], None if flat is output else lambda: output.copy_(flat))

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: typing.Any = None) -> Work:
        return self._together([self.all_gather_single(o, i, opts) for o, i in zip(outputs, inputs, strict=True)])

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather(self, outputs: list[Tensors], inputs: Tensors, opts: typing.Any = None) -> Work:
        (places,), (source,) = outputs, inputs
        source = _contiguous(source)
        counts = [place.numel() for place in places]
        flat = torch.empty(sum(counts), dtype=source.dtype, device=source.device)
        with self._calling(source) as comm:
            if len(set(counts)) == 1:
                handle = comm.allgather_async(_moved(source), _moved(flat))
            else:
                bytes_each = [count * source.element_size() for count in counts]
                handle = comm.allgatherv_async(_bytes(source), bytes_each, _bytes(flat))
        return self._work([handle], places, lambda: _scatter_into(places, flat))

    def allgather_coalesced(self, outputs: list[Tensors], inputs: Tensors, opts: typing.Any = None) -> Work:
        # outputs[r][i]: what rank r has as inputs[i]
        return self._together([self.allgather([list(o)], [i], opts) for *o, i in zip(*outputs, inputs, strict=True)])

    def gather(self, outputs: list[Tensors], inputs: Tensors, opts: typing.Any) -> Work:
        (source,) = inputs
        source = _contiguous(source)
        if self._rank != opts.rootRank:
            with self._calling(source) as comm:
                return self._work([comm.gather_async(_moved(source), opts.rootRank)], [])
        (places,) = outputs
        flat = torch.empty(sum(place.numel() for place in places), dtype=source.dtype, device=source.device)
        with self._calling(source) as comm:
            handle = comm.gather_async(_moved(source), opts.rootRank, _moved(flat))
        return self._work([handle], places, lambda: _scatter_into(places, flat))

    def scatter(self, outputs: Tensors, inputs: list[Tensors], opts: typing.Any) -> Work:
        (output,) = outputs
        flat = _contiguous(output)
        all_parts = None
        if self._rank == opts.rootRank:
            (parts,) = inputs
            all_parts = _moved(torch.stack([part.detach().reshape(-1) for part in parts])).reshape(self._size, -1)
        with self._calling(output) as comm:
            handle = comm.scatter_async(all_parts, opts.rootRank, out=_moved(flat))
        return self._work([handle], outputs, None if flat is output else lambda: output.copy_(flat))

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: typing.Any = None) -> Work:
        op = _op(opts.reduceOp if opts is not None else ReduceOp.SUM)
        flat, source = _contiguous(output), _contiguous(input)
        if source.data_ptr() <= flat.data_ptr() < source.data_ptr() + source.nbytes:
            source = source.clone()  # in place, as torch allows
        with self._calling(output) as comm:
            parts = _array(source.reshape(self._size, -1))
            handle = comm.reduce_scatter_async(parts, op, _array(flat))
        return self._work([handle], [output], None if flat is output else lambda: output.copy_(flat))

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: typing.Any = None) -> Work:
        return self._together([self.reduce_scatter_single(o, i, opts) for o, i in zip(outputs, inputs, strict=True)])

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def reduce_scatter(self, outputs: Tensors, inputs: list[Tensors], opts: typing.Any = None) -> Work:
        (output,), (parts,) = outputs, inputs
        op = _op(opts.reduceOp if opts is not None else ReduceOp.SUM)
        flat = _contiguous(output)
        source = torch.cat([part.detach().reshape(-1) for part in parts])
        counts = [part.numel() for part in parts]
        with self._calling(output) as comm:
            if len(set(counts)) == 1:
                handle = comm.reduce_scatter_async(_array(source.reshape(self._size, -1)), op, _array(flat))
            else:
                handle = comm.reduce_scatterv_async(_array(source), counts, op, _array(flat))
        return self._work([handle], outputs, None if flat is output else lambda: output.copy_(flat))

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_splits: list[int],
        input_splits: list[int],
        opts: typing.Any = None,
    ) -> Work:
        flat, source = _contiguous(output), _contiguous(input)
        with self._calling(output) as comm:
            if not output_splits and not input_splits:
                parts = _moved(source.reshape(self._size, -1)).reshape(self._size, -1)
                handle = comm.all_to_all_async(parts, _moved(flat))
            else:
                handle = comm.all_to_allv_async(
                    _bytes(source), _bytes_each(source, input_splits, self._size),
                    _bytes_each(output, output_splits, self._size), _bytes(flat),
                )  # fmt: skip
        return self._work([handle], [output], None if flat is output else lambda: output.copy_(flat))

    alltoall_base = all_to_all_single

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: typing.Any = None) -> Work:
        source = torch.cat([part.detach().reshape(-1) for part in inputs])
        flat = torch.empty(sum(place.numel() for place in outputs), dtype=source.dtype, device=source.device)
        with self._calling(source) as comm:
            handle = comm.all_to_allv_async(
                _bytes(source), [part.nbytes for part in inputs], [place.nbytes for place in outputs], _bytes(flat)
            )
        return self._work([handle], outputs, lambda: _scatter_into(outputs, flat))

    def send(self, tensors: Tensors, peer: int, tag: int = 0) -> Work:
        (tensor,) = tensors
        source = _contiguous(tensor)
        with self._calling(tensor) as comm:
            return self._work([comm.send_async(_moved(source), peer, tag)], tensors)

    def recv(self, tensors: Tensors, peer: int, tag: int = 0) -> Work:
        (tensor,) = tensors
        flat = _contiguous(tensor)
        with self._calling(tensor) as comm:
            handle = comm.recv_async(_moved(flat), peer, tag)
        return self._work([handle], tensors, None if flat is tensor else lambda: tensor.copy_(flat))

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> Work:
        raise RuntimeError('the backend "warren" receives from a rank that is named: give recv() its src')

    recvAnysource = recv_anysource

    def barrier(self, opts: typing.Any = None) -> Work:
        with self._calling() as comm:
            return self._work([comm.barrier_async()], [])

    # Between the two, works are gathered: the last call returns one that stands for them all.

    def _start_coalescing(self, device: object = None) -> None:
        self._coalesced = []

    start_coalescing = _start_coalescing

    def _end_coalescing(self, device: object = None) -> Work:
        works, self._coalesced = self._coalesced or [], None
        return self._together(works)

    end_coalescing = _end_coalescing

    def _together(self, works: list[Work]) -> Work:
        return _Together(self, works)


def _bytes(tensor: torch.Tensor) -> typing.Any:
    return _array(tensor.detach().reshape(-1).view(torch.uint8))


def _bytes_each(tensor: torch.Tensor, splits: list[int], size: int) -> list[int]:
    """Bytes of the block for each rank; `splits` counts rows, and is empty where all blocks are alike."""
    if not splits:
        return [tensor.nbytes // size] * size
    row = tensor.nbytes // tensor.shape[0] if tensor.numel() > 0 else 0
    return [rows * row for rows in splits]


def _scatter_into(places: Tensors, flat: torch.Tensor) -> None:
    begin = 0
    for place in places:
        place.copy_(flat[begin : begin + place.numel()].view(place.shape))
        begin += place.numel()


def create(options: typing.Any, backend_options: object = None) -> ProcessGroup:
    """Makes a process group for torch: of the whole job, or of the ranks that are named."""
    job = _job.join()
    ranks = list(options.global_ranks_in_group)
    if not ranks:
        if (options.group_rank, options.group_size) != (job.comm.rank, job.comm.size):
            raise ValueError(
                f'the backend "warren": this is rank {job.comm.rank} of {job.comm.size} in its job, and not '
                f"{options.group_rank} of {options.group_size}"
            )
        return ProcessGroup(job, job.comm, is_world=True)
    with job.enter():
        return ProcessGroup(job, job.comm.group(f"torch {options.group_id}", ranks), is_world=False)


def register() -> None:
    """Makes the backend "warren" known to torch.distributed. The entry point of torch.distributed.backends."""
    if "WARREN" not in dist.Backend._plugins:
        dist.Backend.register_backend("warren", create, extended_api=True, devices=DEVICES)
    _job.offer_rendezvous()
