"""Checkpoints of the state that the root has, by pickle, whose bytes are others in each process. Both ranks are killed.

arguments: the root, and a folder for a file of each kill.
"""

import contextlib
import os
import pathlib
import signal
import sys

import warren

root, folder = int(sys.argv[1]), pathlib.Path(sys.argv[2])


def die_if_due(rank, step, moment):
    """The root dies twice, and the other rank once."""
    if (step, moment) not in ([(5, "before"), (7, "after")] if rank == root else [(3, "before")]):
        return
    with contextlib.suppress(FileExistsError):
        (folder / f"{step}").touch(exist_ok=False)
        os.kill(os.getpid(), signal.SIGKILL)


with warren.init() as comm:
    loaded = comm.load_checkpoint(pickle=True)
    state, step = (loaded.state, loaded.version) if loaded is not None else ({"seen": set()}, 0)
    assert loaded is None or loaded.local == {"rank": comm.rank}, loaded
    begun = step
    while step < 9:
        state["seen"].add(f"{comm.allreduce(step + comm.rank)}")
        step += 1
        die_if_due(comm.rank, step, "before")
        comm.checkpoint(state if comm.rank == root else None, {"rank": comm.rank}, root=root, pickle=True)
        die_if_due(comm.rank, step, "after")
    assert state == {"seen": {str(2 * s + 1) for s in range(9)}}, state
    print(f"rank {comm.rank} went on from version {begun}")
