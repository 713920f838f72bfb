"""A call waits without the interpreter lock, and a second thread inside is an error. Argument: a named pipe."""

import sys
import threading

import numpy as np
import warren

refused = sys.argv[1]  # tells the other process that this one was refused

with warren.init() as comm:
    total = np.zeros(1)
    inside = threading.Event()

    def call():
        comm.allreduce(np.ones(1), out=total, prepare=inside.set)

    def must_be_refused(function):
        try:
            function()
        except warren.InvalidArgument as error:
            assert "another thread" in str(error), error
        else:
            raise AssertionError("a second thread came in")

    if comm.rank == 0:
        thread = threading.Thread(target=call)
        thread.start()
        inside.wait()  # the call waits for the other rank
        must_be_refused(lambda: comm.allreduce(1))
        must_be_refused(lambda: comm.once_known("x"))
        must_be_refused(comm.destroy)
        with open(refused, "w", encoding="ascii"):
            pass
        thread.join()
    else:
        open(refused, encoding="ascii").read()
        call()
    assert total[0] == 2
