"""Ctrl-C while a prepare function runs: the call raises KeyboardInterrupt, and later ones say that the life is over."""

import signal

import numpy as np
import warren

comm = warren.init()
x = np.ones(3)
try:
    comm.allreduce(x, prepare=lambda: signal.raise_signal(signal.SIGINT))
except KeyboardInterrupt:
    print("interrupted")
for _ in range(2):
    try:
        comm.allreduce(x)
    except warren.Internal as error:
        assert error.__cause__ is None, error
    else:
        raise AssertionError("the life went on")
