"""Calls over real ranks; each worker program checks its own results."""

import os
import re

import pytest


@pytest.mark.parametrize("ranks", [1, 3])
def test_every_call_with_every_type(jobs, ranks):
    jobs.run(ranks, "collectives.py", flags=["--restarts=0"])


def test_handles_are_awaited_while_the_event_loop_runs(jobs, pipes):
    jobs.run(3, "awaiting.py", *pipes(1), flags=["--restarts=0"])


def test_arrays_on_a_gpu_are_taken_by_dlpack(jobs, monkeypatch):
    monkeypatch.setenv("WARREN_DEVICE_LIBRARY", os.environ["FAKE_DEVICE"])
    jobs.run(2, "gpu.py", flags=["--restarts=0"])


def test_a_desync_names_the_lines_of_the_program(jobs):
    output = jobs.run(2, "disagreeing.py", flags=["--restarts=0"], code=70)
    for place in ("disagreeing.py:11", "disagreeing.py:13"):
        assert place in output, output


def test_wrong_arguments_are_errors_that_name_them(jobs):
    output = jobs.run(1, "arguments.py", flags=["--restarts=0"])
    for setting in ("checksums=1", "check_call_sites=0", "rewire=0", "round_timeout_ms=5000", "chunk_bytes=131072"):
        assert f" {setting} (options)" in output, output
    assert " streams=2 (WARREN_STREAMS)" in output, output


def test_one_thread_at_a_time_and_other_threads_run_meanwhile(jobs, pipes):
    jobs.run(2, "threads.py", *pipes(1), flags=["--restarts=0"])


def test_a_recovery_needs_no_interpreter_lock(jobs, pipes):
    output = jobs.run(2, "held.py", *pipes(2))
    assert output.count("rank 1 has its result") == 1 and "worker 1 was killed by signal 9" in output, output


@pytest.mark.parametrize("way", ["fork", "spawn"])
def test_children_by_multiprocessing_work_for_a_worker(jobs, way):
    jobs.run(2, "children.py", way, flags=["--restarts=0"])


def test_a_forked_child_cannot_use_the_communicator(jobs):
    jobs.run(2, "forking.py", flags=["--restarts=0"])


@pytest.mark.parametrize("way", ["prepare", "handle", "lazy"])
def test_what_a_callback_raises_fails_its_call_and_no_rank_gets_a_wrong_number(jobs, way):
    output = jobs.run(3, "raising.py", way, flags=["--restarts=2"])
    assert output.count("done") == 3, output
    assert output.count("ValueError: on purpose") == 1 and "warren.Internal: " in output, output
    assert re.search(r"worker_restarted: worker 1 ended with exit code 1 \(at \S+/raising.py:\d+\) after:", output), output


@pytest.mark.parametrize("way", ["init", "call", "wait", "finalize", "abort", "timeout"])
def test_a_wait_ends_by_ctrl_c_abort_or_timeout_and_the_next_life_takes_the_place(jobs, pipes, way):
    output = jobs.run(2, "interrupted.py", way, *pipes(1), flags=["--restarts=1"])
    assert output.count("done") == 2, output


def test_ctrl_c_in_a_callback_is_a_keyboard_interrupt(jobs):
    output = jobs.run(1, "interrupted_callback.py", flags=["--restarts=0"], code=70)
    assert "interrupted" in output and "Traceback" not in output, output


def test_a_killed_worker_goes_on_from_a_lazy_checkpoint(jobs):
    output = jobs.run(2, "lazy.py")
    assert re.search(r"rank 1 went on from step [45]\b", output), output


@pytest.mark.parametrize("root", [0, 1])
def test_the_pickled_state_of_the_root_survives_both_ranks(jobs, tmp_path, root):
    output = jobs.run(2, "rooted.py", root, tmp_path)
    assert output.count("was killed by signal 9") == 3, output
    assert len(re.findall(r"rank [01] went on from version [0-8]\b", output)) == 2, output


def test_log_lines_go_to_a_logger(jobs):
    output = jobs.run(2, "logged.py", "end", flags=["--restarts=0"])
    assert "worker logs" not in output, output


def test_log_lines_that_come_while_the_program_ends_go_to_the_logger_too(jobs):
    output = jobs.run(1, "logged.py", "leave", flags=["--restarts=0"], code=70)
    assert "logged at the end: " in output, output


def test_a_daemon_thread_that_is_inside_a_call_does_not_end_the_process(jobs):
    output = jobs.run(2, "daemon.py", flags=["--restarts=0"], code=70)
    assert "in good order" in output and "worker 0 ended with exit code 0" in output, output
    assert "warren.Closed: " in output and "the program ends" in output, output


@pytest.mark.parametrize("way", ["return", "exit", "handle", "exception"])
def test_a_program_that_ends_without_finalize_ends_at_once(jobs, way):
    output = jobs.run(1, "leaving.py", way, flags=["--restarts=0"], code=1 if way == "exception" else 70)
    assert "signal" not in output and "Fatal" not in output, output
    assert "in good order" in output, output
