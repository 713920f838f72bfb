"""Rank 0 gets SIGINT while it waits; its next life ends the job with rank 1. Arguments: in what it waits; a named pipe."""

import os
import signal
import sys
import threading

import numpy as np
import warren

way, ended = sys.argv[1:]
attempt = int(os.environ["WARREN_ATTEMPT"])
main_thread = threading.get_ident()


def in_a_thread(is_inside, then):
    """Does it once the main thread waits in the library."""

    def run():
        while not is_inside():
            pass
        then()

    threading.Thread(target=run).start()


def send_sigint():
    os.kill(os.getpid(), signal.SIGINT)


def joins():
    return sys._current_frames()[main_thread].f_code.co_name == "__init__"


def calls(comm):
    """Whether another thread is inside a call of this communicator."""
    try:
        comm.once_known("x")
    except warren.InvalidArgument:
        return True
    return False


def make_wait(comm):
    """What waits for something that rank 1 does not do before this life has ended."""
    if way == "timeout":
        return lambda: comm.within(0.05).recv(np.ones(1), 1)
    if way == "wait":
        return comm.allreduce_async(np.ones(3)).wait
    if way == "finalize":
        return comm.finalize
    return lambda: comm.allreduce(np.ones(3))


if os.environ["WARREN_WORKER_ID"] == "0" and attempt == 0:
    try:
        if way == "init":
            in_a_thread(joins, send_sigint)
            warren.init()
        comm = warren.init()
        wait = make_wait(comm)
        if way != "timeout":
            in_a_thread(lambda: calls(comm), send_sigint if way != "abort" else lambda: comm.abort("enough"))
        while True:
            try:
                wait()
                break
            except warren.InvalidArgument:
                pass  # the other thread was inside just then
    except KeyboardInterrupt:
        assert way != "abort"
    except TimeoutError as error:
        assert way == "timeout" and isinstance(error, warren.Timeout) and "50 ms" in str(error), error
    except warren.Closed as error:
        assert way == "abort" and "enough" in str(error) and error.rank == 0, error
    else:
        raise AssertionError("it did not end")
    if way != "init":
        # The life is over, and the interrupt is told once.
        try:
            comm.barrier()
        except (warren.Closed, warren.Timeout) as error:
            assert error.peer is None, error
        else:
            raise AssertionError("a life that is over made a call")
        comm.destroy()
    with open(ended, "w", encoding="ascii"):
        pass
    os._exit(9)

if os.environ["WARREN_WORKER_ID"] == "1" and way == "init":
    open(ended, encoding="ascii").read()
with warren.init() as comm:
    if comm.rank == 1 and way != "init":
        open(ended, encoding="ascii").read()
    # What a life makes the next one makes, too.
    if way not in ("finalize", "timeout"):
        handle = comm.allreduce_async(np.ones(3))
        while True:
            try:
                assert (handle.wait(timeout=0.001) == 2).all()
                break
            except TimeoutError:
                pass
    print("done", flush=True)
