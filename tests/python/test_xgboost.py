"""XGBoost over the package: models after kills, with each way of growing trees, and what fails."""

import functools
import pathlib
import tempfile

import pytest
from conftest import Jobs
from killing import example, run_and_kill

# A rank that is killed while XGBoost's ranks connect may hold the others for as long: less than a silent job may take.
SHORT = ("--segments=10", "--timeout_s=45")
WAYS = [
    ("--tree_method=hist",),
    ("--tree_method=approx",),
    ("--booster=dart",),
    ("--grow_policy=lossguide",),
]


@functools.cache
def undisturbed(ranks, way):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model"
        Jobs().run(ranks, example("xgboosting"), f"--weights_file={path}", *SHORT, *way)
        return path.read_bytes()


@pytest.mark.parametrize("way, ranks", [*((way, 2) for way in WAYS), (WAYS[0], 4)])
def test_a_model_is_that_of_an_undisturbed_run(tmp_path, way, ranks):
    path = tmp_path / "model"
    killed, output = run_and_kill(
        ranks, example("xgboosting"), f"--weights_file={path}", *SHORT, *way, early=1, first=1, later=3, last_epoch=9
    )
    assert killed["early"] == 1 and killed["later"] == 3, output
    assert path.read_bytes() == undisturbed(ranks, way), output


def test_the_model_is_that_of_xgboosts_own_ranks(jobs):
    jobs.run(2, "xgboosting.py", flags=["--restarts=0"])


def test_a_rank_that_is_lost_when_all_have_the_model_gets_it_in_its_next_life(tmp_path, jobs):
    output = jobs.run(2, "xgboost_shared.py", tmp_path, flags=["--restarts=1"])
    assert len(list(tmp_path.iterdir())) == 2, output
    assert "rank 0: 6 rounds" in output and "rank 1: 6 rounds" in output, output
    assert "Traceback" not in output, output


def test_an_error_of_xgboosts_ends_the_training_on_all_ranks(jobs):
    output = jobs.run(2, "xgboost_failing.py", flags=["--restarts=0"])
    for rank in (0, 1):
        assert f"rank {rank} after 3 attempts: " in output, output
