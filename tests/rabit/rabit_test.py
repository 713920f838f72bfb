"""rabit_test.py BIN PROGRAMS DATA: programs written for rabit, run by `warren run`, killed at every point where they can be
killed and by SIGKILL in between: their results are those of a run in which nothing happened, byte for byte."""

import gzip
import os
import pathlib
import queue
import random
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import unittest

WARREN = pathlib.Path(sys.argv[1]).resolve() / "warren"
PROGRAMS, DATA = (pathlib.Path(argument).resolve() for argument in sys.argv[2:4])
RANKS = 3
ENVIRONMENT = {name: value for name, value in os.environ.items()
               if not name.startswith(("WARREN_", "DMLC_", "rabit_", "SLURM_", "OMPI_", "PMI_"))}
SOURCES = pathlib.Path(__file__).resolve().parent / "programs"
HIT = re.compile(r"@@@Hit Mock Error:(\w+) version=(\d+) sequence=(\d+) trial=(\d+)")

SAID = re.compile(r"pid (?P<pid>\d+) rank (?P<rank>\d+) version (?P<version>\d+) (?P<done>done: )?(?P<kind>\w+)")


class Finished:
    def __init__(self, code: int, text: str, results: list[bytes]):
        self.code, self.text, self.results = code, text, results

    @property
    def hits(self) -> list[tuple[int, int]]:
        return [(int(version), int(sequence)) for _, version, sequence, _ in HIT.findall(self.text)]


class RabitsTracker:
    """The beginning of rabit's tracker (dmlc-core's tracker.py): its protocol, and its end at any other one."""

    def __enter__(self):
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.printed = queue.Queue()
        threading.Thread(target=self.serve, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.socket.close()

    def serve(self):
        client = self.socket.accept()[0].makefile("rwb")
        number = lambda: struct.unpack("@i", client.read(4))[0]
        text = lambda: client.read(number()).decode()
        if number() != 0xff99:
            return
        client.write(struct.pack("@i", 0xff99))
        client.flush()
        if (number(), number(), text(), text()) == (-1, -1, "NULL", "print"):
            self.printed.put(text())


class Rabit(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="warren-rabit-")
        cls.addClassCleanup(folder.cleanup)
        cls.root = pathlib.Path(folder.name)
        cls.data = cls.root / "digits.csv"
        cls.data.write_bytes(b"\n".join(gzip.decompress(DATA.read_bytes()).splitlines()[:600]) + b"\n")

    def launch(self, program: str, *arguments: str, ranks: int = RANKS, flags: tuple[str, ...] = (), on_line=None,
               limits_restarts: bool = True, **variables: str) -> Finished:
        """Runs the program; `on_line` is given each line that it prints, at once."""
        with tempfile.TemporaryDirectory(dir=self.root) as out:
            # A process that finds something wrong ends, too, and must not be started again for ever.
            restarts = sum(argument.startswith("mock=") for argument in arguments) + (10 if on_line else 2)
            limit = [f"--restarts={restarts}"] if limits_restarts else []
            command = [WARREN, "run", "-n", ranks, *limit, "--round_timeout_ms=5000", *flags, "--",
                       PROGRAMS / f"rabit_{program}", f"out={out}", f"data={self.data}", *arguments]
            lines = []
            with subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  env=ENVIRONMENT | variables) as process:
                for line in process.stdout:
                    lines.append(line)
                    if on_line:
                        on_line(line)
                code = process.wait(timeout=60)
            results = [path.read_bytes() for path in sorted(pathlib.Path(out).iterdir(), key=lambda path: int(path.name))]
        return Finished(code, "".join(lines), results)

    def calm(self, program: str, *arguments: str, flags: tuple[str, ...] = ()) -> Finished:
        finished = self.launch(program, *arguments, "report_stats=1", flags=flags)
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

    def test_operations_before_the_load_are_not_counted(self):
        finished = self.launch("basic", "mock=0,0,0,0")
        self.assertEqual((finished.code, finished.hits), (0, []), finished.text)

    def test_broadcast_and_types(self):
        for ranks in (1, 2, 5):
            finished = self.launch("broadcast", ranks=ranks)
            self.assertEqual(finished.code, 0, finished.text)
            self.assertEqual(len(finished.results), ranks)
            self.assertEqual(len(set(finished.results)), 1, "the ranks differ")

    def test_broadcasts_types_and_slices_are_killed_everywhere(self):
        self.kill_everywhere("broadcast", ranks=[1])

    def test_c_interface(self):
        self.kill_everywhere("c_program", ranks=[1])

    def test_model_recover(self):
        self.kill_everywhere("recover", "kind=model")

    def test_local_recover(self):
        self.kill_everywhere("recover", "kind=local")

    def test_a_local_model_that_was_never_checkpointed_is_not_loaded(self):
        self.kill_everywhere("recover", "kind=unused", ranks=[1])

    def test_local_models_now_and_then_are_refused(self):
        for finished in (self.launch("recover", "kind=mixed").text, self.run_alone("recover", "kind=mixed").stdout):
            self.assertNotRegex(finished, r"prepared rank \d version 2")
            self.assertIn("rabit: CheckPoint with a local model, and there were checkpoints without one: give one in every "
                          "checkpoint, or in none", finished)

    def test_lazy_recover(self):
        self.kill_everywhere("recover", "kind=lazy", ranks=[0, 2])

    def test_k_means_with_set_up_rounds(self):
        for finished in self.kill_everywhere("kmeans", "k=4", ranks=[0, 2]):
            self.assertIn("taken for a set-up round", finished.text)

    def test_logistic_regression_by_lbfgs(self):
        self.kill_everywhere("logistic")

    def test_set_up_rounds_where_call_sites_are_compared(self):
        calm = self.calm("kmeans", "k=4")
        finished = self.launch("kmeans", "k=4", "mock=1,2,1,0", "mock=0,3,0,0", WARREN_CHECK_CALL_SITES="1")
        self.assertEqual((finished.code, len(finished.hits)), (0, 2), finished.text)
        self.assertIn("taken for a set-up round", finished.text)
        self.assertEqual(finished.results, calm.results)

    # ---- what the program's own functions throw

    def thrown(self, where: str, caught: int = 1, **variables: str) -> Finished:
        calm = self.calm("throws", "where=nowhere")
        finished = self.launch("throws", f"where={where}", f"caught={caught}", on_line=lambda line: None, **variables)
        self.assertEqual(finished.code, 0, finished.text)
        self.assertNotIn("went on", finished.text)
        self.assertEqual(finished.results, calm.results)
        return finished

    def test_a_prepare_function_throws(self):
        finished = self.thrown("prepare")
        self.assertIn("rank 1 of 3 has caught: row 7", finished.text)
        self.assertIn("rabit: this process is no part of its job any more: a call has thrown: row 7", finished.text)
        finished = self.thrown("prepare", caught=0)
        self.assertIn("row 7", finished.text)
        self.assertNotIn("has caught", finished.text)

    def test_the_model_of_a_lazy_checkpoint_throws(self):
        self.assertIn("rank 1 of 3 has caught: no model", self.thrown("save").text)

    def test_the_model_of_a_checkpoint_throws(self):
        finished = self.thrown("eager")
        self.assertIn("rank 1 of 3 has caught: no model", finished.text)
        self.assertIn("rabit: this process is no part of its job any more: a call has thrown: no model", finished.text)

    def test_after_an_error_that_is_caught_every_call_fails(self):
        finished = self.thrown("root", DMLC_WORKER_STOP_PROCESS_ON_ERROR="false")
        self.assertRegex(finished.text, r"rank 1 of 3 has caught: rabit: Broadcast at \S*throws\.cc:\d+: root 99; there are ")
        self.assertRegex(finished.text, "rabit: this process is no part of its job any more: Broadcast at .*root 99")

    def test_a_reduction_throws(self):
        self.assertIn("rabit: a reduction has thrown: no sum", self.thrown("reduce").text)

    def test_set_up_rounds_beside_rounds_that_recur(self):
        for finished in self.kill_everywhere("periodic"):
            self.assertIn("taken for a set-up round", finished.text)

    def test_set_up_rounds_of_iterations_with_several_versions(self):
        for versions, setup_in in ((2, 0), (2, 1), (3, 1), (1, 2), (2, 3)):
            with self.subTest(versions=versions, setup_in=setup_in):
                arguments = (f"versions={versions}", f"setup_in={setup_in}")
                for finished in self.kill_everywhere("iterations", *arguments, ranks=(1, 2)):
                    self.assertIn("taken for a set-up round", finished.text)

    def test_all_processes_are_killed_at_every_point_of_such_iterations(self):
        arguments = ("versions=2", "setup_in=0")
        calm = self.calm("iterations", *arguments)
        points = self.points(calm)
        mocks = [f"mock={rank},{version},{sequence},{trial}" for rank in range(RANKS)
                 for trial, (version, sequence) in enumerate(points)]
        finished = self.launch("iterations", *arguments, *mocks)
        self.assertEqual(finished.code, 0, finished.text)
        self.assertEqual(finished.results, calm.results)

    def test_what_all_make_again_in_later_iterations_is_what_a_new_process_is_given(self):
        """After all were killed in version 4 their set-up rounds give something else; rank 1 is killed again later."""
        arguments = ("versions=2", "setup_in=0", "seen=1")
        everywhere = [f"mock={rank},4,0,0" for rank in range(RANKS)]
        finished = self.launch("iterations", *arguments, *everywhere)
        self.assertEqual(finished.code, 0, finished.text)
        again = self.launch("iterations", *arguments, *everywhere, "mock=1,7,0,1")
        self.assertEqual(again.code, 0, again.text)
        self.assertEqual(len(set(again.results)), 1, "ranks hold different results of a set-up round")

    def test_several_processes_are_new_in_one_version(self):
        calm = self.calm("periodic")
        # In the second version, where nothing is decided; where both kinds recur; where all are new at once.
        for points in ([[(1, 0)], [(1, 1)], []], [[(1, 1)], [(1, 1)], [(1, 1)]], [[(6, 1)], [(6, 3)], [(6, 2)]],
                       [[(3, 0), (4, 2)], [(3, 1), (4, 1)], [(3, 1), (4, 0)]]):
            mocks = [f"mock={rank},{version},{sequence},{trial}" for rank, own in enumerate(points)
                     for trial, (version, sequence) in enumerate(own)]
            finished = self.launch("periodic", *mocks)
            self.assertEqual(finished.code, 0, finished.text)
            self.assertEqual(len(finished.hits), sum(map(len, points)), finished.text)
            self.assertEqual(finished.results, calm.results, points)

    def test_a_line_that_makes_rounds_of_both_kinds_is_an_error(self):
        calm = self.calm("periodic", "mixed=1")
        for _ in range(20):
            finished = self.launch("periodic", "mixed=1", "mock=1,3,1,0")
            if not finished.results:
                break
            # Version 3 was not committed yet when the process died in it: its next life begins in version 2, where the
            # line makes no round that recurs, and comes to nothing wrong.
            self.assertEqual(finished.results, calm.results, finished.text)
        self.assertEqual(finished.results, [], finished.text)
        self.assertRegex(finished.text, r"periodic\.cc:\d+: this line makes rounds that a process needs once")

    def test_without_the_cache_a_new_process_makes_its_rounds_alone(self):
        calm = self.calm("periodic", "rabit_bootstrap_cache=0")
        for limits_restarts in (True, False):
            finished = self.launch("periodic", "rabit_bootstrap_cache=0", "mock=1,4,1,0", limits_restarts=limits_restarts)
            self.assertEqual(finished.hits, [(4, 1)], finished.text)
            # Version 4 may not have been committed yet when the process died in it: its next life begins in version 3 then.
            self.assertRegex(finished.text, r"make all ranks call the same.*it goes on from version [34]")
            self.assertNotIn("taken for a set-up round", finished.text)
            restarted = finished.text.count("worker_restarted")
            if limits_restarts:  # all are started again together, and then make their rounds together
                self.assertEqual((finished.code, finished.results, restarted), (0, calm.results, 1 + RANKS), finished.text)
            else:  # the launcher's default: programs that call different things would do so again
                self.assertEqual((finished.code, restarted), (255, 1), finished.text)

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
            calm = self.calm("large", flags=flags)
            choice = random.Random(4)
            kills = 0

            def kill(line: str):
                nonlocal kills
                said = SAID.search(line)
                if said and not said["done"] and kills < 8 and choice.random() < 0.3:
                    kills += 1
                    self.kill(said)

            finished = self.launch("large", flags=flags, on_line=kill)
            self.assertEqual(finished.code, 0, finished.text)
            self.assertGreater(kills, 3)
            self.assertEqual(finished.results, calm.results)

    @staticmethod
    def kill(said: re.Match):
        try:
            os.kill(int(said["pid"]), signal.SIGKILL)
        except ProcessLookupError:
            pass

    @staticmethod
    def ended_a_round(text: str, kind: str, version: str, pid: str) -> bool:
        """Whether nobody had the round's result before the next life of the killed process was in it: then the process
        was killed before it had given all of its part."""
        said = [match for match in map(SAID.search, text.splitlines())
                if match and (match["kind"], match["version"]) == (kind, version)]
        entered = [i for i, match in enumerate(said) if not match["done"] and match["rank"] == "1"]
        entered_again = [i for i in entered if said[i]["pid"] != pid]
        done = [i for i, match in enumerate(said) if match["done"]]
        return len(entered) == 2 and entered_again != [] and done != [] and min(done) > min(entered_again)

    def test_killed_inside_of_ring_allreduces_and_allgathers(self):
        # 24 MB a rank: a round takes far longer than the line that says that it begins.
        size = "elements=3000000"
        for flags in (("--algorithm=ring",), ("--algorithm=ring", "--transport=tcp")):
            calm = self.calm("large", size, flags=flags)
            for kind in ("allreduce", "allgather"):
                killed = {}

                def kill(line: str):
                    said = SAID.search(line)
                    if not said or said["done"] or (said["kind"], said["rank"]) != (kind, "1"):
                        return
                    if said["version"] not in killed:
                        killed[said["version"]] = said["pid"]
                        self.kill(said)

                finished = self.launch("large", size, flags=flags, on_line=kill)
                self.assertEqual(finished.code, 0, finished.text)
                self.assertEqual(len(killed), 4)
                inside = [version for version, pid in killed.items() if self.ended_a_round(finished.text, kind, version, pid)]
                self.assertNotEqual(inside, [], f"no {kind} was cut:\n{finished.text}")
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

    def test_one_of_an_unknown_number_is_not_alone(self):
        for name in ("DMLC_TASK_ID", "JOB_COMPLETION_INDEX", "WARREN_WORKER_ID"):
            done = self.run_alone("basic", **{name: "1"})
            self.assertEqual(done.returncode, 255, done.stdout)
            self.assertIn(f"rabit: {name} is '1', and nothing says how many workers the job has: set WARREN_WORLD_SIZE",
                          done.stdout)
            self.assertNotIn("after-allreduce", done.stdout)

    def test_rabits_own_tracker_is_named_at_once(self):
        for as_argument in (False, True):
            with RabitsTracker() as tracker:
                given = {"DMLC_TRACKER_URI": "127.0.0.1", "DMLC_TRACKER_PORT": str(tracker.port), "DMLC_NUM_WORKER": "2",
                         "DMLC_TASK_ID": "1"}
                arguments = [f"{name}={value}" for name, value in given.items()] if as_argument else []
                arguments += ["rabit_world_size=2"] if as_argument else []
                # Without a word of rabit's tracker, the workers would wait for Warren's until this test gives up.
                variables = {"WARREN_INSECURE_NO_AUTH": "1", "WARREN_JOIN_TIMEOUT_MS": "3600000"}
                done = self.run_alone("basic", *arguments, **variables, **given)
                self.assertEqual(done.returncode, 255, done.stdout)
                self.assertIn(f"what answers at 127.0.0.1:{tracker.port} is rabit's own tracker", done.stdout)
                self.assertRegex(tracker.printed.get(timeout=60), "worker 1 is one of Warren's .* start `warren tracker`")

    def test_other_roles_have_nothing_to_do(self):
        done = self.run_alone("basic", DMLC_ROLE="server", DMLC_TRACKER_URI="127.0.0.1")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertNotIn("after-allreduce", done.stdout)

    def test_a_wrong_parameter_is_named(self):
        done = self.run_alone("basic", "rabit_world_size=many")
        self.assertEqual(done.returncode, 255, done.stdout)
        self.assertIn("rabit: the argument rabit_world_size is 'many'", done.stdout)

    def test_what_ranks_disagree_about_is_named_with_its_line(self):
        source = (SOURCES / "disagree.cc").read_text().splitlines()
        for call in ("allreduce", "broadcast", "allgather", "reducer"):
            lines = {str(number) for number, line in enumerate(source, 1) if line.endswith(f"// {call}")}
            self.assertEqual(len(lines), 2)
            finished = self.launch("disagree", f"call={call}", flags=("--restarts=0",), ranks=2)
            self.assertNotEqual(finished.code, 0)
            named = set(re.findall(r"\) at disagree\.cc:(\d+)", finished.text))
            if call in ("broadcast", "allgather"):  # with a root that has gone on
                self.assertTrue(named & lines, finished.text)
            else:
                self.assertEqual(named, lines, finished.text)
            self.assertNotIn("got", finished.text)

    def test_what_the_headers_bring_in(self):
        finished = self.launch("headers")
        self.assertEqual(finished.code, 0, finished.text)
        self.assertIn("3 words of 3 processes", finished.text)

    def test_notes_are_said_once_a_job(self):
        finished = self.launch("basic", "rabit_timeout=9")
        self.assertEqual(finished.text.count("rabit: rabit_timeout: a lost worker is waited for"), 1, finished.text)

    def test_a_program_handles_messages_itself(self):
        done = self.run_alone("messages")
        self.assertEqual(done.returncode, 3, done.stdout)
        self.assertEqual(done.stdout, "my print: 7\nmy log: a line\nmy assertion: one\nmy check: two\n")

    def test_an_error_of_the_librarys_ends_the_process_when_the_programs_handler_returns(self):
        for error, said in (("root", r"my check: rabit: Broadcast at \S*messages\.cc:\d+: root 5; there are ranks 0 to 0\n"),
                            ("size", r"my check: rabit: \d+ elements of 8 bytes are more than memory can hold\n"),
                            ("buffer", r"my assertion: write position exceed fixed buffer size\n"),
                            ("seek", r"my assertion: seek position exceed fixed buffer size\n")):
            done = self.run_alone("messages", f"error={error}")
            self.assertEqual(done.returncode, 255, done.stdout)
            self.assertRegex(done.stdout, rf"\A{said}\Z")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[4:], verbosity=2)
