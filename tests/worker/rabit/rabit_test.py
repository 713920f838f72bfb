"""rabit_test.py BIN PROGRAMS DATA: programs written for rabit, run by `warren run`, killed at every point where they can be
killed and by SIGKILL in between: their results are those of a run in which nothing happened, byte for byte."""

import gzip
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import unittest

WARREN = pathlib.Path(sys.argv[1]).resolve() / "warren"
PROGRAMS, DATA = (pathlib.Path(argument).resolve() for argument in sys.argv[2:4])
RANKS = 3
ENVIRONMENT = {name: value for name, value in os.environ.items()
               if not name.startswith(("WARREN_", "DMLC_", "rabit_", "SLURM_", "OMPI_", "PMI_"))}
HIT = re.compile(r"@@@Hit Mock Error:(\w+) version=(\d+) sequence=(\d+) trial=(\d+)")


class Finished:
    def __init__(self, code: int, text: str, results: list[bytes]):
        self.code, self.text, self.results = code, text, results

    @property
    def hits(self) -> list[tuple[int, int]]:
        return [(int(version), int(sequence)) for _, version, sequence, _ in HIT.findall(self.text)]


class Rabit(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="warren-rabit-")
        cls.addClassCleanup(folder.cleanup)
        cls.root = pathlib.Path(folder.name)
        cls.data = cls.root / "digits.csv"
        cls.data.write_bytes(b"\n".join(gzip.decompress(DATA.read_bytes()).splitlines()[:600]) + b"\n")

    def launch(self, program: str, *arguments: str, ranks: int = RANKS, flags: tuple[str, ...] = (), on_line=None) -> Finished:
        """Runs the program; `on_line` is given each line that it prints, at once."""
        with tempfile.TemporaryDirectory(dir=self.root) as out:
            # A process that finds something wrong ends, too, and must not be started again for ever.
            restarts = sum(argument.startswith("mock=") for argument in arguments) + (10 if on_line else 2)
            command = [WARREN, "run", "-n", ranks, f"--restarts={restarts}", "--round_timeout_ms=5000", *flags, "--",
                       PROGRAMS / f"rabit_{program}", f"out={out}", f"data={self.data}", *arguments]
            lines = []
            with subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  env=ENVIRONMENT) as process:
                for line in process.stdout:
                    lines.append(line)
                    if on_line:
                        on_line(line)
                code = process.wait(timeout=60)
            results = [path.read_bytes() for path in sorted(pathlib.Path(out).iterdir(), key=lambda path: int(path.name))]
        return Finished(code, "".join(lines), results)

    def calm(self, program: str, *arguments: str) -> Finished:
        finished = self.launch(program, *arguments, "report_stats=1")
        self.assertEqual(finished.code, 0, finished.text)
        self.assertEqual(len(finished.results), RANKS)
        self.assertGreater(len(finished.results[0]), 0)
        self.assertEqual(len(set(finished.results)), 1, "the ranks differ")
        return finished

    def points(self, calm: Finished) -> list[tuple[int, int]]:
        """Every (version, sequence) of a calm run, the checkpoints included."""
        operations = [int(n) for n in re.findall(r"\[v\d+\] .*operations=(\d+)", calm.text)]
        self.assertGreater(len(operations), 2, calm.text)
        return [(version, sequence) for version, count in enumerate(operations) for sequence in range(count + 1)]

    def kill_everywhere(self, program: str, *arguments: str, of=lambda version: True, ranks=range(RANKS)) -> list[Finished]:
        calm = self.calm(program, *arguments)
        points = [point for point in self.points(calm) if of(point[0])]
        killed = []
        for rank in ranks:
            mocks = [f"mock={rank},{version},{sequence},{trial}" for trial, (version, sequence) in enumerate(points)]
            finished = self.launch(program, *arguments, *mocks)
            self.assertEqual(finished.code, 0, finished.text)
            self.assertEqual(finished.hits, points, finished.text)
            self.assertNotIn("ended with exit code 255", finished.text)
            self.assertEqual(finished.results, calm.results, f"{program}: rank {rank} was killed everywhere")
            killed.append(finished)
        self.assertEqual(calm.hits, [])
        self.assertNotIn("set-up round", calm.text)
        return killed

    def test_basic(self):
        finished = self.launch("basic")
        self.assertEqual(finished.code, 0, finished.text)
        for rank in range(RANKS):
            self.assertIn(f"@node[{rank}] after-allreduce-max: a={{2, 3, 4}}", finished.text)
            self.assertIn(f"@node[{rank}] after-allreduce-sum: a={{6, 9, 12}}", finished.text)
            self.assertIn(f"rank {rank} of 3 distributed=1 previous={(rank + 2) % 3} on a machine", finished.text)

    def test_broadcast_and_types(self):
        for ranks in (1, 2, 5):
            finished = self.launch("broadcast", ranks=ranks)
            self.assertEqual(finished.code, 0, finished.text)

    def test_c_interface(self):
        self.kill_everywhere("c_program", ranks=[1])

    def test_model_recover(self):
        self.kill_everywhere("recover", "kind=model")

    def test_local_recover(self):
        self.kill_everywhere("recover", "kind=local", ranks=[0, 2])

    def test_lazy_recover(self):
        self.kill_everywhere("recover", "kind=lazy", ranks=[0, 2])

    def test_looking_for_set_up_rounds_changes_nothing_where_there_are_none(self):
        for kind in ("local", "lazy"):
            self.kill_everywhere("recover", f"kind={kind}", "rabit_bootstrap_cache=1", ranks=[1])

    def test_k_means_with_set_up_rounds(self):
        for finished in self.kill_everywhere("kmeans", "k=4", "rabit_bootstrap_cache=1", ranks=[0, 2]):
            self.assertIn("taken for a set-up round", finished.text)

    def test_logistic_regression_by_lbfgs(self):
        self.kill_everywhere("logistic", ranks=[1])

    def test_a_round_that_comes_back_is_no_set_up_round(self):
        self.kill_everywhere("periodic", ranks=[0])
        finished = self.launch("periodic", "rabit_bootstrap_cache=1", flags=("--restarts=0",))
        self.assertEqual((finished.code, finished.results), (255, []), finished.text)
        self.assertRegex(finished.text, r"periodic\.cc:\d+: made in version 0, not in version 1, and now in version 3")

    def test_all_ranks_are_killed(self):
        calm = self.calm("recover", "kind=local")
        mocks = [f"mock={rank},{version},{sequence},{trial}" for rank, points in
                 enumerate([[(0, 1), (2, 0)], [(0, 3), (1, 4), (3, 2)], [(1, 0), (2, 3)]])
                 for trial, (version, sequence) in enumerate(points)]
        finished = self.launch("recover", "kind=local", *mocks)
        self.assertEqual(finished.code, 0, finished.text)
        self.assertEqual(len(finished.hits), 7)
        self.assertEqual(finished.results, calm.results)

    def test_a_process_dies_twice_at_one_point_only_if_it_is_told_to(self):
        finished = self.launch("recover", "mock=1,1,2,0")
        self.assertEqual((finished.code, finished.hits), (0, [(1, 2)]), finished.text)
        finished = self.launch("recover", "mock=1,1,2,0", "mock=1,1,2,1")
        self.assertEqual((finished.code, finished.hits), (0, [(1, 2), (1, 2)]), finished.text)

    def test_what_is_replayed_is_not_prepared(self):
        finished = self.launch("recover", "mock=1,1,3,0", "mock=1,2,4,1")
        self.assertEqual((finished.code, finished.hits), (0, [(1, 3), (2, 4)]), finished.text)
        prepared = re.findall(r"prepared rank (\d) version (\d)", finished.text)
        self.assertEqual(sorted(prepared), [(str(rank), str(version)) for rank in range(RANKS) for version in range(4)])

    def test_without_restarts_a_kill_point_ends_the_job(self):
        finished = self.launch("recover", "mock=1,1,2,0", flags=("--restarts=0",))
        self.assertEqual(finished.code, 254, finished.text)

    def test_killed_at_random_in_large_rounds(self):
        for algorithm in ("auto", "ring"):
            flags = (f"--algorithm={algorithm}",)
            calm = self.launch("large", flags=flags)
            self.assertEqual(calm.code, 0, calm.text)
            choice = random.Random(4)
            kills = 0

            def kill(line: str):
                nonlocal kills
                said = re.search(r"pid (\d+) version \d+ (\w+)", line)
                if said and kills < 8 and choice.random() < 0.3:
                    kills += 1
                    try:
                        os.kill(int(said.group(1)), signal.SIGKILL)
                    except ProcessLookupError:
                        pass

            finished = self.launch("large", flags=flags, on_line=kill)
            self.assertEqual(finished.code, 0, finished.text)
            self.assertGreater(kills, 3)
            self.assertEqual(finished.results, calm.results)

    # ---- one process

    def run_alone(self, program: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess:
        return subprocess.run([str(PROGRAMS / f"rabit_{program}"), *arguments], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, env=ENVIRONMENT | variables, timeout=60)

    def test_a_world_of_one_needs_nothing(self):
        done = self.run_alone("basic")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("@node[0] after-allreduce-sum: a={0, 1, 2}", done.stdout)
        self.assertIn("rank 0 of 1 distributed=0 previous=0", done.stdout)
        for program, *arguments in (("recover", "kind=local"), ("recover", "kind=lazy"), ("broadcast",),
                                    ("kmeans", f"data={self.data}"), ("logistic", f"data={self.data}"),
                                    ("basic", "rabit_tracker_uri=NULL")):
            done = self.run_alone(program, *arguments)
            self.assertEqual(done.returncode, 0, done.stdout)

    def test_kill_points_in_a_world_of_one(self):
        self.assertEqual(self.run_alone("recover", "mock=0,1,2,0").returncode, 254)
        self.assertEqual(self.run_alone("recover", "mock=0,1,2,0", "rabit_num_trial=1").returncode, 0)
        self.assertEqual(self.run_alone("recover", "mock=0,1,2,3", DMLC_NUM_ATTEMPT="3").returncode, 254)
        self.assertEqual(self.run_alone("recover", "mock=0,1,2,0", WARREN_ATTEMPT="1").returncode, 0)
        self.assertEqual(self.run_alone("plain", "mock=0,0,0,0").returncode, 0, "only rabit_mock_static has them")

    def test_never_alone_by_accident(self):
        known = {"WARREN_WORKER_ID": "0", "WARREN_INSECURE_NO_AUTH": "1", "WARREN_JOIN_TIMEOUT_MS": "300"}
        for arguments, variables in (
                ([], {"WARREN_TRACKER": "127.0.0.1:1", "WARREN_WORLD_SIZE": "2"}),
                (["rabit_tracker_uri=127.0.0.1", "rabit_tracker_port=1", "rabit_world_size=2"], {}),
                ([], {"rabit_tracker_uri": "127.0.0.1", "rabit_tracker_port": "1", "rabit_world_size": "2"}),
                ([], {"DMLC_TRACKER_URI": "127.0.0.1", "DMLC_TRACKER_PORT": "1", "DMLC_NUM_WORKER": "2"}),
                ([], {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "0"})):
            done = self.run_alone("basic", *arguments, **(known | variables))
            self.assertEqual(done.returncode, 255, done.stdout)
            self.assertIn("init failed", done.stdout)
            self.assertNotIn("after-allreduce", done.stdout)

    def test_other_roles_have_nothing_to_do(self):
        done = self.run_alone("basic", DMLC_ROLE="server", DMLC_TRACKER_URI="127.0.0.1")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertNotIn("after-allreduce", done.stdout)

    def test_a_wrong_parameter_is_named(self):
        done = self.run_alone("basic", "rabit_world_size=many")
        self.assertEqual(done.returncode, 255, done.stdout)
        self.assertIn("rabit: the argument rabit_world_size is 'many'", done.stdout)

    def test_what_ranks_disagree_about_is_named_with_its_line(self):
        finished = self.launch("disagree", flags=("--restarts=0",), ranks=2)
        self.assertNotEqual(finished.code, 0)
        self.assertEqual(set(re.findall(r"\) at disagree\.cc:(\d+)", finished.text)), {"8", "10"}, finished.text)
        self.assertNotIn("got", finished.text)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[4:], verbosity=2)
