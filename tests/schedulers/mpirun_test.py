"""mpirun_test.py SOURCE WARREN MARCHER: workers under Open MPI's mpirun --enable-recovery. One is killed; what takes its place,
started by hand or by a launcher that mpirun has started, goes on, the others live, and the result is that of a run in which
nothing happened, byte for byte."""

import os
import pathlib
import re
import shutil
import signal
import struct
import sys
import tempfile
import unittest

import processes
from processes import output_of, start, wait_until

SOURCE, WARREN, MARCHER = (pathlib.Path(argument).resolve() for argument in sys.argv[1:4])
MPIRUN = shutil.which("mpirun.openmpi")


class Mpirun(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="warren-mpirun-", dir="/tmp")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.addCleanup(processes.end_all)
        processes.adopt_orphans()
        (port,) = processes.free_ports(1)
        self.env = processes.environment(TMPDIR=str(self.folder))  # mpirun keeps its session there
        output_of(self.env, WARREN, "keygen", f"--out={self.folder}/secret")
        self.log = self.folder / "tracker.out"
        start(self.log, self.env, WARREN, "tracker", f"--secret_file={self.folder}/secret",
              f"--data_dir={self.folder}/tracker", "--bind=127.0.0.1", f"--port={port}", "--http_port=-1", "--log_level=debug")
        self.env |= {"WARREN_TRACKER": f"127.0.0.1:{port}", "WARREN_SECRET_FILE": f"{self.folder}/secret",
                     "WARREN_JOB": "march"}
        self.stop, self.storm = self.folder / "stop", self.folder / "storm.result"

    def start_mpirun(self, count: int, *command):
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        return start(self.folder / "mpirun.out", self.env, MPIRUN, *root, "--oversubscribe", "--enable-recovery", "-n", count,
                     *command)

    def lives(self, name: str) -> list[tuple[str, str]]:
        """(rank, process) of each life that began."""
        return re.findall(r"(\d+) begins after step \d+ in process (\d+)", (self.folder / name).read_text(errors="replace"))

    def check_result(self, workers: int):
        result = self.storm.read_bytes()
        steps = struct.unpack("=q", result[:8])[0]
        calm = self.folder / "calm.result"
        output_of(processes.environment(), WARREN, "run", "-n", workers, "--", MARCHER, steps, calm, within_s=120)
        self.assertGreater(steps, 3)
        self.assertEqual(result, calm.read_bytes())

    def test_a_replacement_started_by_hand_takes_the_place_of_a_killed_worker(self):
        with processes.shown_on_failure(self.folder):
            mpirun = self.start_mpirun(3, MARCHER, self.stop, self.storm)
            wait_until("all workers are in the job", lambda: len(self.lives("mpirun.out")) == 3)
            processes.wait_for_commits(self.log)
            rank, victim = self.lives("mpirun.out")[1]
            told = pathlib.Path(f"/proc/{victim}/environ").read_bytes().split(b"\0")
            worker_id = next(word.partition(b"=")[2].decode() for word in told
                             if word.startswith(b"OMPI_COMM_WORLD_RANK="))
            os.kill(int(victim), signal.SIGKILL)
            wait_until("the others know", lambda: "was interrupted" in (self.folder / "mpirun.out").read_text())

            # What mpirun told the worker that it was, its replacement has to be told.
            by_hand = start(self.folder / "by_hand.out", self.env | {
                "WARREN_WORKER_ID": worker_id, "WARREN_WORLD_SIZE": "3", "WARREN_ATTEMPT": "1"}, MARCHER, self.stop, self.storm)
            wait_until("the replacement is in the job", lambda: self.lives("by_hand.out"))
            self.assertEqual(self.lives("by_hand.out")[0][0], rank)
            processes.wait_for_commits(self.log)
            self.stop.touch()
            self.assertEqual(by_hand.wait(60), 0)
            # It would be 0 whatever they ended with: docs/schedulers.md.
            self.assertEqual(mpirun.wait(60), 0)
            self.assertEqual(len(self.lives("mpirun.out")), 3, "mpirun has started a worker again")
            self.assertNotIn("failed ", (self.folder / "mpirun.out").read_text())
            self.check_result(3)

    def test_launchers_start_their_workers_again(self):
        with processes.shown_on_failure(self.folder):
            mpirun = self.start_mpirun(
                2, "sh", "-c", 'exec "$0" run -n 2 --first_worker=$((2 * OMPI_COMM_WORLD_RANK)) '
                '--world_size=$((2 * OMPI_COMM_WORLD_SIZE)) -- "$@"', WARREN, MARCHER, self.stop, self.storm)
            wait_until("all workers are in the job", lambda: len(self.lives("mpirun.out")) == 4)
            processes.wait_for_commits(self.log)
            rank, victim = self.lives("mpirun.out")[3]
            os.kill(int(victim), signal.SIGKILL)
            wait_until("the worker is back", lambda: len(self.lives("mpirun.out")) == 5)
            self.assertEqual(self.lives("mpirun.out")[4][0], rank)
            processes.wait_for_commits(self.log)
            self.stop.touch()
            self.assertEqual(mpirun.wait(60), 0)
            self.assertEqual(len(self.lives("mpirun.out")), 5)
            self.check_result(4)


if __name__ == "__main__":
    if MPIRUN is None:
        print("SKIPPED: Open MPI's mpirun is not installed (./dev setup installs it)", file=sys.stderr)
        sys.exit(processes.SKIPPED)
    unittest.main(argv=sys.argv[:1], verbosity=2)
