"""Rank 0's program ends while a daemon thread of it is inside a call, which is given up."""

import atexit
import threading

threads = []
# Runs after what the package does at the end: by then the thread has been told, and prints why it ends.
atexit.register(lambda: [thread.join(20) for thread in threads])

import warren  # noqa: E402

comm = warren.init()
if comm.rank == 0:
    atexit.register(lambda: print("in good order", flush=True))
    inside = threading.Event()
    caller = threading.Thread(target=comm.allreduce, args=(bytearray(1),), kwargs={"prepare": inside.set}, daemon=True)
    threads.append(caller)
    caller.start()
    inside.wait()
else:
    comm.recv(bytearray(1), 0)
