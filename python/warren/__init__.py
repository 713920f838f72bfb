"""Warren: allreduce and checkpoints for workers that may be killed at any moment.

    import numpy, warren

    with warren.init() as comm:
        state = {"w": numpy.zeros(10)}
        for epoch in comm.epochs(100, state):
            gradient = compute(state["w"], epoch, comm.rank)
            comm.allreduce(gradient, out=gradient)
            state["w"] -= 0.1 * gradient

`warren run -n 4 -- python program.py` starts it, and starts killed workers again. docs/python.md has the rest.

Errors: TypeError and ValueError for arguments, which name the argument, its dtype and shape; warren.Error, with a
subclass for each code, for what goes wrong on the way. A process that was forked cannot use its parent's communicator
(Closed). Ctrl-C ends a call that waits, and with it this worker's life in the job.
"""

import atexit as _atexit
import os as _os

from . import _core
from ._communicator import Checkpoint, Communicator, Epochs, init
from ._errors import (
    BY_NUMBER as _BY_NUMBER,
    Closed,
    Corrupt,
    Desync,
    Error,
    Exhausted,
    Finished,
    Internal,
    InvalidArgument,
    PeerLost,
    Refused,
    RolledBack,
    Timeout,
    Unavailable,
)
from ._group import Group
from ._handle import Handle

__version__ = _core.library_version()
Once = _core.Once

for _error in _BY_NUMBER.values():
    _error.__module__ = "warren"  # as tracebacks name it
Error.__module__ = "warren"
_core._set_error_classes(_BY_NUMBER)
_core._add_layer(_os.path.dirname(__file__) + _os.sep)
# The program may end without finalize. The library's threads are ended while the interpreter is whole.
_atexit.register(_core._destroy_all_jobs)

__all__ = [
    "Checkpoint",
    "Closed",
    "Communicator",
    "Corrupt",
    "Desync",
    "Epochs",
    "Error",
    "Exhausted",
    "Finished",
    "Group",
    "Handle",
    "Internal",
    "InvalidArgument",
    "Once",
    "PeerLost",
    "Refused",
    "RolledBack",
    "Timeout",
    "Unavailable",
    "init",
]
