"""Calls over real ranks; each worker program checks its own results."""

import pytest


@pytest.mark.parametrize("ranks", [1, 3])
def test_every_call_with_every_type(jobs, ranks):
    jobs.run(ranks, "collectives.py", flags=["--restarts=0"])


def test_handles_are_awaited_while_the_event_loop_runs(jobs):
    jobs.run(3, "awaiting.py", flags=["--restarts=0"])


def test_a_desync_names_the_lines_of_the_program(jobs):
    output = jobs.run(2, "disagreeing.py", flags=["--restarts=0"], code=70)
    for place in ("disagreeing.py:11", "disagreeing.py:13"):
        assert place in output, output


def test_wrong_arguments_are_errors_that_name_them(jobs):
    jobs.run(1, "arguments.py", flags=["--restarts=0"])


def test_one_thread_at_a_time_and_other_threads_run_meanwhile(jobs):
    jobs.run(2, "threads.py", flags=["--restarts=0"])


def test_a_forked_child_cannot_use_the_communicator(jobs):
    jobs.run(2, "forking.py", flags=["--restarts=0"])


@pytest.mark.parametrize("way", ["return", "exit", "handle", "exception"])
def test_a_program_that_ends_without_finalize_ends_at_once(jobs, way):
    output = jobs.run(1, "leaving.py", way, flags=["--restarts=0"], code=1 if way == "exception" else 70)
    assert "signal" not in output and "Fatal" not in output, output
    assert "in good order" in output, output
