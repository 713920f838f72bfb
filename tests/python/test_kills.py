"""Every example with two and four ranks, killed in start-up, in the first version and later: more than 48 kills."""

import collections

import pytest
from killing import EXAMPLES, example, run_and_kill
from test_survival import undisturbed

ALL = collections.Counter()


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", EXAMPLES)
def test_weights_are_those_of_an_undisturbed_run(tmp_path, name, ranks):
    path = tmp_path / "weights"
    killed, output = run_and_kill(ranks, example(name), f"--weights_file={path}", early=2, first=2, later=4)
    assert killed["early"] == 2 and killed["later"] == 4, output
    assert path.read_bytes() == undisturbed(name, ranks), output
    ALL.update(killed)


def test_some_were_killed_in_the_first_version():
    assert ALL["first"] >= 4, ALL
