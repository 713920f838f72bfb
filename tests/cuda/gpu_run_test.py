"""gpu_run_test.py BUILD FAKE_DEVICE: bench/gpu.py does what it says, on the fake device; its table says what was measured, and nothing
that was wrong is passed over."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD, FAKE = sys.argv[1:3]
sys.path.insert(0, str(ROOT / "bench"))
import gpu  # noqa: E402


# gpu_test is no test of the stage that runs this one: it writes no report among those.
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("GTEST_")}


def run(folder: str, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, str(ROOT / "bench/gpu.py"), "run", "--quick", f"--build={BUILD}", f"--out={folder}", *arguments],
                          capture_output=True, text=True, env={**ENVIRONMENT, "TMPDIR": folder})


def found() -> dict:
    """As a run gives it, of round numbers."""
    kernels = {"copy_gb_s": 2000.0, "to_gpu_gb_s": 50.0, "from_gpu_gb_s": 40.0, "both_ways_gb_s": 30.0,
               "cases": [{"name": "reduce f32, 2 inputs", "gb_s": 1900.0, "of_copy": 0.95}]}
    # 2 ranks, 2 · 2 · 64 MiB over 2000 GB/s are 134.2 us; 2 · 64 MiB over 40 GB/s are 3355.4 us.
    times_us = (("gpu", 200.0), ("gpu ring", 6710.8), ("cpu ring", 1000.0))
    cells = {name: [{"bytes": 64 << 20, "median_us": us}] for name, us in times_us}
    report = {"ranks": 2, "mix": "large", "fault_count": 7, "rounds": 1234, "divergences": 0, "hangs": 0, "rollbacks": 0,
              "rounds_exchanged": 55, "stall_ms": {"p50": 20.0, "p99": 90.0}}
    return {"date": "2026-01-01", "gpu": "a GPU", "cores": 16, "wrong": [], "kernels": kernels, "allreduce": {"2": cells},
            "torch": {"2": [{"bytes": 64 << 20, "median_us": 1000.0}]}, "faults": {"faults_2_large": report},
            "nccl": {"bench": [], "2": {"report": report, "communicator_ms": [300, 100, 200]}},
            "mps": {"2": [{"bytes": 16 << 20, "median_us": 1000.0}, {"bytes": 64 << 20, "median_us": 4000.0}], "nccl": []},
            "tests": {"passed": 13, "exit_code": 0}, "sanitizer": {"memcheck": 0, "racecheck": 9}}


class Table(unittest.TestCase):
    def test_ratios_are_to_what_was_measured_beside(self):
        text = gpu.table(found())
        self.assertIn("| reduce f32, 2 inputs, beside that copy | 0.95 (1,900 GB/s) | ≥ 0.90 |", text)
        self.assertIn("64 MiB: 2·N·bytes over the copy rate, by its time | 0.671 (0.20 ms) | ≥ 0.75 |", text)
        # 5 · 2 · 64 MiB over 2000 GB/s and 64 MiB over 40 GB/s are 2013.3 us.
        self.assertIn("bytes over the pinned one, by its time | 10.07 |", text)
        self.assertIn("N·bytes over the pinned rate) | 2.00 (6.71 ms) | ≤ 1.15 |", text)
        self.assertIn("its time by Warren's | 5.0 (1.0 ms) | ≥ 2 |", text)
        self.assertIn("7 faults, 1,234 rounds, 0 divergences, 0 hangs, 0 rollbacks; stall p50 20, p99 90 ms", text)
        self.assertIn("to a new NCCL communicator, 2 ranks, p50 / p99 | 200 / 300 ms (n = 3) |", text)
        self.assertIn("allreduce, 2 ranks on one GPU, 16, 64 MiB | 1.00, 4.00 ms |", text)
        self.assertIn("| 13 cases passed | all |", text)
        self.assertIn("| memcheck: nothing, racecheck: errors | nothing |", text)

    def test_two_that_are_compared_take_turns(self):
        runs = [[{"bytes": 1, "median_us": us}, {"bytes": 2, "median_us": 10 * us}] for us in (3.0, 1.0, 2.0)]
        self.assertEqual(gpu.median_cells(runs), [{"bytes": 1, "median_us": 2.0}, {"bytes": 2, "median_us": 20.0}])
        self.assertEqual(gpu.median_cells([runs[0], [], runs[1][:1], runs[2][:1]])[0]["median_us"], 2.0)

    def test_what_was_not_run_has_no_row(self):
        results = found()
        for step in ("torch", "faults", "nccl", "mps", "tests", "sanitizer"):
            del results[step]
        text = gpu.table(results)
        for word in ("PyTorch", "faults", "NCCL", "MPS", "gpu_test", "sanitizer"):
            self.assertNotIn(word, text)

    def test_the_page_has_a_place_for_it(self):
        page = gpu.PAGE.read_text()
        self.assertLess(page.index(gpu.BEGIN), page.index(gpu.END))


class Run(unittest.TestCase):
    def test_on_the_fake_device_all_is_well(self):
        with tempfile.TemporaryDirectory(prefix="warren-gpu-") as folder:
            done = run(folder, f"--library={FAKE}", "--steps=tests,kernels,allreduce")
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            results = json.loads((pathlib.Path(folder) / "gpu.json").read_text())
        self.assertGreaterEqual(results["tests"]["passed"], 11)
        self.assertGreater(results["kernels"]["copy_gb_s"], 0)
        self.assertEqual(results["allreduce"]["2"]["gpu"][0]["inputs_lent"], 2)
        self.assertIn("| allreduce, 2 ranks on one GPU", done.stdout)

    def test_what_fails_is_told_and_the_rest_is_run(self):
        with tempfile.TemporaryDirectory(prefix="warren-gpu-") as folder:
            done = run(folder, "--library=/none.so", "--steps=tests,faults")
            self.assertEqual(done.returncode, 1)
        self.assertIn("WRONG: gpu_test ended with 1", done.stdout)
        self.assertIn("WRONG: faults_2_large ended with 1: warren: --memory=gpu: /none.so does not load", done.stdout)

    def test_a_bundle_needs_nothing_of_the_build(self):
        with tempfile.TemporaryDirectory(prefix="warren-gpu-") as folder:
            bundle, out = pathlib.Path(folder) / "bundle", pathlib.Path(folder) / "out"
            subprocess.run([sys.executable, str(ROOT / "bench/gpu.py"), "bundle", str(bundle), f"--build={BUILD}"], check=True, capture_output=True)
            done = subprocess.run([sys.executable, str(bundle / "gpu.py"), "run", "--quick", f"--out={out}", f"--library={FAKE}",
                                   "--steps=kernels,nccl"], cwd=folder, capture_output=True, text=True,
                                  env=ENVIRONMENT)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertEqual(sorted(path.name for path in out.iterdir()), ["gpu.json", "logs.tar.gz"])
            found = json.loads((out / "gpu.json").read_text())
        self.assertGreater(found["nccl"]["2"]["report"]["rounds_exchanged"], 0)

    def test_a_bundle_takes_the_place_of_nothing_else(self):
        with tempfile.TemporaryDirectory(prefix="warren-gpu-") as folder:
            (pathlib.Path(folder) / "bin").mkdir()
            done = subprocess.run([sys.executable, str(ROOT / "bench/gpu.py"), "bundle", folder, f"--build={BUILD}"], capture_output=True, text=True)
            self.assertEqual(done.returncode, 1)
            self.assertIn("is not empty, and no bundle of before", done.stderr)
            self.assertTrue((pathlib.Path(folder) / "bin").exists())

    def test_what_there_is_no_time_for_is_told(self):
        with tempfile.TemporaryDirectory(prefix="warren-gpu-") as folder:
            done = run(folder, f"--library={FAKE}", "--steps=faults,nccl", "--limit_s=2")
            self.assertEqual(done.returncode, 1)
        self.assertIn("WRONG: faults_2_large was not done in 2 s", done.stdout)
        self.assertIn("WRONG: nccl was not run: 2 s were over", done.stdout)

    def test_an_unknown_step_is_wrong_usage(self):
        done = run("/nowhere", "--steps=dance")
        self.assertEqual(done.returncode, 2)
        self.assertIn("there is no step 'dance'", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
