"""Every collective and message of torch.distributed over Warren, with each element type, held against torch's sums."""

import functools

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

import warren.torch

TYPES = [torch.bool, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
         torch.float32, torch.float64]
OPS = {
    ReduceOp.SUM: torch.add,
    ReduceOp.PRODUCT: torch.mul,
    ReduceOp.MIN: torch.minimum,
    ReduceOp.MAX: torch.maximum,
    ReduceOp.BAND: torch.bitwise_and,
    ReduceOp.BOR: torch.bitwise_or,
    ReduceOp.BXOR: torch.bitwise_xor,
}


def equal(got, want):
    assert got.dtype == want.dtype and got.shape == want.shape, (got.dtype, got.shape, want.dtype, want.shape)
    assert torch.equal(got, want), (got, want)


def values(rank, dtype):
    """Small whole numbers: their sums and products are exact in every type."""
    numbers = torch.tensor([[(rank + i + j) % 2 + 1 for j in range(3)] for i in range(2)])
    return (numbers - 1 if dtype == torch.bool else numbers).to(dtype)


def check_reductions(group, rank, size, dtype):
    all = [values(r, dtype) for r in range(size)]
    for op, function in OPS.items():
        if dtype.is_floating_point and op in (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR):
            continue
        want = functools.reduce(function, all)
        x = values(rank, dtype)
        dist.all_reduce(x, op, group)
        equal(x, want)
        x = values(rank, dtype).t()  # not contiguous
        dist.all_reduce(x, op, group)
        equal(x, want.t())
        for root in range(size):
            x = values(rank, dtype)
            dist.reduce(x, group_dst=root, op=op, group=group)
            equal(x, want if rank == root else values(rank, dtype))
        out = torch.empty_like(want)
        dist.reduce_scatter(out, [values(rank, dtype)] * size, op, group)
        equal(out, want)
        out = torch.empty_like(want)
        dist.reduce_scatter_tensor(out, torch.cat([values(rank, dtype)] * size), op, group)
        equal(out, want)
    if dtype.is_floating_point:
        x = values(rank, dtype)
        dist.all_reduce(x, ReduceOp.AVG, group)
        torch.testing.assert_close(x, functools.reduce(torch.add, all) / size)


def check_moves(group, rank, size, dtype):
    all = [values(r, dtype) for r in range(size)]
    for root in range(size):
        x = values(rank, dtype)
        dist.broadcast(x, group=group, group_src=root)
        equal(x, all[root])
        places = [torch.empty_like(all[0]) for _ in range(size)] if rank == root else None
        dist.gather(values(rank, dtype), places, group=group, group_dst=root)
        for place, want in zip(places or [], all):
            equal(place, want)
        out = torch.empty_like(all[0])
        dist.scatter(out, all if rank == root else None, group=group, group_src=root)
        equal(out, all[rank])
    places = [torch.empty_like(all[0]) for _ in range(size)]
    dist.all_gather(places, values(rank, dtype), group)
    for place, want in zip(places, all):
        equal(place, want)
    lists = [[torch.empty_like(all[0]), torch.empty(3, dtype=dtype)] for _ in range(size)]
    dist.all_gather_coalesced(lists, [values(rank, dtype), values(rank, dtype)[1]], group)
    for (first, second), want in zip(lists, all):  # lists[r]: what rank r has given
        equal(first, want)
        equal(second, want[1])
    uneven = [torch.empty(r + 1, dtype=dtype) for r in range(size)]
    dist.all_gather(uneven, torch.ones(rank + 1, dtype=dtype), group)
    for place in uneven:
        equal(place, torch.ones_like(place))
    stack = torch.empty(2 * size, 3, dtype=dtype)
    dist.all_gather_into_tensor(stack, values(rank, dtype), group)
    equal(stack, torch.cat(all))
    stack[2 * rank : 2 * rank + 2] = values(rank, dtype)
    dist.all_gather_into_tensor(stack, stack[2 * rank : 2 * rank + 2], group)  # in place
    equal(stack, torch.cat(all))

    rows = torch.stack([values(rank, dtype)] * size)
    out = torch.empty_like(rows)
    dist.all_to_all_single(out, rows, group=group)
    equal(out, torch.stack(all))
    to, of = [(rank + 2 * r) % 3 for r in range(size)], [(r + 2 * rank) % 3 for r in range(size)]
    out = torch.empty(sum(of), 3, dtype=dtype)
    dist.all_to_all_single(out, values(rank, dtype)[:1].repeat(sum(to), 1), of, to, group)
    equal(out, torch.cat([all[r][:1].repeat(of[r], 1) for r in range(size)]))
    places = [torch.empty(n, dtype=dtype) for n in of]
    dist.all_to_all(places, [values(rank, dtype)[0, :1].repeat(n) for n in to], group)
    for r, place in enumerate(places):
        equal(place, all[r][0, :1].repeat(of[r]))

    if size > 1:
        right, left = (rank + 1) % size, (rank - 1) % size
        received = torch.empty_like(all[0])
        sending = dist.isend(values(rank, dtype), group=group, group_dst=right, tag=5)
        dist.recv(received, group=group, group_src=left, tag=5)
        sending.wait()
        equal(received, all[left])
        works = dist.batch_isend_irecv([
            dist.P2POp(dist.isend, values(rank, dtype), group=group, group_peer=right),
            dist.P2POp(dist.irecv, received, group=group, group_peer=left),
        ])
        for work in works:
            work.wait()
        equal(received, all[left])


def check_other_types(group, rank, size):
    """Types that Warren does not know are moved as bytes, and not reduced."""
    x = torch.full((3,), rank + 1j, dtype=torch.complex64)
    dist.all_reduce(x, group=group)  # torch makes real numbers of it
    equal(x, torch.full((3,), size * (size - 1) / 2 + size * 1j, dtype=torch.complex64))
    x = torch.full((3,), float(rank)).to(torch.float8_e4m3fn)
    dist.broadcast(x, group=group, group_src=size - 1)
    equal(x.float(), torch.full((3,), float(size - 1)))
    try:
        dist.all_reduce(torch.ones(3).to(torch.float8_e4m3fn), group=group)
    except (TypeError, ValueError) as error:
        assert "float8" in str(error), error
    else:
        raise AssertionError("float8 was reduced")


def check_works(group, rank, size):
    """Works are done once they have been waited for; futures complete in the order of issue."""
    tensors = [torch.full((4,), float(i)) for i in range(20)]
    works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]
    order = []
    futures = [work.get_future().then(lambda _, i=i: order.append(i)) for i, work in enumerate(works)]
    for future in futures:
        future.wait()
    assert order == list(range(20)), order
    for i, (work, tensor) in enumerate(zip(works, tensors)):
        assert work.is_completed() and work.is_success() and work.exception() is None
        equal(tensor, torch.full((4,), i * float(size)))
    work = dist.all_reduce(torch.ones(2), group=group, async_op=True)
    while not work.is_completed():
        pass
    equal(work.result()[0], torch.full((2,), float(size)))

    with dist._coalescing_manager(group, async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor, group=group)
    manager.wait()
    equal(tensors[1], torch.full((4,), float(size * size)))
    parts = [torch.full((size,), float(rank + i)) for i in range(3)]
    sums = [torch.empty(1) for _ in range(3)]
    with dist._coalescing_manager(group):
        for part, total in zip(parts, sums):
            dist.reduce_scatter_tensor(total, part, group=group)
    for i, total in enumerate(sums):
        equal(total, torch.tensor([float(sum(r + i for r in range(size)))]))
    wide = torch.arange(4.0).to(memory_format=torch.contiguous_format).expand(2, 4)
    gathered = dist.all_reduce(wide.clone(), group=group, async_op=True)
    gathered.wait()


def check_functional(group, rank, size):
    import torch.distributed._functional_collectives as functional

    equal(functional.all_reduce(torch.ones(3), "sum", group) + 0, torch.full((3,), float(size)))
    gathered = functional.all_gather_tensor(torch.full((2,), float(rank)), 0, group)
    equal(gathered + 0, torch.arange(float(size)).repeat_interleave(2))


def check_objects(group, rank, size):
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank, "text": "ab" * rank}, group)
    assert objects == [{"rank": r, "text": "ab" * r} for r in range(size)], objects
    one = [("from", rank)]
    dist.broadcast_object_list(one, group=group, group_src=size - 1)
    assert one == [("from", size - 1)], one
    places = [None] * size if rank == 0 else None
    dist.gather_object(rank, places, group=group, group_dst=0)
    assert places == (list(range(size)) if rank == 0 else None)
    out = [None]
    dist.scatter_object_list(out, [str(r) for r in range(size)] if rank == 0 else None, group=group, group_src=0)
    assert out == [str(rank)]


def check_store():
    store = dist.distributed_c10d._get_default_store()
    store.set("key", "value")
    assert store.get("key") == b"value"
    try:
        store.get("of another rank")
    except dist.DistStoreError as error:
        assert "of this process alone" in str(error)
    else:
        raise AssertionError("the store has what nobody has written")
    if dist.get_world_size() > 1:
        try:
            dist.new_group(backend="gloo")
        except dist.DistStoreError as error:
            assert 'name "warren" in init_process_group and new_group' in str(error), error
        else:
            raise AssertionError("Gloo has found its peers by a store of one process")


def main():
    dist.init_process_group("warren")
    rank, size = dist.get_rank(), dist.get_world_size()
    comm = warren.torch.init()
    assert (comm.rank, comm.size) == (rank, size) and dist.get_backend() == "warren"
    reversed = dist.new_group(list(range(size))[::-1]) if size > 1 else dist.group.WORLD
    some = dist.new_group(list(range(min(size, 2))))
    for group in (dist.group.WORLD, reversed, some):
        if group == dist.GroupMember.NON_GROUP_MEMBER:
            continue
        group_rank, group_size = dist.get_rank(group), dist.get_world_size(group)
        for dtype in TYPES:
            check_reductions(group, group_rank, group_size, dtype)
            check_moves(group, group_rank, group_size, dtype)
        check_other_types(group, group_rank, group_size)
        check_works(group, group_rank, group_size)
        check_functional(group, group_rank, group_size)
        check_objects(group, group_rank, group_size)
        dist.barrier(group)
        assert dist.barrier(group, async_op=True).wait()
    check_store()
    dist.destroy_process_group()
    assert not comm.is_open


main()
