"""What goes wrong: warren.Error, with a subclass for each thing that a program would react to."""

from __future__ import annotations


class Error(Exception):
    """A call failed. The text is the whole chain of causes: rank, peer and round where there are any, and what to do.

    `code` is the name of the code, as docs/errors.md lists them: "desync", "timeout", ….
    """

    code = "internal"
    rank: int | None = None
    """This worker's rank in its job; None where it had none yet."""
    peer: int | None = None
    """The other rank that it concerns; None where nobody can tell, or it concerns none."""
    round: str | None = None
    """In which round it happened, as texts name it: "5.3"; None: in none."""


class InvalidArgument(Error, ValueError):
    """Change the call or the setting. Nothing was sent, and the communicator stays usable."""

    code = "invalid_argument"


class Unavailable(Error):
    """Nobody answers, or a resource is missing."""

    code = "unavailable"


class Refused(Error):
    """The tracker or a peer said no: secret, job, version, world size."""

    code = "refused"


class Timeout(Error, TimeoutError):
    """Somebody did not answer in time."""

    code = "timeout"


class PeerLost(Error):
    """A rank is gone. Leave the communicator, and make another one to join again."""

    code = "peer_lost"


class Desync(Error):
    """Ranks called different things; the text names both places. Mend the program."""

    code = "desync"


class Closed(Error):
    """The communicator was finalized or destroyed, belongs to the parent of this process, or was fenced."""

    code = "closed"


class Exhausted(Error):
    """A limit was reached; the text names it."""

    code = "exhausted"


class Corrupt(Error):
    """Bytes do not match their checksum or format."""

    code = "corrupt"


class Internal(Error):
    """What nobody expected."""

    code = "internal"


class RolledBack(Error):
    """The job starts again from its newest checkpoint. Leave the communicator, make another one and load.

    Only with on_rollback="error": by default the process ends with exit code 77 and its launcher starts it again.
    """

    code = "rolled_back"


class Finished(Error):
    """The job has ended well: there is nothing left to do."""

    code = "finished"


# By the numbers of warren_code in c_api.h.
BY_NUMBER = {
    1: InvalidArgument,
    2: Unavailable,
    3: Refused,
    4: Timeout,
    5: PeerLost,
    6: Desync,
    7: Closed,
    8: Exhausted,
    9: Corrupt,
    10: Internal,
    11: RolledBack,
    12: Finished,
}
