"""Handles in asyncio: many at once, one for which two tasks wait, one that is abandoned, and an event loop that goes on
meanwhile. Argument: a named pipe."""

import asyncio
import sys

import numpy as np
import warren

# Tells rank 1 that the event loop of rank 0 has gone on while it waited for rank 1.
ticked = sys.argv[1]


async def main(comm):
    async def tick():
        for _ in range(5):
            await asyncio.sleep(0.001)
        with open(ticked, "w", encoding="ascii"):
            pass

    if comm.rank == 0:
        ticking = asyncio.create_task(tick())
    if comm.rank == 1:
        open(ticked, encoding="ascii").read()
    handle = comm.allreduce_async(np.full(3, 1.0))

    async def wait():
        return await handle

    result, second = await asyncio.gather(wait(), wait())
    assert second is result
    assert (result == comm.size).all() and (await handle) is result
    if comm.rank == 0:
        await ticking
    handles = [comm.allreduce_async(np.full(2, float(i))) for i in range(50)]
    for i, got in enumerate(await asyncio.gather(*handles)):
        assert (got == i * comm.size).all()
    abandoned = asyncio.ensure_future(comm.barrier_async())
    abandoned.cancel()
    await asyncio.sleep(0)


with warren.init() as comm:
    asyncio.run(main(comm))
