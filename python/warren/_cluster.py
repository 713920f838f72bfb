"""What warren.dask and warren.ray share: a tracker beside the program that starts a job, and the lives of a rank.

A job has a name of its own, and a secret that opens this job alone. The secret travels to the workers as part of a task,
by the cluster's own connections: it stands on no command line, in no environment, and on the workers in no file.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import logging
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import traceback
import typing
import urllib.error
import urllib.request
import uuid

from . import _core
from ._communicator import Communicator, init
from ._errors import Closed, Error, PeerLost, RolledBack, Timeout, Unavailable

LOGGER = logging.getLogger("warren")
# Settings that are the function's own: what a life is called, and how it ends.
OWN_SETTINGS = ("attempt", "max_workers", "on_rollback", "on_sigterm", "spare", "spares", "worker_id", "world_size")
POLL_S = 0.1  # how often a life asks whether it is still wanted
JOIN_TIMEOUT_MS = 300_000  # as the setting join_timeout_ms has it
REJOIN_S = 15.0  # how long a life that begins anew joins in one go, before it asks whether it is still wanted
FINALIZE_S = 30.0  # how long the ranks may take to finalize once their results are taken
LOCAL = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the status page is on this machine
FINALIZED_S = 10.0  # how long run() waits for that, with the results in its hands
TRACKER_RESTARTS = 5  # how often a tracker that has ended is started again within TRACKER_RESTARTS_S, in seconds
TRACKER_RESTARTS_S = 60.0
CLOSE_S = 10.0  # how long a tracker may take to end, in seconds, before it is killed


class NotPlaced(RuntimeError):
    """The cluster has had no room for a rank for as long as `timeout` says, or a rank was started too often."""


class Secret:
    """The bytes of a secret file. They are in no repr, and so in no log and no dashboard."""

    def __init__(self, data: bytes):
        self._data = data

    def __repr__(self) -> str:
        return "<a secret>"

    @contextlib.contextmanager
    def file(self) -> typing.Iterator[str]:
        """The path of a file in memory, which only this user's processes can open, and which goes with the process."""
        descriptor = os.memfd_create("warren-secret", os.MFD_CLOEXEC)
        try:
            os.fchmod(descriptor, 0o600)
            os.write(descriptor, self._data)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)


@dataclasses.dataclass(frozen=True)
class Job:
    """What a life of a rank needs to join."""

    name: str
    size: int
    tracker: str
    secret: Secret | None
    options: dict[str, typing.Any]
    restarts: int
    """How often a rank may begin anew."""


# ---- The tracker ----

# Starts the tracker when the program says so, and tells the program when the tracker ends. Ends the tracker when the
# program says so, or when the program that holds its standard input is gone. A job that has not ended in order is given
# up before: ranks that wait in warren.init hear of it.
GUARD = """
folder=$1; program=$2; host=$3; address=$4; job=$5
start() {
  (
    trap : TERM
    "$program" tracker --secret_file="$folder/tracker.secret" --data_dir="$folder/journal" --bind="$host" \
      --advertise="$host" --port="$1" --http_port="$2" --log_json </dev/null & tracker=$!
    wait $tracker 2>/dev/null
    status=$?
    while kill -0 $tracker 2>/dev/null; do wait $tracker 2>/dev/null; done
    echo "ended $status" >&2
  ) &
}
port=; in_order=
while read -r word value more; do
  case $word in
    start) start "$value" "$more" ;;
    port) port=$value ;;
    end) in_order=$value; break ;;
  esac
done
[ "$in_order" = yes ] || [ -z "$port" ] ||
  "$program" forget --force --job="$job" --tracker="$address:$port" --secret_file="$folder/tracker.secret" >/dev/null 2>&1
trap '' TERM
kill -TERM 0
wait
rm -rf "$folder"
"""


def program() -> str:
    """The path of the program `warren`: the wheel's own, or one in PATH."""
    for found in (str(pathlib.Path(__file__).parent / "warren_program"), shutil.which("warren")):
        if found and os.access(found, os.X_OK):
            return found
    raise RuntimeError("there is no program `warren` to start a tracker: put it into PATH, or give tracker=")


def address_towards(host: str) -> str:
    """The address of this machine by which `host` reaches it."""
    found = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(found[0], socket.SOCK_DGRAM) as probe:
        probe.connect(found[4])
        return str(probe.getsockname()[0])


class Tracker:
    """A tracker of one job, a process of this machine. It ends with this object, or with this program.

    A tracker that ends otherwise is started again, at the same address and with the same journal.
    """

    def __init__(self, job: str, host: str):
        self._program = program()
        self._folder = tempfile.mkdtemp(prefix="warren-tracker-")
        self._job = job
        self._closing = False
        self._failure = ""
        self._said: collections.deque[str] = collections.deque(maxlen=20)
        try:
            own, of_job = f"{self._folder}/tracker.secret", f"{self._folder}/job.secret"
            self._keygen(f"--out={own}")
            self._keygen(f"--out={of_job}", f"--from={own}", f"--job={job}")
            self.secret = Secret(pathlib.Path(of_job).read_bytes())
            os.unlink(of_job)
            shown = f"[{host}]" if ":" in host else host
            # A session of its own: Ctrl-C in the terminal is this program's, which ends the job in order.
            self._process = subprocess.Popen(
                ["sh", "-c", GUARD, "sh", self._folder, self._program, host, shown, job],
                stdin=subprocess.PIPE, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        assert self._process.stderr is not None
        self._say("start 0 0")
        ports = None
        for line in self._process.stderr:
            self._said.append(line.decode(errors="replace"))
            ports = re.search(r"on (\S+) port (\d+), HTTP on \S+ port (\d+)", self._said[-1])
            if ports or _ended(self._said[-1]):
                break
        if ports is None:
            self.close(in_order=True)
            raise RuntimeError(f"the tracker did not start: {''.join(self._said)}")
        self._said.clear()  # from here on it has the tracker's warnings
        self._say(f"port {ports[2]}")
        self.address = f"{shown}:{ports[2]}"
        self._ports = f"{ports[2]} {ports[3]}"
        self._status = f"http://127.0.0.1:{ports[3]}/status"
        threading.Thread(target=self._read, name="warren-tracker-log", daemon=True).start()

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()

    def _keygen(self, *flags: str) -> None:
        subprocess.run([self._program, "keygen", *flags], check=True, stdout=subprocess.DEVNULL)

    def _read(self) -> None:
        """Hands the tracker's warnings on, so that its pipe never fills up. Starts a tracker that has ended again."""
        assert self._process.stderr is not None
        ends: collections.deque[float] = collections.deque(maxlen=TRACKER_RESTARTS + 1)
        for line in self._process.stderr:
            if (status := _ended(line.decode(errors="replace"))) is not None:
                if not self._closing:
                    ends.append(time.monotonic())
                    self._start_again(status, ends)
                continue
            try:
                said = json.loads(line)
                text = None if said["severity"] == "info" else said["text"]
            except (ValueError, KeyError):
                text = line.decode(errors="replace").rstrip()
            if text is not None and not self._closing:
                self._said.append(text)
                LOGGER.warning("tracker: %s", text)
        if not self._closing and not self._failure:
            self._failure = f"the tracker of job {self._job} at {self.address} and the shell that started it have ended"

    def _start_again(self, status: int, ends: typing.Sequence[float]) -> None:
        """ends: when trackers of this job have ended, the last of them now."""
        how = f"was killed by signal {status - 128}" if status > 128 else f"has ended with exit code {status}"
        what = f"the tracker of job {self._job} at {self.address} {how}"
        if len(ends) > TRACKER_RESTARTS and ends[-1] - ends[0] < TRACKER_RESTARTS_S:
            last = f"; its last warning was: {self._said[-1]}" if self._said else ""
            self._failure = f"{what}, {len(ends)} times within {TRACKER_RESTARTS_S:g} s{last}"
            return
        LOGGER.warning("%s; it is started again", what)
        if len(ends) > 1 and ends[-1] - ends[-2] < 1:  # its port may be free in a moment
            time.sleep(0.5)
        self._say(f"start {self._ports}")

    def check(self) -> None:
        """Unavailable: the tracker has ended for good."""
        if self._failure:
            raise Unavailable(f"{self._failure}. The run ends: no lost rank can join its job again")

    def job(self) -> dict[str, typing.Any] | None:
        """What the tracker's status page says of the job; None: nothing, or the tracker does not answer."""
        try:
            with LOCAL.open(self._status, timeout=2) as page:
                jobs = json.load(page)["jobs"]
        except (OSError, ValueError, KeyError):
            return None
        return next((job for job in jobs if job["job"] == self._job), None)

    def silent(self) -> set[int]:
        """The ranks that the tracker counts as lost."""
        job = self.job()
        return set() if job is None else {int(m["worker"]) for m in job["members"] if m["state"] == "lost"}

    def wait_for_end(self, seconds: float) -> bool:
        """Waits until all ranks have finalized, for so long at most: whether they have."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            job = self.job()
            if job is not None and job["state"] == "finished":
                return True
            time.sleep(0.02)
        return False

    def close(self, in_order: bool) -> None:
        """Ends the tracker, and before that the calls of ranks that are still in the job, unless it ended in order."""
        self._closing = True
        self._say(f"end {'yes' if in_order else 'no'}")
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            if self._process.wait(CLOSE_S) == 0:
                return
        # A tracker that is stopped, or whose shell was killed, ends with the processes of its session.
        LOGGER.warning("the tracker of job %s has not ended in order: it is killed", self._job)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def _ended(line: str) -> int | None:
    """The exit status of a tracker, from the line with which GUARD tells its end; None: this is another line."""
    ended = re.fullmatch(r"ended (\d+)\n?", line)
    return int(ended[1]) if ended else None


@contextlib.contextmanager
def job_of(
    kind: str, fn: typing.Any, size: int, host: str, restarts: int, options: dict[str, typing.Any]
) -> typing.Iterator[tuple[Job, Tracker | None]]:
    """A job's name, secret and tracker, for a block. Without `tracker` in the options one is started here."""
    if size < 1 or restarts < 0:
        raise ValueError(f"run: n is {size}, and restarts {restarts}; they are at least 1 and 0")
    if own := sorted(set(options) & set(OWN_SETTINGS)):
        raise ValueError(f"run: {', '.join(own)}: run() sets that itself, for each life of a rank")
    options = {name: value for name, value in options.items() if value is not None}
    label = re.sub(r"[^A-Za-z0-9._-]", "_", getattr(fn, "__name__", "function"))[:60]
    name = options.pop("job", None) or f"{kind}/{label}/{uuid.uuid4().hex[:12]}"
    checked = dict(options, job=name, tracker="127.0.0.1:1", worker_id="0", world_size=size)
    _core.Options(checked)  # names and values that cannot be are this program's error, before anything starts
    if tracker := options.pop("tracker", None):
        secret = None
        if file := options.pop("secret_file", None):
            secret = Secret(pathlib.Path(file).read_bytes())
        elif not options.get("insecure_no_auth"):
            raise ValueError("run: tracker= needs secret_file=, a file of this machine, or insecure_no_auth=True")
        yield Job(name, size, str(tracker), secret, options, restarts), None
        return
    if {"secret_file", "insecure_no_auth"} & options.keys():
        raise ValueError("run: secret_file and insecure_no_auth are of a tracker that is given by tracker=")
    own_tracker = Tracker(name, host)
    in_order = False
    try:
        yield Job(name, size, own_tracker.address, own_tracker.secret, options, restarts), own_tracker
        in_order = own_tracker.wait_for_end(FINALIZED_S)
    except Exception as error:
        if not isinstance(error, Unavailable):
            own_tracker.check()  # why a rank has failed
        raise
    finally:
        own_tracker.close(in_order)


# ---- A life of a rank ----


class Life:
    """One life of a rank in this process: `run` computes its result, and the rank then stays until it is not wanted.

    A rank that has its result serves the others' recoveries until the results of all of them are taken. Were it to
    leave before, a rank that dies with its result could not come back. So ranks ask each other, after the function has
    returned, whether all are released, and finalize when that is so.

    wanted: whether this life is still to continue; called on any thread.
    """

    def __init__(self, job: Job, index: int, wanted: typing.Callable[[], bool]):
        self._job, self._index, self._wanted = job, index, wanted
        self._lock = threading.Lock()
        self._comm: Communicator | None = None
        self._returned = False
        self._over = threading.Event()

    def run(self, call: typing.Callable[[Communicator], typing.Any]) -> typing.Any:
        """The function's result. Raises what it raises, with a note that names the rank."""
        threading.Thread(target=self._watch, name=f"warren-watch-{self._index}", daemon=True).start()
        try:
            comm, result = self._until_it_returns(call)
        except BaseException:
            self._over.set()
            raise
        self._returned = True
        threading.Thread(target=self._stay, args=(comm, call), name=f"warren-rank-{self._index}", daemon=True).start()
        return result

    def wait(self, seconds: float) -> bool:
        """Waits for the end of this life; False: the time is over."""
        return self._over.wait(seconds)

    def _join(self, **options: typing.Any) -> Communicator:
        job = self._job
        given = {"job": job.name, "tracker": job.tracker, "worker_id": str(self._index), "world_size": job.size,
                 "on_rollback": "error", **job.options, **options}  # fmt: skip
        with contextlib.ExitStack() as stack:
            if job.secret is not None:
                given["secret_file"] = stack.enter_context(job.secret.file())
            comm = init(**given)
        with self._lock:
            self._comm = comm
        return comm

    def _join_anew(self) -> Communicator:
        """Joins once more. The job may have ended with its program, and the scheduler's word of that may come later.

        Nothing interrupts a thread that joins, and a tracker that has gone answers nobody: the thread would be taken
        from other ranks for the whole join timeout.
        """
        most = float(self._job.options.get("join_timeout_ms") or JOIN_TIMEOUT_MS)
        until = time.monotonic() + most / 1000
        while True:
            try:
                return self._join(join_timeout_ms=int(min(most, 1000 * REJOIN_S)))
            except Timeout:
                if not self._wanted() or time.monotonic() >= until:
                    raise

    def _leave(self, comm: Communicator) -> None:
        with self._lock:
            self._comm = None
        comm.destroy()

    def _until_it_returns(self, call: typing.Callable[[Communicator], typing.Any]) -> tuple[Communicator, typing.Any]:
        begun = 0
        while True:
            comm = self._join() if begun == 0 else self._join_anew()
            try:
                return comm, call(comm)
            except BaseException as error:
                again = begun < self._job.restarts and self._begins_anew(error)
                if not again:
                    error.add_note(f"raised by rank {comm_rank(comm, self._index)} of {self._job.size} of job "
                                   f"{self._job.name}, in process {os.getpid()} on {socket.gethostname()}")  # fmt: skip
                self._leave(comm)
                if not again:
                    raise
                traceback.clear_frames(error.__traceback__)  # what the function held goes before it runs again
            begun += 1

    def _begins_anew(self, error: BaseException) -> bool:
        """Whether the job continues in another life of this rank, here: after a rollback, or where it was given up."""
        return isinstance(error, (RolledBack, PeerLost, Closed)) and self._wanted()

    def _stay(self, comm: Communicator, call: typing.Callable[[Communicator], typing.Any]) -> None:
        try:
            while comm.is_open:
                try:
                    while not comm.allreduce(0 if self._wanted() else 1, "min"):
                        time.sleep(POLL_S)
                    comm.finalize()
                    return
                except Error as error:
                    if not self._begins_anew(error):
                        raise
                    self._leave(comm)
                    comm, _ = self._until_it_returns(call)  # to the same result
        except BaseException as error:
            if self._wanted():  # others end by themselves
                LOGGER.warning("rank %d of job %s has left it: %s", self._index, self._job.name, error)
        finally:
            self._over.set()
            self._leave(comm)

    def _watch(self) -> None:
        """Ends the calls of a life that nobody wants any more."""
        while not self._over.wait(POLL_S):
            if self._wanted():
                continue
            if self._returned and self._over.wait(FINALIZE_S):
                return
            with self._lock:
                if self._comm is not None:
                    self._comm.abort("aborted: the task of this rank was cancelled, or the program that started it is gone")
            # The function may be outside of calls, or about to join once more.


def comm_rank(comm: Communicator, index: int) -> int:
    return comm.rank if comm.is_open else index
