"""Arguments that cannot be right are found before anything is sent, and the communicator stays usable."""

import contextlib
import os
import pathlib
import re

import numpy as np
import warren


ROOT = pathlib.Path(__file__).resolve().parents[3]


@contextlib.contextmanager
def raises(kind, *words):
    try:
        yield
    except kind as error:
        for word in words:
            assert word in str(error), (word, str(error))
    else:
        raise AssertionError(f"no {kind.__name__} with {words}")


with raises(TypeError, "world_sise", "did you mean world_size"):
    warren.init(world_sise=3)
with raises(TypeError, "grace_ms is float, not str, bool or int"):
    warren.init(grace_ms=0.5)
with raises(TypeError, "tracker is bytes"):
    warren.init(tracker=b"localhost")
with raises(ValueError, "null character"):
    warren.init(job="a\0b")
with raises(warren.InvalidArgument, "world_size"):
    warren.init(world_size=2**40)
with raises(warren.InvalidArgument, "chunk_bytes"):
    warren.init(chunk_bytes="1Q")
# Every setting of the documentation is an option. An empty text is refused after the name has been found.
SETTINGS = re.findall(r"^\| `(\w+)` \| `WARREN_", (ROOT / "docs/settings.md").read_text(), re.MULTILINE)
assert len(SETTINGS) > 50, SETTINGS
for name in SETTINGS:
    with raises(warren.InvalidArgument, name, "has no value"):
        warren.init(**{name: ""})
with raises(warren.InvalidArgument, "round_timeout_ms"):
    warren.init(round_timeout_ms=1)

# Options come before variables, also those that switch off what is on, and on what is off.
os.environ.update(WARREN_CHECKSUMS="0", WARREN_CHECK_CALL_SITES="1", WARREN_REWIRE="1", WARREN_STREAMS="2")
timeline = pathlib.Path(os.environ["WARREN_SECRET_FILE"] + ".timeline")
given = {"checksums": True, "check_call_sites": False, "rewire": False, "streams": None, "timeline": timeline}
with warren.init(**given, round_timeout_ms=np.int64(5000), chunk_bytes="128K") as comm:
    x = np.ones((2, 3))
    with raises(TypeError, "x is ndarray of complex64, shape (2, 3)", "float64"):
        comm.allreduce(x.astype("complex64"))
    with raises(TypeError, "datetime64"):
        comm.allreduce(np.zeros(1, "datetime64[s]"))
    with raises(TypeError, ">f8"):
        comm.allreduce(x.astype(">f8"))
    with raises(TypeError, "x is list"):
        comm.allreduce([1.0, 2.0])
    with raises(TypeError, "x is NoneType"):
        comm.allreduce(None)
    with raises(ValueError, "x is not C-contiguous", "(3, 2)", "ascontiguousarray"):
        comm.allreduce(x.T)
    with raises(ValueError, "out is not C-contiguous"):
        comm.allreduce(x, out=np.ones((3, 2)).T)
    with raises(TypeError, "out is of float32, and x of float64"):
        comm.allreduce(x, out=x.astype("float32"))
    with raises(ValueError, "out has 3 elements, not 6"):
        comm.allreduce(x, out=np.ones(3))
    frozen = x.copy()
    frozen.flags.writeable = False
    with raises(ValueError, "out is read-only"):
        comm.allreduce(x, out=frozen)
    with raises(ValueError, "x is read-only"):
        comm.broadcast(frozen)
    with raises(ValueError, "op is 'mean'", "'average'"):
        comm.allreduce(x, "mean")
    with raises(TypeError, "op is 3"):
        comm.allreduce(x, 3)
    with raises(ValueError, "wire is 'f8'"):
        comm.allreduce(x, wire="f8")
    with raises(warren.InvalidArgument, "algorithm"):
        comm.allreduce(x, algorithm="fastest")
    with raises(ValueError, "64 bits"):
        comm.allreduce(2**64)
    with raises(TypeError, "Python number"):
        comm.allreduce(1.0, out=x)
    with raises(ValueError, "first axis of x", "reshape"):
        comm.reduce_scatter(x)
    with raises(warren.InvalidArgument, "root"):
        comm.broadcast(x, 7)
    assert issubclass(warren.InvalidArgument, ValueError)
    with raises(warren.InvalidArgument, "bit"):
        comm.allreduce(x, "bit_and")
    with raises(TypeError, "prepare is not a function"):
        comm.allreduce(x, prepare=3)
    with raises(TypeError, "prepare", "Python number"):
        comm.allreduce(1.0, prepare=print)
    with raises(ValueError, "counts has 2 entries"):
        comm.allgatherv(x, [3, 3])
    with raises(ValueError, "x has 6 elements, not 5"):
        comm.allgatherv(x, [5])
    with raises(TypeError, "counts is [6.0]", "ints"):
        comm.allgatherv(x, [6.0])
    with raises(TypeError, "counts is 6", "sequence"):
        comm.reduce_scatterv(x, 6)
    with raises(TypeError, "counts_from is [-1]", "below 0"):
        comm.all_to_allv(x, [6], [-1])
    with raises(ValueError, "counts_to has 2 entries"):
        comm.all_to_allv(x, [3, 3], [6])
    with raises(ValueError, "scatter_object: values is 2 objects"):
        comm.scatter_object([1, 2])
    with raises(ValueError, "max_bytes is -1"):
        with comm.fuse(-1):
            pass
    with raises(ValueError, "1 to 128 bytes"):
        comm.once("")
    with raises(TypeError, "state['a/0']", "object"):
        comm.checkpoint({"a": [object()]})
    comm.load_checkpoint()
    with raises(warren.InvalidArgument, "has loaded already"):
        comm.epochs(3, {})
    assert comm.allreduce(2) == 2
with raises(warren.Closed, "destroyed"):
    comm.allreduce(x)
with raises(warren.Closed, "destroyed"):
    comm.rank
comm.destroy()  # again: nothing
