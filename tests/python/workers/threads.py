"""A call waits without the interpreter lock, and a second thread inside is an error. Argument: a named pipe."""

import sys
import threading

import numpy as np
import warren

refused = sys.argv[1]  # tells the other process that this one was refused

with warren.init() as comm:
    received = np.zeros(1)
    inside = threading.Event()
    errors = []

    def receive():
        inside.set()
        comm.recv(received, 1)

    if comm.rank == 0:
        thread = threading.Thread(target=receive)
        thread.start()
        inside.wait()
        # The thread is inside the call, or about to be: the other rank sends once this one has been refused.
        while True:
            try:
                comm.once_known("x")
            except warren.InvalidArgument as error:
                assert "another thread" in str(error), error
                break
        try:
            comm.destroy()
        except warren.InvalidArgument as error:
            assert "another thread" in str(error), error
        else:
            raise AssertionError("destroyed under a call")
        with open(refused, "w", encoding="ascii"):
            pass
        thread.join()
        assert received[0] == 3
    else:
        open(refused, encoding="ascii").read()
        comm.send(np.full(1, 3.0), 0)
