"""The library's log lines go to a logger, on a thread of its own, until the communicator is destroyed."""

import logging
import os
import sys
import threading

import warren

records = []


class Keep(logging.Handler):
    def emit(self, record):
        records.append(record)


class Last(logging.Handler):
    """Says what comes while the program ends, until the module `logging` closes it."""

    def emit(self, record):
        os.write(1, f"logged at the end: {record.getMessage()}\n".encode())


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "warren-log"]


logger = logging.getLogger("job")
logger.setLevel(logging.INFO)
logger.propagate = False
logger.addHandler(Keep())
for wrong, kind in (({"chunk_bytes": "1Q"}, warren.InvalidArgument), ({"chunk_byte": "1M"}, TypeError)):
    try:
        warren.init(logger=logger, **wrong)
    except kind:
        continue
    raise AssertionError(wrong)
assert not records, records
assert not threads(), "the thread of a communicator that could not be made has ended"
if sys.argv[1] == "leave":
    logger.addHandler(Last())
    comm = warren.init(logger=logger)
    assert comm.allreduce(1) == comm.size
else:
    with warren.init(logger=logger) as comm:
        assert len(threads()) == 1
        assert comm.allreduce(1) == comm.size
    assert not threads()
    assert any("warren " in record.getMessage() and record.levelno == logging.INFO for record in records), records
