"""Ranks in actors of a Ray cluster: lost actors and nodes, what is refused, and what is left behind."""

import functools
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time

os.environ.update(RAY_DEDUP_LOGS="0", RAY_USAGE_STATS_ENABLED="0")

import cluster_ranks
import numpy as np
import psutil
import pytest
import ray
import ray.cluster_utils
import warren._cluster
import warren.ray
from cluster_ranks import Running, read, trackers, wait_for, write
from conftest import HERE, ROOT, WARREN
from digits_ranks import shares
from killing import run_and_kill
from ray.util import collective
from ray.util.collective.types import ReduceOp

os.environ["PATH"] = f"{pathlib.Path(WARREN).parent}:{os.environ['PATH']}"
os.environ["PYTHONPATH"] = f"{HERE}:{os.environ['PYTHONPATH']}"  # of workers
HERE_ONLY = {"include_dashboard": False, "_node_ip_address": "127.0.0.1", "logging_level": "error"}


class Example:
    """Starts examples/python/ray_digits.py."""

    def command(self, ranks, epochs, *arguments, flags=()):
        return [sys.executable, str(ROOT / "examples/python/ray_digits.py"), f"-n{ranks}", f"--epochs={epochs}", *flags]


@pytest.fixture(scope="module")
def cluster():
    ray.init(num_cpus=4, **HERE_ONLY)
    yield
    ray.shutdown()


@pytest.fixture(autouse=True)
def nothing_left(tmp_path, monkeypatch):
    """Trackers and their files are gone when a test is over, and what the cluster has is free."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield
    assert not list(tmp_path.glob("warren-tracker-*"))
    assert not trackers()
    if ray.is_initialized():
        wait_for(lambda: ray.available_resources().get("CPU") == ray.cluster_resources().get("CPU"))


@pytest.fixture(scope="module")
def undisturbed(cluster):
    results = warren.ray.run(cluster_ranks.train, 2)
    assert len(set(results)) == 1
    return results


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("model, kills", [("softmax", 6), ("boosting", 4)])  # 20 in all
def test_models_are_those_of_an_undisturbed_run(cluster, tmp_path, model, ranks, kills):
    call = functools.partial(warren.ray.run, cluster_ranks.digits, ranks, each=shares(ranks), restarts=100)
    (tmp_path / "go").touch()
    expected = call(args=[model, tmp_path])
    for file in tmp_path.iterdir():
        file.unlink()
    run = Running(call, args=[model, tmp_path])
    run.kill(tmp_path, ranks, kills)
    assert run.end() == expected


def test_the_example_survives():
    killed, output = run_and_kill(2, 300, later=1, last_epoch=10, jobs=Example(), apart=True)
    assert killed["later"] == 1 and "test accuracy 0.9" in output, output


def test_an_actor_that_is_stopped_is_replaced(undisturbed, tmp_path):
    run = Running(warren.ray.run, cluster_ranks.train, 2, args=[20, tmp_path], round_timeout_ms=1000)
    wait_for(lambda: (read(tmp_path, "epoch") or 0) >= 5)
    first = read(tmp_path, "rank1")
    os.kill(first, signal.SIGSTOP)
    assert run.end() == undisturbed and read(tmp_path, "rank1") != first
    wait_for(lambda: not psutil.pid_exists(first))


def test_all_actors_are_killed_at_once_and_the_job_goes_on_from_its_disk(undisturbed, tmp_path):
    run = Running(warren.ray.run, cluster_ranks.train, 2, args=[20, tmp_path], data_dir=str(tmp_path / "data"), round_timeout_ms=1000)
    wait_for(lambda: (read(tmp_path, "epoch") or 0) >= 10)
    for rank in range(2):
        os.kill(read(tmp_path, f"rank{rank}"), signal.SIGKILL)
    (tmp_path / "epoch").unlink()
    assert wait_for(lambda: read(tmp_path, "epoch")) > 5
    assert run.end() == undisturbed


def test_all_actors_are_killed_at_once_without_a_disk(cluster, tmp_path):
    run = Running(warren.ray.run, cluster_ranks.train, 2, args=[20, tmp_path], round_timeout_ms=1000)
    wait_for(lambda: (read(tmp_path, "epoch") or 0) >= 5)
    for rank in range(2):
        os.kill(read(tmp_path, f"rank{rank}"), signal.SIGKILL)
    run.join(cluster_ranks.TIMEOUT_S)
    assert isinstance(run.error, warren.Unavailable), run.error
    assert "data_dir" in str(run.error), run.error


def test_a_tracker_that_is_killed_is_started_again(undisturbed, tmp_path):
    run = Running(warren.ray.run, cluster_ranks.train, 2, args=[20, tmp_path])
    wait_for(lambda: (read(tmp_path, "epoch") or 0) >= 5)
    (first,) = trackers()
    first.kill()
    os.kill(read(tmp_path, "rank1"), signal.SIGKILL)  # its next life needs the next tracker
    assert run.end() == undisturbed


def test_a_tracker_that_is_killed_each_time_ends_the_run(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(warren._cluster, "TRACKER_RESTARTS", 0)
    run = Running(warren.ray.run, cluster_ranks.never_end, 2, args=[tmp_path])
    wait_for(lambda: read(tmp_path, "rank0") and read(tmp_path, "rank1"))
    trackers()[0].kill()
    run.join(cluster_ranks.TIMEOUT_S)
    assert isinstance(run.error, warren.Unavailable), run.error
    assert "the tracker of job ray/never_end/" in str(run.error)


def test_a_rank_that_has_returned_comes_back_while_others_go_on(cluster, tmp_path):
    run = Running(warren.ray.run, cluster_ranks.return_early, 2, args=[tmp_path])
    first = wait_for(lambda: read(tmp_path, "rank0"))
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: read(tmp_path, "rank0") not in (first, None))
    (tmp_path / "go").touch()
    (total, _), (other, _) = run.end()
    assert total == other


def test_what_a_rank_raises_is_raised_with_its_rank_and_ends_the_others(cluster):
    with pytest.raises(ValueError, match="on purpose") as caught:
        warren.ray.run(cluster_ranks.fail, 2)
    assert "raised by rank 1 of 2 of job ray/fail/" in caught.value.__notes__[0]
    assert "cluster_ranks.py" in str(caught.value)  # the remote traceback


def test_a_rank_whose_actor_is_lost_each_time_ends_the_job(cluster):
    with pytest.raises(warren.ray.NotPlaced, match=r"rank 1 of job .* was started 3 times"):
        warren.ray.run(cluster_ranks.crash, 2, restarts=2)


def test_an_actor_that_rays_memory_monitor_has_killed_counts_as_lost():
    assert issubclass(ray.exceptions.OutOfMemoryError, warren.ray.LOST)


def test_ctrl_c_ends_the_ranks(cluster, tmp_path):
    def interrupt():
        wait_for(lambda: read(tmp_path, "rank0") and read(tmp_path, "rank1"))
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        warren.ray.run(cluster_ranks.never_end, 2, args=[tmp_path])


def test_ranks_get_items_and_objects_of_ray(cluster):
    results = warren.ray.run(cluster_ranks.own_and_shared, 2, each=["a", ray.put("b")], args=[ray.put(5)])
    assert [(rank, own, total) for rank, _, own, total in results] == [(0, "a", 10), (1, "b", 10)]


def test_a_run_that_cannot_be_is_refused(cluster):
    for options, error in (({"n": 5}, "there is room for 4"), ({"n": 1, "resources": {"disk": 1}}, "room for 0"),
                           ({"n": 0}, "n is 0"), ({"n": 1, "each": [1, 2]}, "2 items for 1"),
                           ({"n": 1, "world_size": 3}, "world_size: run"), ({"n": 1, "tracker": "a"}, "secret_file")):
        with pytest.raises(ValueError, match=error):
            warren.ray.run(cluster_ranks.train, **options)
    one = ray.remote(num_cpus=1)(cluster_ranks.wait_for_file).remote(str(cluster))
    with pytest.raises(warren.ray.NotPlaced, match="have found no room for 1 s"):
        warren.ray.run(cluster_ranks.train, 4, timeout=1)
    ray.cancel(one, force=True)


class Member:
    """An actor of a group of ray.util.collective. A restarted one makes the calls of its life before again."""

    def train(self, rank, folder, steps):
        import warren.ray  # the backend

        if not collective.is_group_initialized("default"):
            collective.init_collective_group(2, rank, backend="warren")
        write(folder, f"rank{rank}", os.getpid())
        state = {"w": np.zeros(50)}
        for epoch in warren.ray.communicator().epochs(steps, state):
            own = np.cos(state["w"]) + rank
            collective.allreduce(own)
            state["w"] += own
            time.sleep(0.02)
            if rank == 0:
                write(folder, "epoch", epoch)
        return state["w"].tobytes()

    def every_call(self, rank):
        own, parts = np.full(2, rank + 1.0), [np.zeros(2), np.zeros(2)]
        collective.allgather(parts, own)
        assert [part.tolist() for part in parts] == [[1, 1], [2, 2]]
        collective.reducescatter(own, [np.full(2, 10.0 * i + rank) for i in range(2)])
        assert own.tolist() == [20 * rank + 1] * 2
        collective.broadcast(own, 1)
        assert own.tolist() == [21, 21]
        collective.allreduce(own, op=ReduceOp.MAX)
        collective.reduce(own, 0)
        assert own[0] == (42 if rank == 0 else 21)
        if rank == 0:
            collective.send(own, 1)
        else:
            collective.recv(own, 0)
        assert own[0] == 42
        collective.barrier()
        collective.destroy_collective_group()


def test_a_group_of_rays_collective_library_survives(cluster, tmp_path):
    results = []
    for kill in (False, True):
        warren.ray.create_group(2)
        actors = [ray.remote(num_cpus=1, max_restarts=3, max_task_retries=3)(Member).remote() for _ in range(2)]
        trained = [actor.train.remote(rank, tmp_path, 30) for rank, actor in enumerate(actors)]
        if kill:
            first = wait_for(lambda: read(tmp_path, "rank1"))
            wait_for(lambda: (read(tmp_path, "epoch") or 0) >= 5)
            os.kill(first, signal.SIGKILL)
            wait_for(lambda: read(tmp_path, "rank1") != first)
        results.append(ray.get(trained))
        ray.get([actor.every_call.remote(rank) for rank, actor in enumerate(actors)])
        for actor in actors:
            ray.kill(actor)
        warren.ray.destroy_group()
        for file in tmp_path.iterdir():
            file.unlink()
    assert results[0] == results[1] and len(set(results[0])) == 1


def test_a_group_that_nobody_has_created_is_refused(cluster):
    with pytest.raises(RuntimeError, match="has not called warren.ray.create_group"):
        ray.get(ray.remote(num_cpus=1)(Member).remote().train.remote(0, None, 1))


def test_a_lost_node_is_replaced(tmp_path):
    ray.shutdown()
    cluster = ray.cluster_utils.Cluster(initialize_head=True, head_node_args={
        "num_cpus": 0, "include_dashboard": False,
        "_system_config": {"health_check_period_ms": 500, "health_check_failure_threshold": 3}})
    try:
        nodes = [cluster.add_node(num_cpus=2, env_vars={"WARREN_HOST_ID": name, "WARREN_DOMAIN_ID": name})
                 for name in "abc"]
        ray.init(address=cluster.address, logging_level="error")
        expected = warren.ray.run(cluster_ranks.train, 4, strategy="PACK")
        run = Running(warren.ray.run, cluster_ranks.train, 4, args=[20, tmp_path], strategy="PACK", round_timeout_ms=2000)
        wait_for(lambda: (read(tmp_path, "epoch") or 0) >= 5)
        before = [read(tmp_path, f"rank{rank}") for rank in range(4)]
        raylet = psutil.Process(before[1]).parent().pid
        lost = next(node for node in nodes if node.all_processes["raylet"][0].process.pid == raylet)
        cluster.remove_node(lost, allow_graceful=False)
        assert run.end() == expected
        moved = [rank for rank in range(4) if read(tmp_path, f"rank{rank}") != before[rank]]
        assert 1 in moved and len(moved) < 4
    finally:
        ray.shutdown()
        cluster.shutdown()
