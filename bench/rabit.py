"""rabit, with its fault tolerance and without: its source comes with that of XGBoost, a package of Python's index."""

import pathlib
import shlex
import subprocess
import sys
import tarfile
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build/bench"
# Its rabit still survives failures, and pip downloads it without compiling it (before 1.2 it does).
PACKAGE = "xgboost==1.2.1"
FOLDER = BUILD / "rabit"
# (program, what it needs of rabit)
PROGRAMS = [("rabit_bench", ["allreduce_base.cc", "engine_base.cc"]),
            ("rabit_robust_bench", ["allreduce_base.cc", "allreduce_robust.cc", "engine.cc"])]


def found(name: str) -> pathlib.Path:
    paths = sorted(FOLDER.glob(f"**/{name}"))
    if not paths:
        raise RuntimeError(f"{PACKAGE} has no {name}")
    return paths[0]


def tracker() -> pathlib.Path:
    return found("tracker.py")


def download() -> None:
    FOLDER.mkdir(parents=True)
    with tempfile.TemporaryDirectory(dir=BUILD) as folder:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary=:all:", f"--dest={folder}", PACKAGE]
        ended = subprocess.run(command, capture_output=True, text=True)
        archives = list(pathlib.Path(folder).glob("*.tar.gz"))
        if ended.returncode != 0 or len(archives) != 1:
            why = (ended.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise RuntimeError(f"pip cannot download {PACKAGE}: {why}")
        with tarfile.open(archives[0]) as archive:
            archive.extractall(FOLDER, filter="data")


def build(say) -> None:
    """Raises RuntimeError if it cannot be had."""
    if not FOLDER.exists():
        say(f"download {PACKAGE}")
        download()
    robust = found("allreduce_robust.cc").parent
    include = [f"-I{found('rabit/rabit.h').parent.parent}", f"-I{found('dmlc/io.h').parent.parent}"]
    bench = ROOT / "bench/peers/rabit_bench.cc"
    newest = max(path.stat().st_mtime for path in (bench, ROOT / "bench/harness.h"))
    for program, sources in PROGRAMS:
        target = BUILD / program
        if target.exists() and target.stat().st_mtime >= newest:
            continue
        command = ["g++", "-std=c++17", "-O3", "-march=native", "-I.", *include, str(bench),
                   *(str(robust / name) for name in sources), "-o", str(target), "-lpthread"]
        say("+ " + shlex.join(command))
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if ended.returncode != 0:
            raise RuntimeError(f"rabit does not compile: {ended.stderr[-2000:]}")
