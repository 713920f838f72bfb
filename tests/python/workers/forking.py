"""A child of fork gets a clear error, and its end disturbs nobody."""

import os

import numpy as np
import warren

with warren.init() as comm:
    handle = comm.allreduce_async(np.ones(3))
    child = os.fork()
    if child == 0:
        try:
            comm.allreduce(1)
        except warren.Closed as error:
            assert "fork" in str(error), error
        else:
            os._exit(3)
        try:
            handle.wait()
        except warren.Closed:
            raise SystemExit(0) from None  # as programs end, through atexit and the end of the `with` block
        os._exit(4)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, status
    assert (handle.wait() == comm.size).all()
    assert comm.allreduce(1) == comm.size
