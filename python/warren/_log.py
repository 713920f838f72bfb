"""The library's log lines as records of a logger."""

from __future__ import annotations

import atexit
import logging
import threading

from . import _core

# By the numbers of warren_log_level in c_api.h.
LEVELS = (logging.INFO, logging.WARNING, logging.ERROR)
MOST_LINES = 4096  # that wait for the logger
LAST_LINES_S = 5.0


class LogLines:
    """Gives the lines of a job to a logger, on a daemon thread. The library's threads never wait for the logger.

    `queue` is given to the communicator; the thread ends when that is destroyed, or could not be made.
    """

    def __init__(self, logger: logging.Logger):
        self.queue = _core.LogQueue(MOST_LINES)
        self._logger = logger
        self._thread = threading.Thread(target=self._run, name="warren-log", daemon=True)
        self._thread.start()
        # Registered after logging's own, and so called before the logger's handlers are closed.
        atexit.register(self._at_exit)

    def wait_for_last(self) -> None:
        """Returns when the logger has all lines, or after some seconds. The communicator was destroyed."""
        atexit.unregister(self._at_exit)
        if threading.current_thread() is not self._thread:
            self._thread.join(LAST_LINES_S)

    def _run(self) -> None:
        while (line := self.queue.next()) is not None:
            level, text = line
            self._logger.log(LEVELS[level], "%s", text)

    def _at_exit(self) -> None:
        _core._destroy_all_jobs()
        self._thread.join(LAST_LINES_S)
