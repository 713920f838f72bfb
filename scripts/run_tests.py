#!/usr/bin/env python3
"""Runs Warren's tests in stages and prints the minutes of each. What `./dev test` calls; docs/testing.md has the map.

`./dev test` answers in 15 minutes; `./dev test --all` runs the same stages first, and then everything else."""

import argparse
import contextlib
import dataclasses
import fcntl
import json
import os
import pathlib
import random
import subprocess
import sys
import time
import typing
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent
DEV = str(ROOT / "dev")
CORES = os.cpu_count() or 1
# Most tests wait for processes, threads and time half of their time. Those of the stage `slow` only compute.
WAITING_JOBS = CORES + 1
# Entries of CTest that begin before the others of their stage: one that begins last runs alone at the end.
LONGEST = (
    "python/torch_kills_test", "python/ray_test", "python/dask_test", "python/torch_test", "python/wheel_test",
    "chaos/sim_scenarios_test", "worker/rounds/engine_recovery_test", "worker/kernels/reduce_test",
    "worker/rounds/engine_test", "e2e/device_test", "worker/schedule/schedule_stability_test",
    "worker/schedule/schedule_symbolic_test", "recovery/tracker/recovery_test", "recovery/random_test",
    "chaos/sim_test", "chaos/sim_mutants_test", "worker/device/shares_test", "worker/device/staging_test", "rabit",
    "gpu_run", "e2e/nccl_processes_test", "e2e/loans_test", "e2e/recovery_test", "slurm_test", "install",
    "e2e/launched_test", "e2e/spares_test", "chaos", "cli/cli_test",
)
# Tests that are expected to skip themselves. A test that cannot run is a failure, so: none.
EXPECTED_SKIPS = 0
# Reports of programs that need a GPU. Without one, or without the module in this build, all their cases skip themselves
# and say so, or none does. WARREN_REQUIRE_GPU=1 makes that a failure.
GPU_REPORTS = {"gpu_test.gpu_test"}
REQUIRE_GPU = "WARREN_REQUIRE_GPU"
FUZZ_SECONDS = 60
QUICK_SEEDS = 500
SIMULATED_SEEDS = 12100
FRESH_SEEDS = 1500
# The verdict on a stage that --begin-within has left out.
NOT_BEGUN = "NOT BEGUN"
# How many of a stage's slowest entries are printed: those that take most of its budget.
SLOWEST = 5


class StageFailed(Exception):
    pass


@dataclasses.dataclass(frozen=True)
class Stage:
    run: typing.Callable[[], None]
    text: str
    # Minutes on 2 cores with nothing compiled before. A stage that takes longer is marked in the report and passes, as
    # machines differ by half. A change that makes a stage longer takes minutes away elsewhere.
    budget_min: float
    quick: bool = False


def run(*command: str, **options) -> None:
    print("+ " + " ".join(command), flush=True)
    if subprocess.run(command, cwd=ROOT, check=False, **options).returncode != 0:
        raise StageFailed(" ".join(command))


@contextlib.contextmanager
def locked(preset: str):
    """One run of the tests at a time in a build folder; another one waits."""
    folder = ROOT / "build" / preset
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".test.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build(preset: str, *targets: str) -> None:
    run(DEV, "build", "--preset", preset, *targets)


def costs(names: list[str]) -> dict[str, float]:
    """The cost of each entry for CTest: LONGEST come first, the others in an order that is drawn anew."""
    return {name: len(LONGEST) - LONGEST.index(name) if name in LONGEST else random.random() for name in names}


def set_order(preset: str) -> None:
    """Has CTest begin with the costliest entries, by the file in which CTest keeps what its last run has found."""
    shown = subprocess.run(["ctest", "--test-dir", f"build/{preset}", "--show-only=json-v1"], cwd=ROOT, check=True,
                           capture_output=True).stdout
    folder = ROOT / "build" / preset / "Testing/Temporary"
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"{name} 1 {cost:.6f}\n" for name, cost in costs([test["name"] for test in json.loads(shown)["tests"]]).items()]
    (folder / "CTestCostData.txt").write_text("".join(lines) + "---\n")


def ctest(preset: str, *selection: str, jobs: int = WAITING_JOBS, environment: dict[str, str] | None = None) -> None:
    """Runs the selected tests, so many at a time, and holds the number of skipped ones against EXPECTED_SKIPS."""
    results = ROOT / "build" / preset / "results"
    with locked(preset):
        results.mkdir(exist_ok=True)
        for old in results.glob("*.xml"):
            old.unlink()
        set_order(preset)
        try:
            run("ctest", "--test-dir", f"build/{preset}", "--output-on-failure", "--no-tests=error",
                "-j", str(jobs), "--output-junit", str(results / "ctest.junit.xml"), *selection,
                env=test_environment(os.environ) | {"GTEST_OUTPUT": f"xml:{results}/", "GTEST_BRIEF": "1"} |
                    (environment or {}))
        finally:
            cases, skipped = count(results)
        without_gpu, skipped = skipped_without_gpu(results, skipped)
        print(f"{cases} test cases, {len(skipped)} skipped", flush=True)
        print("slowest: " + ", ".join(f"{name} {seconds:.0f} s" for name, seconds in slowest(results)), flush=True)
        if without_gpu:
            print(f"NO GPU, or no CUDA module in this build: {len(without_gpu)} more cases were skipped, which need both: "
                  f"{', '.join(without_gpu)}", flush=True)
        if empty := without_cases(results):
            raise StageFailed(f"programs that ran no test case: {', '.join(empty)}")
        if len(skipped) != EXPECTED_SKIPS:
            raise StageFailed(f"{EXPECTED_SKIPS} skipped tests expected, found: {', '.join(skipped)}")


def test_environment(inherited) -> dict[str, str]:
    """Without what selects, splits or softens tests (GTEST_FILTER, GTEST_TOTAL_SHARDS), or configures workers (WARREN_*)."""
    return {name: value for name, value in inherited.items()
            if name == REQUIRE_GPU or not name.startswith(("GTEST_", "WARREN_"))}


def cases_of(report: pathlib.Path):
    return xml.etree.ElementTree.parse(report).getroot().iter("testcase")


def skipped_without_gpu(results: pathlib.Path, skipped: list[str]) -> tuple[list[str], list[str]]:
    """What is skipped, told apart: (all cases of programs that need a GPU, the rest). Where only some of a program's
    cases are skipped, they belong to the rest."""
    without = []
    for name in sorted(GPU_REPORTS):
        report = results / f"{name}.xml"
        if not report.exists():
            continue
        mine = [case for case in skipped if case.startswith(f"{name}:")]
        if len(mine) == len(list(cases_of(report))):
            without += mine
    return without, [name for name in skipped if name not in without]


def without_cases(results: pathlib.Path) -> list[str]:
    """Reports of GoogleTest without a case: their programs pass, and have tested nothing."""
    return [report.stem for report in sorted(results.glob("*.xml")) if report.name != "ctest.junit.xml" and
            next(cases_of(report), None) is None]


def count(results: pathlib.Path) -> tuple[int, list[str]]:
    """(cases run, names of those skipped), from GoogleTest's and CTest's reports."""
    cases, skipped = 0, []
    for report in sorted(results.glob("*.xml")):
        by_ctest = report.name == "ctest.junit.xml"
        for case in cases_of(report):
            status = case.get("status")
            if case.find("skipped") is not None or status in ("notrun", "disabled"):
                skipped.append(f"{report.stem}:{case.get('classname')}.{case.get('name')}")
            elif not by_ctest:
                cases += 1
    return cases, skipped


def slowest(results: pathlib.Path) -> list[tuple[str, float]]:
    """The entries of CTest that took longest, with their seconds."""
    report = results / "ctest.junit.xml"
    entries = [(case.get("name"), float(case.get("time") or 0)) for case in cases_of(report)] if report.exists() else []
    return sorted(entries, key=lambda entry: -entry[1])[:SLOWEST]


def simulate(seeds: str) -> None:
    run("build/release/bin/warren", "sim", f"--seeds={seeds}")


def stage_check():
    run(DEV, "check")


def stage_build():
    build("release")


def stage_more():
    build("release", "slow_tests", "bench_programs")


def stage_fast():
    build("release")
    ctest("release", "-L", "^fast$", "-LE", "^e2e$")


def stage_jobs():
    build("release")
    ctest("release", "-L", "^fast$", "-L", "^e2e$")


def stage_seeds():
    build("release", "warren_cli")
    simulate(str(QUICK_SEEDS))


def stage_standalone():
    build("release")  # compiles some by themselves
    run(DEV, "check", "standalone_all")


def stage_slow():
    build("release", "all", "slow_tests")
    ctest("release", "-L", "^slow$", "-LE", "^e2e$", jobs=CORES)


def stage_e2e():
    build("release", "all", "slow_tests", "bench_programs")
    ctest("release", "-L", "^slow$", "-L", "^e2e$", "-LE", "^trainers$")


def stage_trainers():
    build("release")
    ctest("release", "-L", "^trainers$")


def stage_sim():
    build("release", "warren_cli")
    simulate(str(SIMULATED_SEEDS))
    first = random.SystemRandom().randrange(10**6, 10**9)
    simulate(f"{first}:{first + FRESH_SEEDS - 1}")


def stage_asan():
    build("asan", "memory_tests")
    ctest("asan", "-L", "^memory$",
          environment={"ASAN_OPTIONS": "detect_stack_use_after_return=1:strict_string_checks=1",
                       "UBSAN_OPTIONS": "print_stacktrace=1"})


def stage_tsan():
    build("tsan", "threads_tests")
    suppressions = ROOT / "scripts/tsan.supp"
    ctest("tsan", "-L", "^threads$",
          environment={"TSAN_OPTIONS": f"halt_on_error=1:second_deadlock_stack=1:suppressions={suppressions}"})


def stage_fuzz():
    run(sys.executable, "tests/fuzz/run.py", f"--seconds={FUZZ_SECONDS}")


STAGES = {
    "build": Stage(stage_build, "all that the next stages need, optimized; warnings are errors", 9, quick=True),
    "check": Stage(stage_check, "the checks of ./dev check", 1.5, quick=True),
    "fast": Stage(stage_fast, "unit tests that take seconds", 2.5, quick=True),
    "jobs": Stage(stage_jobs, "a handful of jobs with real workers, which are killed", 1.2, quick=True),
    "seeds": Stage(stage_seeds, f"the simulator, {QUICK_SEEDS} seeds", 0.5, quick=True),
    "more": Stage(stage_more, "programs of slow tests, and benchmarks; warnings are errors", 0.8),
    "slow": Stage(stage_slow, "unit tests that take longer", 8),
    "e2e": Stage(stage_e2e, "whole programs: processes, command line, schedulers, installation", 10.5),
    "trainers": Stage(stage_trainers, "PyTorch, LightGBM, XGBoost, Dask and Ray over the package, with kills", 7.5),
    "sim": Stage(stage_sim, f"the simulator, {SIMULATED_SEEDS} seeds that stay and {FRESH_SEEDS} fresh ones", 4),
    "standalone": Stage(stage_standalone, "every source of the product compiles by itself", 2),
    "asan": Stage(stage_asan, "AddressSanitizer and UndefinedBehaviorSanitizer", 6.8),
    "tsan": Stage(stage_tsan, "ThreadSanitizer, for what has threads", 5),
    "fuzz": Stage(stage_fuzz, f"libFuzzer over every decoder, {FUZZ_SECONDS} s in total", 0.7),
}


def left_out(names: list[str]) -> list[str]:
    """Lines that say which stages have not run, and how to run them."""
    missing = [name for name in STAGES if name not in names]
    return [f"not run: {name:10} {STAGES[name].text}" for name in missing] + (
        ["`./dev test --all` runs every stage."] if missing else [])


def table(report: list[tuple[str, float, str]], total_min: float) -> str:
    """The minutes of each stage beside its budget, and the verdict."""
    lines = [f"{'stage':10} {'minutes':>7} {'budget':>7}"]
    for name, minutes, verdict in report:
        over = ", OVER ITS BUDGET" if minutes > STAGES[name].budget_min else ""
        lines.append(f"{name:10} {minutes:7.1f} {STAGES[name].budget_min:7.1f}  {verdict}{over}")
    failed = [name for name, _, verdict in report if verdict.startswith("FAILED")]
    late = [name for name, _, verdict in report if verdict == NOT_BEGUN]
    lines.append(f"{'total':10} {total_min:7.1f} {sum(STAGES[name].budget_min for name, _, _ in report):7.1f}  "
                 f"{'FAILED: ' + ', '.join(failed) if failed else 'ok'}")
    if late:
        lines.append(f"{len(late)} STAGES NOT BEGUN, as the run had taken too long before: {', '.join(late)}")
    return "\n".join(lines)


def chosen(options: argparse.Namespace) -> list[str]:
    return options.stage or [name for name, stage in STAGES.items() if stage.quick or options.all]


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev test", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="run every stage")
    parser.add_argument("--stage", action="append", choices=STAGES, help="run this stage; may be repeated")
    parser.add_argument("--list", action="store_true", help="print the stages, * those that run without --all")
    parser.add_argument("--begin-within", type=float, metavar="MINUTES", default=float("inf"),
                        help="begin no stage but those of `./dev test` after so many minutes, and name those that were "
                             "left out: for a run that is cut off at a fixed time")
    parser.add_argument("--keep-going", action="store_true", help="run the later stages although one failed")
    options = parser.parse_args()
    if options.all and options.stage:
        parser.error("--all runs every stage; give it, or --stage, not both")
    if options.list:
        for name, stage in STAGES.items():
            print(f"{'*' if stage.quick else ' '} {name:10} {stage.budget_min:4.1f} min  {stage.text}")
        return 0
    start = time.monotonic()
    run(DEV, "setup")
    report = []
    for name in chosen(options):
        if not STAGES[name].quick and (time.monotonic() - start) / 60 > options.begin_within:
            report.append((name, 0.0, NOT_BEGUN))
            continue
        print(f"==== {name}: {STAGES[name].text}", flush=True)
        begin = time.monotonic()
        try:
            STAGES[name].run()
            verdict = "ok"
        except StageFailed as failure:
            verdict = f"FAILED: {failure}"
        report.append((name, (time.monotonic() - begin) / 60, verdict))
        print(f"==== {name}: {report[-1][1]:.1f} min, {verdict}", flush=True)  # also known of a run that is cut off
        if verdict != "ok" and not options.keep_going:
            break
    print("\n" + table(report, (time.monotonic() - start) / 60))
    print("\n".join(left_out([name for name, _, _ in report])))
    return 1 if any(verdict.startswith("FAILED") for _, _, verdict in report) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except StageFailed as failure:
        sys.exit(f"dev test: {failure}")
    except KeyboardInterrupt:
        sys.exit(130)
