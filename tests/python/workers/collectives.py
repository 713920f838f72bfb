"""Every collective and message with every element type, blocking and asynchronous, held against NumPy's sums."""

import threading

import ml_dtypes
import numpy as np
import warren

TYPES = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"]
OPS = {
    "sum": lambda all: all.sum(axis=0, dtype=all.dtype),
    "product": lambda all: all.prod(axis=0, dtype=all.dtype),
    "min": lambda all: all.min(axis=0),
    "max": lambda all: all.max(axis=0),
    "bit_and": np.bitwise_and.reduce,
    "bit_or": np.bitwise_or.reduce,
    "bit_xor": np.bitwise_xor.reduce,
}


def equal(got, want):
    assert isinstance(got, np.ndarray), type(got)
    assert got.dtype == want.dtype and got.shape == want.shape, (got.dtype, got.shape, want.dtype, want.shape)
    assert got.tobytes() == want.tobytes(), (got, want)


def both_ways(comm, name, *arguments, **options):
    """The results of the blocking call and of the asynchronous one."""
    yield getattr(comm, name)(*arguments, **options)
    handle = getattr(comm, f"{name}_async")(*arguments, **options)
    result = handle.wait()
    assert handle.done() and handle.wait() is result
    yield result


def check_collectives(comm, dtype):
    rank, size = comm.rank, comm.size
    # Small whole numbers: sums and products are exact in every type.
    all = np.array([[[1 + (r + i + j) % 2 for j in range(3)] for i in range(2)] for r in range(size)], dtype)
    if dtype == "bool":
        all = np.array([[[(r + i * j) % 2 for j in range(3)] for i in range(2)] for r in range(size)], dtype)
    mine = all[rank].copy()
    for op, reference in OPS.items():
        if op.startswith("bit") and mine.dtype.kind == "f":
            continue
        want = reference(all)
        for got in both_ways(comm, "allreduce", mine, op):
            equal(got, want)
        for root in range(size):
            for got in both_ways(comm, "reduce", mine, op, root):
                equal(got, want) if rank == root else None
                assert (got is None) == (rank != root)
        stack = np.stack([mine] * size)
        for got in both_ways(comm, "reduce_scatter", stack, op):
            equal(got, want)
    equal(mine, all[rank])  # inputs stay
    out = np.empty_like(mine)
    assert comm.allreduce(mine, out=out) is out
    equal(out, OPS["sum"](all))
    in_place = mine.copy()
    assert comm.allreduce(in_place, out=in_place) is in_place
    equal(in_place, out)

    for root in range(size):
        for blocking in (True, False):
            buffer = mine.copy()
            got = comm.broadcast(buffer, root) if blocking else comm.broadcast_async(buffer, root).wait()
            assert got is buffer
            equal(buffer, all[root])
        for got in both_ways(comm, "gather", mine, root):
            equal(got, all) if rank == root else None
            assert (got is None) == (rank != root)
        share = np.empty_like(mine)
        for got in both_ways(comm, "scatter", all if rank == root else None, root, out=share):
            assert got is share
            equal(got, all[rank])
        if rank == root:
            equal(comm.scatter(all, root), all[rank])
        else:
            comm.scatter(None, root, out=share)
    for got in both_ways(comm, "allgather", mine):
        equal(got, all)
    counts = [r + 1 for r in range(size)]
    for got in both_ways(comm, "allgatherv", np.full(rank + 1, rank, dtype), counts):
        equal(got, np.repeat(np.arange(size), counts).astype(dtype))
    blocks = np.stack([all[rank] + dtype(0) if callable(dtype) else all[rank] for _ in range(size)])
    for got in both_ways(comm, "all_to_all", blocks):
        equal(got, all)

    counts = [(r * 2) % 3 for r in range(size)]  # some are 0
    uneven = np.concatenate([np.full(count, rank + 1, dtype) for count in counts])
    for op in ("sum", "max"):
        want = OPS[op](np.array([[r + 1] * counts[rank] for r in range(size)], dtype).reshape(size, -1))
        for got in both_ways(comm, "reduce_scatterv", uneven, counts, op):
            equal(got, want)
    share = np.empty(counts[rank], dtype)
    assert comm.reduce_scatterv(uneven, np.array(counts), out=share) is share
    to, of = [(rank + 2 * r) % 3 for r in range(size)], [(r + 2 * rank) % 3 for r in range(size)]
    for got in both_ways(comm, "all_to_allv", np.full(sum(to), rank, dtype), to, of):
        equal(got, np.repeat(np.arange(size), of).astype(dtype))

    if size > 1:
        right, left = (rank + 1) % size, (rank - 1) % size
        received = np.empty_like(mine)
        sending = comm.send_async(mine, right, tag=5)
        assert comm.recv(received, left, tag=5) is received
        assert sending.wait() is None
        equal(received, all[left])
        receiving = comm.recv_async(received, left)
        comm.send(mine, right)
        assert receiving.wait() is received


def check_numbers(comm):
    rank, size = comm.rank, comm.size
    total = comm.allreduce(rank + 1)
    assert type(total) is int and total == size * (size + 1) // 2
    assert comm.allreduce(rank == 0, "min") == (comm.size == 1) and comm.allreduce(True) == comm.size
    mean = comm.allreduce(float(rank), "average")
    assert type(mean) is float and mean == (size - 1) / 2
    assert type(comm.allreduce_async(1.5).wait()) is float
    loss = comm.allreduce(np.float32(0.5))
    assert type(loss) is np.float32 and loss == 0.5 * size


def check_buffers(comm):
    """What is no NumPy array."""
    import array

    numbers = array.array("d", [1.0, 2.0])
    assert comm.allreduce(numbers, out=numbers) is numbers
    assert list(numbers) == [comm.size * 1.0, comm.size * 2.0]
    text = bytearray(b"\x01\x02")
    comm.allreduce(text, out=text)
    assert bytes(text) == bytes([comm.size, 2 * comm.size])
    equal(comm.allreduce(b"\x01"), np.array([comm.size], "uint8"))
    assert comm.allreduce(np.zeros((0, 3))).shape == (0, 3)

    class Tensor:
        """An array that speaks DLPack alone."""

        def __init__(self, values):
            self.values = values

        def __dlpack__(self, **options):
            return self.values.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.values.__dlpack_device__()

    tensor = Tensor(np.ones((2, 2), "float32"))
    equal(comm.allreduce(tensor), np.full((2, 2), comm.size, "float32"))
    assert comm.allreduce(tensor, out=tensor) is tensor
    equal(tensor.values, np.full((2, 2), comm.size, "float32"))


def check_bfloat16(comm):
    x = np.array([1.5, 2.5], ml_dtypes.bfloat16)
    equal(comm.allreduce(x), (x.astype("float32") * comm.size).astype(x.dtype))
    equal(comm.allgather(x), np.stack([x] * comm.size))
    in_place = x.copy()
    assert comm.allreduce(in_place, "max", out=in_place) is in_place
    equal(in_place, x)


def check_wires_and_algorithms(comm):
    x = np.linspace(-1, 1, 1000, dtype="float32")
    want = comm.size * x
    for wire, bound in (("f16", 1e-3), ("bf16", 1e-2), ("i8", 2e-2), ("f32", 0)):
        assert np.abs(comm.allreduce(x, wire=wire) - want).max() <= bound * comm.size, wire
    for algorithm in ("auto", "star", "tree", "butterfly", "ring", "direct"):
        equal(comm.allreduce(x, "max", algorithm=algorithm), x)


def check_groups(comm):
    group = comm.split(comm.rank % 2, -comm.rank)
    assert isinstance(group, warren.Group)
    members = [r for r in range(comm.size) if r % 2 == comm.rank % 2][::-1]
    assert group.size == len(members) and members[group.rank] == comm.rank
    assert group.allreduce(comm.rank) == sum(members)
    alone = comm.split(0 if comm.rank == 0 else -1)
    assert (alone is None) == (comm.rank != 0)
    if comm.rank < 2:  # the others make no call
        both = comm.group("both", list(range(min(comm.size, 2)))[::-1])
        assert isinstance(both, warren.Group) and both.rank == both.size - 1 - comm.rank
        assert both.allreduce(comm.rank) == both.size - 1
        assert both.split(0).allreduce(1) == both.size
    assert 0 <= comm.local_rank < comm.local_size == comm.size


def check_set_up_rounds(comm):
    assert not comm.once_known("schema")
    calls = comm.once("schema")
    first = calls.allreduce(np.arange(3.0))
    assert comm.once_known("schema")
    equal(comm.once("schema").allreduce(np.zeros(3)), first)  # kept: whatever is given now


def check_objects(comm):
    rank, size = comm.rank, comm.size
    mine = {"rank": rank, "text": "ab" * rank, "array": np.arange(rank)}
    for root in range(size):
        got = comm.broadcast_object(mine if rank == root else None, root)
        assert got["rank"] == root and got["text"] == "ab" * root and got["array"].tolist() == list(range(root))
        gathered = comm.gather_object(mine, root)
        assert gathered is None if rank != root else [g["rank"] for g in gathered] == list(range(size))
        got = comm.scatter_object([("to", r, "x" * r) for r in range(size)] if rank == root else None, root)
        assert got == ("to", rank, "x" * rank)
    assert [g["text"] for g in comm.allgather_object(mine)] == ["ab" * r for r in range(size)]
    group = comm.split(0, -rank)
    assert group.allgather_object(rank) == list(range(size))[::-1]


def check_fusion(comm):
    before = comm.rounds_finished
    with comm.fuse():
        handles = [comm.allreduce_async(np.full(3, float(i))) for i in range(20)]
    for i, handle in enumerate(handles):
        equal(handle.wait(), np.full(3, i * float(comm.size)))
    assert comm.size == 1 or comm.rounds_finished - before < 20
    with comm.fuse(max_bytes=0):
        assert comm.allreduce_async(1).wait() == comm.size
    try:
        with comm.fuse():
            comm.allreduce_async(1)
            raise KeyError("on purpose")
    except KeyError:
        pass
    assert comm.allreduce(1) == comm.size  # the block has ended


def check_prepare(comm):
    x = np.zeros(3)
    filled = []

    def fill():
        x[:] = comm.size
        filled.append(threading.get_ident())

    for got in both_ways(comm, "allreduce", x, prepare=fill):
        equal(got, np.full(3, float(comm.size) ** 2))
    if comm.rank == 0:
        assert comm.broadcast(np.zeros(3), prepare=filled.clear) is not None and not filled
    else:
        comm.broadcast(np.zeros(3))


def main():
    with warren.init() as comm:
        check_set_up_rounds(comm)
        for dtype in TYPES:
            check_collectives(comm, dtype)
        check_numbers(comm)
        check_buffers(comm)
        check_bfloat16(comm)
        check_wires_and_algorithms(comm)
        check_groups(comm)
        check_objects(comm)
        check_fusion(comm)
        check_prepare(comm)
        comm.barrier()
        assert comm.barrier_async().wait() is None
        many = [comm.allreduce_async(np.full(4, float(i))) for i in range(100)]
        for i, handle in enumerate(many):
            equal(handle.wait(), np.full(4, i * float(comm.size)))
        comm.allreduce_async(np.ones(1000))  # its handle is dropped: the buffers live until it has finished
    assert not comm.is_open


main()
