"""A function of the program's raises something on rank 1 in its first life. The next life does better."""

import os
import sys

import numpy as np
import warren

way = sys.argv[1]
fails = os.environ["WARREN_WORKER_ID"] == "1" and os.environ["WARREN_ATTEMPT"] == "0"
x = np.zeros(3)


def fill():
    x[:] = 7  # reaches nobody
    if fails:
        raise ValueError("on purpose")
    x[:] = 1


def make_state():
    if fails:
        raise ValueError("on purpose")
    return {"x": np.ones(3)}


def call(comm):
    if way == "prepare":
        return comm.allreduce(x, prepare=fill)
    if way == "handle":
        return comm.allreduce_async(x, prepare=fill).wait()
    comm.lazy_checkpoint(make_state)
    return comm.allreduce(np.ones(3))


with warren.init() as comm:
    loaded = comm.load_checkpoint()
    assert loaded is None, loaded  # no rank commits before all have given their states
    try:
        total = call(comm)
    except warren.Internal as error:
        assert fails and isinstance(error.__cause__, ValueError), error
        try:
            comm.allreduce(1)
        except warren.Error as again:
            assert again.__cause__ is error.__cause__, again
        else:
            raise AssertionError("the life went on") from error
        raise
    assert (total == comm.size).all(), total
    if way == "lazy":
        comm.checkpoint({"x": np.ones(3)})
        assert comm.version == 2 and comm.committed_version >= 1
    print("done")
