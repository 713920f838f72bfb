"""LightGBM over the package: models after kills, with each learner and way of sampling, and what is refused."""

import functools
import pathlib
import tempfile

import pytest
from conftest import Jobs
from killing import example, run_and_kill

WAYS = [
    ("--learner=voting",),
    ("--boosting=dart",),
    ("--sampling=goss",),
    ("--quantized",),
]


@functools.cache
def undisturbed(ranks, way):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model"
        Jobs().run(ranks, example("boosting"), f"--weights_file={path}", *way)
        return path.read_bytes()


@pytest.mark.parametrize("way, ranks", [*((way, 2) for way in WAYS), (WAYS[0], 3)])
def test_a_model_is_that_of_an_undisturbed_run(tmp_path, way, ranks):
    path = tmp_path / "model"
    killed, output = run_and_kill(ranks, example("boosting"), f"--weights_file={path}", *way, early=1, first=1, later=2)
    assert killed["early"] == 1 and killed["later"] == 2, output
    assert path.read_bytes() == undisturbed(ranks, way), output


def test_the_model_is_that_of_lightgbms_own_network(jobs):
    jobs.run(2, "boosting.py", flags=["--restarts=0"])


def test_trees_of_one_leaf_are_equal_on_all_ranks(jobs):
    jobs.run(2, "one_leaf.py", flags=["--restarts=0"])


def test_ranks_that_train_differently_are_told_by_the_line_of_the_program(jobs):
    output = jobs.run(2, "unequal_params.py", code=1)
    assert "warren.Desync" in output and " at unequal_params.py:13, there " in output, output
