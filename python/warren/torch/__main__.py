"""Runs a program of torch.distributed's as it is, as a worker of a job.

    warren run -n 4 -- python -m warren.torch train.py --its-options
    warren run -n 4 -- python -m warren.torch -m package.train --its-options

The module joins the job first, and sets what torchrun sets: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and
others. So Lightning and Accelerate know their ranks. When the program ends well the job is finished.
"""

from __future__ import annotations

import os
import runpy
import sys

from . import _job


def main() -> None:
    is_module = sys.argv[1:2] == ["-m"]
    program = sys.argv[2:] if is_module else sys.argv[1:]
    if not program or program[0].startswith("-"):
        sys.exit("usage: warren run -n N -- python -m warren.torch PROGRAM.py|-m MODULE [ARGUMENT…]")
    comm = _job.join().comm
    os.environ.update(
        RANK=str(comm.rank),
        WORLD_SIZE=str(comm.size),
        LOCAL_RANK=str(comm.local_rank),
        LOCAL_WORLD_SIZE=str(comm.local_size),
        GROUP_RANK=str(comm.rank // comm.local_size),
        MASTER_ADDR=_job.ADDRESS,
        MASTER_PORT="1",
        TORCHELASTIC_RUN_ID=_job.ADDRESS,
    )
    sys.argv = program
    try:
        if is_module:  # sys.path begins with the working directory, as with `python -m`
            runpy.run_module(program[0], run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = os.path.dirname(os.path.abspath(program[0]))
            runpy.run_path(program[0], run_name="__main__")
    except SystemExit as end:
        _end(end.code in (None, 0))
        raise
    except BaseException:
        _end(False)
        raise
    _end(True)


def _end(well: bool) -> None:
    if well:
        _job.leave()
    else:
        _job.abandon()


if __name__ == "__main__":
    main()
