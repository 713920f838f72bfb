"""The last rank is killed, once, between finalize and the end of its program."""

import os
import signal

import warren

with warren.init() as comm:
    last = comm.rank == comm.size - 1
if last and os.environ.get("WARREN_ATTEMPT") == "0":
    os.kill(os.getpid(), signal.SIGKILL)
print("the end of the program")
