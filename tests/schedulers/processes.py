"""Processes that a test starts, and all that comes of them, ended with it; waiting for events; ports."""

import contextlib
import ctypes
import os
import pathlib
import random
import re
import select
import signal
import socket
import subprocess
import time

SKIPPED = 77
PR_SET_CHILD_SUBREAPER = 36

started: list[subprocess.Popen] = []


def adopt_orphans() -> None:
    """Daemons' children that outlive them become this process' own, so that end_all() finds them."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children_of(pid: int) -> list[int]:
    found = []
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(stat.parent.name))
    return found


def descendants() -> list[int]:
    found, todo = [], [os.getpid()]
    while todo:
        children = children_of(todo.pop())
        found += children
        todo += children
    return found


def end_all(patience_s: float = 10) -> None:
    """Ends every descendant of this process: politely, then by SIGKILL until none is left."""
    deadline = time.monotonic() + patience_s
    for pid in children_of(os.getpid()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    while True:
        for process in started:
            process.poll()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0] != 0:
                pass
        left = descendants()
        if not left:
            return
        if time.monotonic() > deadline:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        wait_for_one(left, max(0.1, deadline - time.monotonic()))


def wait_for_one(pids: list[int], within_s: float) -> None:
    """Until one of them has ended."""
    with contextlib.ExitStack() as stack:
        ends = []
        for pid in pids:
            try:
                ends.append(os.pidfd_open(pid))
            except ProcessLookupError:
                return
            stack.callback(os.close, ends[-1])
        select.select(ends, [], [], within_s)


def free_ports(count: int) -> list[int]:
    """Not of those that the system gives to whoever asks for any: srun would get one before it is used."""
    ports = []
    while len(ports) < count:
        port = random.SystemRandom().randrange(20000, 30000)
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            ports += [port] if port not in ports else []
    return ports


def environment(**changes: str) -> dict[str, str]:
    """This process' environment without what configures Warren, Slurm or Open MPI."""
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith(("WARREN_", "SLURM", "SBATCH_", "SALLOC_", "OMPI_", "PMIX_", "PMI_"))}
    return kept | changes


def wait_until(what: str, happened, within_s: float = 60):
    """What `happened` returns once that is true; an AssertionError that names `what` after the time."""
    deadline = time.monotonic() + within_s
    while True:
        if result := happened():
            return result
        if time.monotonic() > deadline:
            raise AssertionError(f"after {within_s:g} s still not: {what}")
        time.sleep(0.05)


@contextlib.contextmanager
def shown_on_failure(folder: pathlib.Path):
    """Prints the ends of the logs in `folder` if what runs inside fails."""
    try:
        yield
    except BaseException:
        for file in sorted([*folder.glob("*.out"), *folder.glob("*.log")]):
            print(f"==== {file.name}", *file.read_text(errors="replace").splitlines()[-60:], sep="\n")
        raise


def wait_for_commits(log: pathlib.Path, more: int = 3) -> None:
    """Until the job, by what its tracker logs, has committed so many checkpoints more."""
    def committed() -> int:
        return max(map(int, re.findall(r"committed: version (\d+) ", log.read_text(errors="replace"))), default=0)
    before = committed()
    wait_until(f"the job has gone on from version {before}", lambda: committed() >= before + more)


def start(log: pathlib.Path, env: dict[str, str], *command) -> subprocess.Popen:
    with open(log, "ab") as file:
        started.append(subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                                        env=env, cwd=log.parent))
    return started[-1]


def output_of(env: dict[str, str], *command, within_s: float = 60) -> str:
    result = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, env=env, timeout=within_s, text=True, check=False)
    if result.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))} ended with {result.returncode}:\n{result.stdout}")
    return result.stdout


def is_listening(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
