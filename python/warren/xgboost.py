"""XGBoost over Warren: distributed training that survives lost workers, with PyPI's XGBoost as it is.

    import warren, warren.xgboost, xgboost

    x, y = load_share(rank, size)                        # this worker's rows

    with warren.init() as comm:
        booster = warren.xgboost.train(comm, {"objective": "binary:logistic"}, lambda: xgboost.DMatrix(x, y), 200)

docs/xgboost.md has the rest.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import typing
import warnings

import numpy
import xgboost
from xgboost import collective, tracker

from ._cluster import address_towards
from ._errors import InvalidArgument

if typing.TYPE_CHECKING:
    from ._communicator import Communicator

__all__ = ["train"]

# Attempts at one segment in which nobody was lost, after which its error is the program's.
ATTEMPTS = 3
# A rank's message about an attempt. The message fits into one chunk, so that it comes from one life as a whole.
ENTRY_BYTES = 1024


def train(
    comm: Communicator,
    params: dict[str, typing.Any],
    make_data: typing.Callable[[], xgboost.DMatrix],
    num_boost_round: int = 100,
    *,
    checkpoint_every: int = 10,
    after_segment: typing.Callable[[int, xgboost.Booster], object] | None = None,
    host: str | None = None,
    timeout_s: int = 300,
    **arguments: typing.Any,
) -> xgboost.Booster:
    """Collective: trains one model on the rows of all ranks, and returns it on all of them, equal to the byte.

    params: XGBoost's, equal on all ranks.
    make_data: returns a new DMatrix (or QuantileDMatrix) of this rank's rows, the same in each call and each life. It is
    called in each segment, while XGBoost's ranks are connected.
    checkpoint_every: the boosting rounds of a segment. A checkpoint is taken after each; a restarted worker begins at the
    last one, and a segment in which a worker was lost is made again. A segment begins with a new booster that continues from
    the model.
    after_segment: called after each checkpoint with the rounds that are done and the booster, and not for segments that
    the newest checkpoint holds.
    host: the numeric address at which other ranks reach rank 0's process; None: the one from which it reaches the
    tracker of the job. timeout_s: how long XGBoost waits for another rank, in seconds, inside a segment.
    arguments: more of xgboost.train's, equal on all ranks: `obj`, `maximize`, … not `evals`, `callbacks` and
    `early_stopping_rounds`, which would begin anew in each segment.
    Loads the newest checkpoint: a program calls it once, and does not call load_checkpoint. Raises warren.Error for what
    goes wrong among the ranks, and xgboost.core.XGBoostError for what XGBoost finds wrong three times in a row although
    nobody was lost.
    """
    if checkpoint_every < 1 or num_boost_round < 0:
        raise ValueError(f"train: checkpoint_every is {checkpoint_every}, num_boost_round {num_boost_round}")
    for name in ("evals", "callbacks", "early_stopping_rounds", "xgb_model", "evals_result"):
        if name in arguments:
            raise ValueError(f"train: {name} is given: training goes by segments; use after_segment")
    loaded = comm.load_checkpoint()
    model, done = b"", 0
    if loaded is not None:
        if not isinstance(loaded.state, dict) or loaded.state.keys() != {"model", "rounds"}:
            raise InvalidArgument("train: the newest checkpoint is not of train(): the program has changed since")
        model, done = loaded.state["model"], loaded.state["rounds"]
    segments = _Segments(comm, host or _address_towards_tracker(), timeout_s)
    while done < num_boost_round:
        rounds = min(checkpoint_every - done % checkpoint_every, num_boost_round - done)
        of_segment = _seeded(params, done)

        def boost(before: bytes = model, rounds: int = rounds, of_segment: dict[str, typing.Any] = of_segment) -> bytes:
            data = make_data()
            booster = xgboost.train(of_segment, data, rounds, xgb_model=_booster(before) if before else None, **arguments)
            return bytes(booster.save_raw("ubj"))

        model, done = segments.make(boost), done + rounds
        comm.checkpoint({"model": model, "rounds": done})
        if after_segment is not None:
            after_segment(done, _booster(model))
    if not model:
        raise ValueError("train: num_boost_round is 0, and there is no checkpoint")
    return _booster(model)


def _seeded(params: dict[str, typing.Any], done: int) -> dict[str, typing.Any]:
    """A seed that follows from the rounds that are done, so that each life draws the same in a segment."""
    seed = int(params.get("seed", params.get("random_state", 0)))  # two names of one setting
    return {**params, "seed": (seed + 1000003 * done) % 2**31}


def _booster(model: bytes) -> xgboost.Booster:
    return xgboost.Booster(model_file=bytearray(model))


def _address_towards_tracker() -> str:
    """The address from which this process reaches the job's tracker, and at which others of its network reach it."""
    tracker_name = os.environ.get("WARREN_TRACKER")
    if tracker_name is None:
        raise ValueError("train: WARREN_TRACKER is not set: give host=, at which other ranks reach this process")
    parts = re.fullmatch(r"\[(.+)\](?::\d+)?|([^:]+)(?::\d+)?|(.+)", tracker_name)
    name = next(part for part in parts.groups() if part) if parts else tracker_name
    return address_towards(name)


class _Segments:
    """Makes segments, each in an attempt of its own of XGBoost's ranks, until an attempt has succeeded.

    XGBoost's ranks know nothing of a worker's next life: where one is lost, all others get an error. So the ranks tell
    each other over Warren how an attempt has ended, and begin another. A worker that is started again replays what was
    told, and meets the others in the attempt that is under way.
    """

    def __init__(self, comm: Communicator, host: str, timeout_s: int):
        self.comm = comm
        self.host = host
        self.timeout_s = timeout_s
        self.life = secrets.randbits(63)  # tells this process from the worker's other lives

    def make(self, boost: typing.Callable[[], bytes]) -> bytes:
        """The model at the end of the segment that `boost` makes while XGBoost's ranks are connected."""
        lives_before: list[int] = []
        attempts = 0
        while True:
            model, error, lives = self._attempt(boost)
            shared = self._share(model)
            if shared is not None:
                return shared
            attempts = attempts + 1 if lives == lives_before else 1
            lives_before = lives
            if attempts == ATTEMPTS:
                raise error or xgboost.core.XGBoostError(
                    f"train: another rank has failed in {ATTEMPTS} attempts at this segment; its process says why"
                )

    def _attempt(
        self, boost: typing.Callable[[], bytes]
    ) -> tuple[bytes | None, xgboost.core.XGBoostError | None, list[int]]:
        """What this rank has made of the segment, or why it has made nothing; and the lives that took part."""
        with _tracker_at(self.comm, self.host) as place:
            entries = self._tell({"life": self.life, "place": place})
            lives = [int(entry["life"]) for entry in entries]
            if self.comm.rank == 0 and lives[0] != self.life:
                return None, None, lives  # this attempt had its tracker in an earlier life of this process
            try:
                with _connected(self.comm.rank, entries[0]["place"], self.timeout_s):
                    return boost(), None, lives
            except xgboost.core.XGBoostError as error:
                return None, error, lives

    def _tell(self, entry: dict[str, typing.Any]) -> list[dict[str, typing.Any]]:
        text = json.dumps(entry).encode()
        row = numpy.zeros(ENTRY_BYTES, "uint8")
        row[: len(text)] = numpy.frombuffer(text, "uint8")
        return [json.loads(bytes(other).rstrip(b"\0")) for other in self.comm.allgather(row)]

    def _share(self, model: bytes | None) -> bytes | None:
        """The model, on all ranks, if the attempt has succeeded on one at least; None: on no rank.

        A rank that finishes its segment has had all ranks' part in each round of it, whatever happens then. The model
        is sent even if all ranks have it, and only what was sent decides: it is what a rank has in its next life.
        """
        while True:
            told = self.comm.allgather(numpy.array(_size_and_hash(model), "uint64"))
            holders = numpy.flatnonzero(told[:, 0])
            if holders.size == 0:
                return None
            sender = int(holders[0])
            received = numpy.zeros(int(told[sender, 0]), "uint8")
            if self.comm.rank == sender and model is not None:
                received[:] = numpy.frombuffer(model, "uint8")
            self.comm.broadcast(received, sender)
            # The sender's next life has zeros, or zeros behind what its last life had sent.
            if _size_and_hash(received.tobytes()) == tuple(told[sender].tolist()):
                return received.tobytes()


def _size_and_hash(model: bytes | None) -> tuple[int, int]:
    if model is None:
        return 0, 0
    return len(model), int.from_bytes(hashlib.sha256(model).digest()[:8], "little")


@contextlib.contextmanager
def _tracker_at(comm: Communicator, host: str) -> typing.Iterator[dict[str, typing.Any] | None]:
    """On rank 0 a block with a tracker of XGBoost's, which gives the arguments of those that connect to it."""
    if comm.rank != 0:
        yield None
        return
    place = tracker.RabitTracker(host_ip=host, n_workers=comm.size, sortby="task")
    place.start()
    try:
        yield place.worker_args()
    finally:
        # At once, also after a loss: a worker's next life that connects to it is refused, and does not wait.
        with contextlib.suppress(xgboost.core.XGBoostError):
            place.free()


@contextlib.contextmanager
def _connected(rank: int, place: dict[str, typing.Any], timeout_s: int) -> typing.Iterator[None]:
    """A block in which XGBoost's ranks are those of the communicator. It begins when all are there."""
    with _quiet():
        # XGBoost sorts ranks by the texts of their tasks.
        collective.init(**place, dmlc_task_id=f"{rank:08}", dmlc_timeout=timeout_s, dmlc_retry=1)
    try:
        yield
    finally:
        with _quiet(), contextlib.suppress(xgboost.core.XGBoostError):
            collective.finalize()


@contextlib.contextmanager
def _quiet() -> typing.Iterator[None]:
    """XGBoost says who connects, and warns where a worker was lost: Warren says that, too."""
    with xgboost.config_context(verbosity=0), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
