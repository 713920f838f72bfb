"""Ranks on workers of a Dask cluster: lost workers, nodes and results, what is refused, and what is left behind."""

import functools
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.request

import cluster_ranks
import dask.config
import dask.distributed
import distributed.core
import pytest
import warren
import warren._cluster
import warren.dask
from cluster_ranks import Running, read, trackers, wait_for
from conftest import HERE, ROOT, WARREN
from digits_ranks import shares
from killing import run_and_kill

os.environ["PATH"] = f"{pathlib.Path(WARREN).parent}:{os.environ['PATH']}"
# A LocalCluster gives up a worker that is away, as it was killed once more, this long after it was lost before.
dask.config.set({"distributed.deploy.lost-worker-timeout": "1h"})


class Example:
    """Starts examples/python/dask_digits.py."""

    def command(self, ranks, epochs, *arguments, flags=()):
        return [sys.executable, str(ROOT / "examples/python/dask_digits.py"), f"-n{ranks}", f"--epochs={epochs}", *flags]


@pytest.fixture(scope="module")
def client():
    with dask.distributed.LocalCluster(n_workers=4, threads_per_worker=2, dashboard_address=":0") as cluster:
        with dask.distributed.Client(cluster) as client:
            yield client


@pytest.fixture(autouse=True)
def nothing_left(tmp_path, monkeypatch):
    """Trackers and their files are gone when a test is over."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield
    assert not list(tmp_path.glob("warren-tracker-*"))
    assert not trackers()


@pytest.fixture(scope="module")
def undisturbed(client):
    client.wait_for_workers(2)
    results = warren.dask.run(client, cluster_ranks.train, 2)
    assert len(set(results)) == 1
    return results


def test_the_trackers_page_is_asked_without_a_proxy(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # where nobody listens
    monkeypatch.setattr(urllib.request, "_opener", None)  # knows the proxies of before
    tracker = warren._cluster.Tracker("proxied", "127.0.0.1")
    try:
        with tracker.secret.file() as secret, warren.init(
            job="proxied", tracker=tracker.address, worker_id="0", world_size=1, secret_file=secret, log_level="warning"
        ):
            assert tracker.job() is not None
    finally:
        tracker.close(in_order=True)


def nannies_run(client):
    """A nanny does not start a worker again that ends before it has heard that the worker runs."""
    running = distributed.core.Status.running
    return all(nanny.process and nanny.process.status == running for nanny in client.cluster.workers.values())


def is_free(client):
    """Whether each worker takes tasks: a rank that has stayed on it would hold a thread."""
    client.wait_for_workers(2)
    wait_for(lambda: not any(client.processing().values()))
    return all(client.submit(os.getpid, workers=[w], pure=False).result(timeout=20) for w in client.nthreads())


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("model, kills", [("softmax", 6), ("boosting", 4)])  # 20 in all
def test_models_are_those_of_an_undisturbed_run(client, tmp_path, model, ranks, kills):
    call = functools.partial(warren.dask.run, client, cluster_ranks.digits, ranks, each=shares(ranks), restarts=100)
    client.wait_for_workers(ranks)
    (tmp_path / "go").touch()
    expected = call(args=[model, tmp_path])
    for file in tmp_path.iterdir():
        file.unlink()
    run = Running(call, args=[model, tmp_path])
    run.kill(tmp_path, ranks, kills, functools.partial(nannies_run, client))
    assert run.end() == expected


def test_the_example_survives():
    killed, output = run_and_kill(2, 60, later=1, last_epoch=10, jobs=Example(), apart=True)
    assert killed["later"] == 1 and "test accuracy 0.9" in output, output


def test_a_worker_that_is_stopped_is_replaced(client, undisturbed, tmp_path):
    run = Running(warren.dask.run, client, cluster_ranks.train, 2, args=[20, tmp_path], round_timeout_ms=1000)
    wait_for(lambda: (read(tmp_path, "epoch") or 0) >= 5)
    first = read(tmp_path, "rank1")
    os.kill(first, signal.SIGSTOP)
    assert run.end() == undisturbed and read(tmp_path, "rank1") != first


def test_all_workers_are_killed_at_once_and_the_job_goes_on_from_its_disk(client, undisturbed, tmp_path):
    client.wait_for_workers(2)
    run = Running(warren.dask.run, client, cluster_ranks.train, 2, args=[20, tmp_path], data_dir=str(tmp_path / "data"),
                  round_timeout_ms=1000)
    wait_for(lambda: (read(tmp_path, "epoch") or 0) >= 10)
    for rank in range(2):
        os.kill(read(tmp_path, f"rank{rank}"), signal.SIGKILL)
    (tmp_path / "epoch").unlink()
    assert wait_for(lambda: read(tmp_path, "epoch")) > 5
    assert run.end() == undisturbed


def test_all_workers_are_killed_at_once_without_a_disk(client, tmp_path):
    client.wait_for_workers(2)
    run = Running(warren.dask.run, client, cluster_ranks.train, 2, args=[20, tmp_path], round_timeout_ms=1000)
    wait_for(lambda: (read(tmp_path, "epoch") or 0) >= 5)
    for rank in range(2):
        os.kill(read(tmp_path, f"rank{rank}"), signal.SIGKILL)
    run.join(cluster_ranks.TIMEOUT_S)
    assert isinstance(run.error, warren.Unavailable), run.error
    assert "data_dir" in str(run.error), run.error


def test_a_tracker_that_is_killed_is_started_again(client, undisturbed, tmp_path):
    client.wait_for_workers(2)
    run = Running(warren.dask.run, client, cluster_ranks.train, 2, args=[20, tmp_path])
    wait_for(lambda: (read(tmp_path, "epoch") or 0) >= 5)
    (first,) = trackers()
    first.kill()
    os.kill(read(tmp_path, "rank1"), signal.SIGKILL)  # its next life needs the next tracker
    assert run.end() == undisturbed


def test_a_tracker_that_is_killed_each_time_ends_the_run(client, tmp_path, monkeypatch):
    client.wait_for_workers(2)
    monkeypatch.setattr(warren._cluster, "TRACKER_RESTARTS", 1)
    run = Running(warren.dask.run, client, cluster_ranks.never_end, 2, args=[tmp_path])
    wait_for(lambda: read(tmp_path, "rank0") and read(tmp_path, "rank1"))
    for _ in range(2):
        (tracker,) = wait_for(trackers)
        tracker.kill()
        tracker.wait()
    run.join(cluster_ranks.TIMEOUT_S)
    assert isinstance(run.error, warren.Unavailable), run.error
    assert "the tracker of job dask/never_end/" in str(run.error) and "killed by signal 9, 2 times" in str(run.error)
    assert is_free(client)


def test_a_tracker_that_is_stopped_is_killed_at_the_end(monkeypatch):
    monkeypatch.setattr(warren._cluster, "CLOSE_S", 0.5)
    tracker = warren._cluster.Tracker("stopped", "127.0.0.1")
    trackers()[0].suspend()
    tracker.close(in_order=False)


def test_a_rank_that_has_returned_comes_back_while_others_go_on(client, tmp_path):
    client.wait_for_workers(2)
    run = Running(warren.dask.run, client, cluster_ranks.return_early, 2, args=[tmp_path])
    first = wait_for(lambda: read(tmp_path, "rank0"))
    wait_for(lambda: any(key.endswith("rank-0-life-1") for keys in client.has_what().values() for key in keys))
    os.kill(first, signal.SIGKILL)
    assert wait_for(lambda: read(tmp_path, "rank0") not in (first, None))
    (tmp_path / "go").touch()
    (total, _), (other, _) = run.end()
    assert total == other


def test_a_lost_node_is_replaced(tmp_path):
    with dask.distributed.LocalCluster(n_workers=0, dashboard_address=":0") as cluster, \
            dask.distributed.Client(cluster) as client:
        nodes = []
        try:
            for name in "abc":
                nodes.append(subprocess.Popen(
                    [sys.executable, "-m", "distributed.cli.dask_worker", cluster.scheduler_address, "--nworkers=2",
                     "--nthreads=1", "--no-dashboard", f"--local-directory={tmp_path / name}"],
                    env={**os.environ, "WARREN_HOST_ID": name, "WARREN_DOMAIN_ID": name,
                         "PYTHONPATH": f"{HERE}:{os.environ['PYTHONPATH']}"}, start_new_session=True))
                client.wait_for_workers(2 * len(nodes))
            expected = warren.dask.run(client, cluster_ranks.train, 4)
            run = Running(warren.dask.run, client, cluster_ranks.train, 4, args=[20, tmp_path])
            wait_for(lambda: (read(tmp_path, "epoch") or 0) >= 5)
            lost = os.getpgid(read(tmp_path, "rank1"))
            gone = [rank for rank in range(4) if os.getpgid(read(tmp_path, f"rank{rank}")) == lost]
            assert 0 < len(gone) < 4
            os.killpg(lost, signal.SIGKILL)
            assert run.end() == expected
            assert all(os.getpgid(read(tmp_path, f"rank{rank}")) != lost for rank in gone)
        finally:
            for node in nodes:
                os.killpg(node.pid, signal.SIGKILL)
                node.wait()


def test_what_a_rank_raises_is_raised_with_its_rank_and_ends_the_others(client):
    client.wait_for_workers(2)
    with pytest.raises(ValueError, match="on purpose") as caught:
        warren.dask.run(client, cluster_ranks.fail, 2)
    assert "raised by rank 1 of 2 of job dask/fail/" in caught.value.__notes__[0]
    assert [entry.name for entry in caught.traceback][-1] == "fail"
    assert is_free(client)


def test_a_rank_whose_worker_is_lost_each_time_ends_the_job(client):
    client.wait_for_workers(2)
    with pytest.raises(warren.dask.NotPlaced, match=r"rank 1 of job .* was started 3 times"):
        warren.dask.run(client, cluster_ranks.crash, 2, restarts=2)
    assert is_free(client)


def test_ctrl_c_ends_the_ranks(client, tmp_path):
    client.wait_for_workers(2)

    def interrupt():
        wait_for(lambda: read(tmp_path, "rank0") and read(tmp_path, "rank1"))
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        warren.dask.run(client, cluster_ranks.never_end, 2, args=[tmp_path])
    assert is_free(client)


def test_ranks_and_tracker_end_with_a_client_that_is_killed(client, tmp_path):
    client.wait_for_workers(2)
    program = (f"import cluster_ranks, dask.distributed, tempfile, warren.dask; tempfile.tempdir = {str(tmp_path)!r}; "
               f"client = dask.distributed.Client({client.scheduler.address!r}); "
               f"warren.dask.run(client, cluster_ranks.never_end, 2, args=[{str(tmp_path)!r}])")
    other = subprocess.Popen([sys.executable, "-c", program],
                             env={**os.environ, "PYTHONPATH": f"{HERE}:{os.environ['PYTHONPATH']}"})
    wait_for(lambda: read(tmp_path, "rank0") and read(tmp_path, "rank1"))
    other.kill()
    other.wait()
    assert is_free(client)
    wait_for(lambda: not list(tmp_path.glob("warren-tracker-*")))


class Ended:
    """A communicator whose job has ended."""

    is_open = False

    def destroy(self):
        pass


def test_a_rank_that_nobody_wants_any_more_joins_no_longer(monkeypatch):
    """A rank of a killed client joined its dead tracker anew for five minutes, and other jobs' ranks had no thread."""
    joined = []

    def init(**options):
        joined.append(options.get("join_timeout_ms"))
        if len(joined) == 1:
            return Ended()
        raise warren.Timeout("nobody answers")

    def call(comm):
        raise warren.Closed("the job was ended")

    monkeypatch.setattr(warren._cluster, "init", init)
    job = warren._cluster.Job("gone", 1, "127.0.0.1:1", None, {}, restarts=10)
    life = warren._cluster.Life(job, 0, lambda: len(joined) < 3)
    with pytest.raises(warren.Timeout):
        life.run(call)
    assert joined == [None, 15000, 15000]


def test_two_ranks_in_one_process_with_items_of_their_own(client):
    client.wait_for_workers(4)
    items = [client.submit(str, rank, pure=False) for rank in range(5)]
    results = warren.dask.run(client, cluster_ranks.own_and_shared, 5, each=items, args=[client.submit(int, 5)],
                              ranks_per_worker=2)
    assert [(rank, own, total) for rank, _, own, total in results] == [(rank, str(rank), 25) for rank in range(5)]
    assert len({process for _, process, _, _ in results}) == 4


def test_a_run_that_cannot_be_is_refused_at_once(client):
    client.wait_for_workers(4)
    for options, error in (({"n": 5}, "there is room for 4"), ({"n": 1, "resources": {"GPU": 1}}, "room for 0"),
                           ({"n": 0}, "n is 0"), ({"n": 1, "each": [1, 2]}, "2 items for 1"),
                           ({"n": 1, "world_size": 3}, "world_size: run"), ({"n": 1, "tracker": "a"}, "secret_file")):
        with pytest.raises(ValueError, match=error):
            warren.dask.run(client, cluster_ranks.train, **options)
    with pytest.raises(TypeError, match="no_such"):
        warren.dask.run(client, cluster_ranks.train, 1, no_such=1)
