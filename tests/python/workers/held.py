"""Rank 1 is killed and comes back while a thread of rank 0 holds the interpreter lock and rank 0 is inside a call.

arguments: two named pipes. Through the first one rank 0 says that it is there; through the second one rank 1's next
life says that it has got its result, and only then rank 0's thread lets the lock go.
"""

import ctypes
import os
import signal
import sys
import threading

import numpy as np
import warren

inside, done = sys.argv[1:]


def hold(called):
    """Waits until the main thread is inside its call, has rank 1 killed, and holds the lock until rank 1 is done."""
    called.wait()
    descriptor = os.open(done, os.O_RDWR)  # does not wait
    byte = ctypes.create_string_buffer(1)
    read = ctypes.PyDLL(None).read  # a function that is called with the lock
    with open(inside, "w", encoding="ascii"):
        pass
    assert read(descriptor, byte, 1) == 1
    os.close(descriptor)


with warren.init() as comm:
    comm.load_checkpoint()
    called = threading.Event()
    if comm.rank == 0:
        holder = threading.Thread(target=hold, args=(called,))
        holder.start()
    elif os.environ["WARREN_ATTEMPT"] == "0":
        open(inside, encoding="ascii").read()
        os.kill(os.getpid(), signal.SIGKILL)
    total = comm.allreduce(np.full(3, comm.rank + 1.0), prepare=called.set)
    assert (total == 3).all(), total
    if comm.rank == 1:
        with open(done, "w", encoding="ascii") as pipe:
            pipe.write("x")
        print("rank 1 has its result", flush=True)
    else:
        holder.join()
