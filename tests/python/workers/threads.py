"""A call waits without the interpreter lock, and a second thread inside is an error."""

import os
import pathlib
import threading
import time

import numpy as np
import warren

# Tells the other process that this one was refused.
refused = pathlib.Path(os.environ["WARREN_SECRET_FILE"] + ".refused")

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
        refused.touch()
        thread.join()
        assert received[0] == 3
    else:
        while not refused.exists():
            time.sleep(0.001)
        comm.send(np.full(1, 3.0), 0)
