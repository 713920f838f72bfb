"""What a type checker says: of the package, and of a program that uses it."""

import pathlib
import subprocess
import sys

PACKAGE = pathlib.Path(__file__).resolve().parents[2] / "python/warren"
PROGRAM = """
import numpy as np
import numpy.typing as npt
import warren

async def main() -> None:
    with warren.init(world_size=2) as comm:
        x = np.ones(3)
        a: int = comm.allreduce(3)
        b: float = comm.allreduce(3.5, "max")
        c: npt.NDArray[np.float64] = comm.allreduce(x, out=x)
        d: warren.Handle[int] = comm.allreduce_async(1)
        e: int = await d
        f: warren.Checkpoint | None = comm.load_checkpoint()
        g: bytearray = comm.recv(bytearray(3), 1)
        for epoch in comm.epochs(3, {"x": x}):
            print(epoch + 1, a, b, c, e, f, g, comm.once("a").allgather(x).shape)
"""
# LightGBM and XGBoost take seconds, and SciPy with them; PyTorch, Dask and Ray are in venvs of their own.
CONFIGURATION = """
[mypy]
[mypy-lightgbm.*,xgboost.*]
follow_imports = skip
[mypy-torch.*,lightning.*,distributed.*,ray.*]
ignore_missing_imports = True
[mypy-warren.torch.*]
disallow_subclassing_any = False
disallow_untyped_decorators = False
"""
WRONG = """
import warren
comm = warren.init()
comm.allreduce(1, "mean")
comm.allreduce([1])
comm.nothing()
"""


def mypy(folder, *arguments):
    done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(folder / "cache"), *arguments],
                          cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_types_of_the_package_and_of_programs(tmp_path):
    (tmp_path / "mypy.ini").write_text(CONFIGURATION)
    (tmp_path / "program.py").write_text(PROGRAM)
    code, output = mypy(tmp_path, str(PACKAGE), "program.py")
    assert code == 0, output
    (tmp_path / "wrong.py").write_text(WRONG)
    code, output = mypy(tmp_path, "wrong.py")
    assert code == 1, output
    for line in (4, 5, 6):
        assert f"wrong.py:{line}: error" in output, output
    assert "Found 3 errors" in output, output
