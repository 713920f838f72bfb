"""The wheels, as people install them: on a Debian 12 that has Python and nothing of Warren's, and for later Pythons."""

import os
import shutil
import subprocess

import pytest
from conftest import ROOT, Jobs
from killing import run_and_kill

DEBIAN = ROOT / "build/bare-debian"  # made once
WHEELS = ROOT / "build/wheel/find-links"  # these, and those of NumPy that the tests run with


def run(*command):
    done = subprocess.run(list(map(str, command)), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          check=False)
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def wheels():
    run("scripts/wheel.sh")
    found = sorted((ROOT / "dist").glob("*.whl"))
    WHEELS.mkdir(exist_ok=True)
    for old in WHEELS.glob("warren_allreduce-*.whl"):
        old.unlink()
    for wheel in found:
        shutil.copy(wheel, WHEELS)
    return found


@pytest.fixture(scope="module")
def debian(wheels):
    """The start of a command line that runs in a folder with a bare Debian 12, and sees its own processes alone."""
    assert os.geteuid() == 0, "only root can run a program in another root folder"
    if not DEBIAN.exists():
        unfinished = DEBIAN.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        run("debootstrap", "--foreign", "--variant=minbase", "--include=python3,python3-venv", "bookworm", unfinished)
        for package in sorted((unfinished / "var/cache/apt/archives").glob("*.deb")):
            run("dpkg-deb", "--extract", package, unfinished)
        unfinished.rename(DEBIAN)
    numpy = next(line for line in (ROOT / "python/requirements.lock").read_text().split() if line.startswith("numpy=="))
    if not list(WHEELS.glob(f"{numpy.replace('==', '-')}-*.whl")):
        run("build/venv/bin/pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", f"--dest={WHEELS}", numpy)
    for source, target in ((WHEELS, "wheels"), (ROOT / "examples", "examples")):
        shutil.rmtree(DEBIAN / target, ignore_errors=True)
        shutil.copytree(source, DEBIAN / target)
    mounts = f"mount -t proc proc {DEBIAN}/proc && mount --bind /dev {DEBIAN}/dev && exec chroot {DEBIAN} \"$@\""
    start = ("unshare", "--mount", "sh", "-c", mounts, "sh", "env", "-i", "PATH=/usr/bin:/bin", "HOME=/root")
    assert "libzmq" not in run(*start, "find", "/usr/lib", "/lib")
    run(*start, "python3", "-m", "venv", "--clear", "/venv")
    run(*start, "/venv/bin/pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--find-links=/wheels",
        "warren-allreduce")
    return start


def test_on_a_bare_debian_the_example_is_killed_and_ends_with_the_same_weights(debian):
    jobs = Jobs(debian, "/venv/bin/warren", "/venv/bin/python")
    path = DEBIAN / "weights"
    jobs.run(2, "/examples/python/softmax.py", "--weights_file=/weights")
    undisturbed = path.read_bytes()
    path.unlink()
    killed, output = run_and_kill(2, "/examples/python/softmax.py", "--weights_file=/weights", early=1, later=2, jobs=jobs)
    assert killed["early"] + killed["later"] == 3, output
    assert path.read_bytes() == undisturbed, output


def test_libraries_and_programs_of_the_package_find_what_they_link(debian):
    package = run(*debian, "/venv/bin/python", "-c", "import warren; print(warren.__path__[0])").strip()
    run(*debian, "/venv/bin/python", "-c", f"import ctypes; ctypes.CDLL('{package}/libwarren_store.so')")
    # A worker starts it where others may have died of opening a database.
    assert "shared libraries" not in run(*debian, "sh", "-c", f"{package}/warren_store_trial 3>&1 </dev/null || true")


def test_each_wheel_works_with_its_python(wheels, tmp_path):
    for wheel in wheels:
        # One is for this Python alone, and another one for all from 3.12 on.
        python = ROOT / ("build/venv-abi3" if "-abi3-" in wheel.name else "build/venv") / "bin/python"
        site = tmp_path / wheel.name
        run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", f"--target={site}", wheel)
        Jobs(("env", f"PYTHONPATH={site}"), site / "bin/warren", python).run(2, "collectives.py", flags=["--restarts=0"])
