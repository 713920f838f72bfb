#!/usr/bin/env python3
"""Runs Warren's tests in stages and prints the minutes of each. What `./dev test` calls; docs/testing.md has the map."""

import argparse
import contextlib
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
# Of the sanitizers' programs, which wait for each other half of their time and whose limits are five times as long.
WAITING_JOBS = CORES + 1
# Tests that are expected to skip themselves. A test that cannot run is a failure, so: none.
EXPECTED_SKIPS = 0
# But for these programs: without a GPU, or without the module in this build, all their cases skip themselves and say so,
# or none does. WARREN_REQUIRE_GPU=1 makes that a failure.
GPU_PROGRAMS = {"gpu_test"}
REQUIRE_GPU = "WARREN_REQUIRE_GPU"
FUZZ_SECONDS = 60
SIMULATED_SEEDS = 7000
FRESH_SEEDS = 1500
# Pure functions over so many cases, or processes killed so often, that a sanitizer takes minutes; or speeds are compared,
# which a sanitizer changes. The tests beside them reach the same code.
TOO_SLOW_SANITIZED = {"costs_test", "loans_test", "nccl_faults_test", "nccl_processes_test", "nccl_test",
                      "recovery_losses_test", "recovery_test", "rewire_test", "schedule_hierarchical_test",
                      "schedule_mutants_test", "schedule_pipeline_test", "schedule_stability_test",
                      "schedule_symbolic_test", "sim_deaths_test", "sim_drain_test", "sim_gpus_test", "sim_mutants_test",
                      "sim_scenarios_test", "sim_shrink_test", "sim_stragglers_test", "straggler_test"}
# What needs the commands of the program `warren`, or the processes of its chaos: a sixth of what a sanitizer would compile.
OF_COMMANDS = {"chaos_process_test", "launched_test", "weather_test"}
COMMANDS_FOLDER = ("cli",)
# Jobs of whole workers that are about what their threads and lives do to each other: ThreadSanitizer's stage has them.
THREADS_ABOVE_ALL = {"agreed_costs_test", "drain_test", "fusion_test", "process_test", "shrink_test", "spares_test",
                     "timeline_test"}
# Fewer test programs than this in a sanitizer's stage mean that the selection is broken.
LEAST_PROGRAMS = 10
# What has no threads, and so where ThreadSanitizer has nothing to say: pure functions, most of them slow under it.
PURE_FOLDERS = (("recovery",), ("storage",), ("chaos",), ("examples",), ("cli",), ("worker", "kernels"), ("worker", "schedule"))
# But for these, which lie there.
THREADED = {"storage_host_log_test", "storage_segment_memory_test", "storage_write_behind_test"}
# Of the other folders, programs that never create a thread: they step through engines, or look at pure functions.
WITHOUT_THREADS = {"cuda_twins_test", "dead_segments_test", "engine_recovery_test", "engine_test", "exchange_test",
                   "executor_test", "facade_test", "fusion_unit_test", "light_round_test", "logged_test", "matrix_test",
                   "narrowing_test", "pass_fd_test", "past_test", "plans_test", "progress_test", "rabit_headers_test",
                   "rabit_node_test", "rabit_parameters_test", "rabit_setup_rounds_test", "replay_test",
                   "segment_exchange_test", "spare_core_test", "tracker_events_test", "tracker_job_table_test",
                   "tracker_topology_test"}
# Threads as in cluster_test; what it is about is arithmetic, for minutes under ThreadSanitizer.
OTHER_THREADS_ALIKE = {"wire_test"}


class StageFailed(Exception):
    pass


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


def tests_of(preset: str) -> list[dict]:
    """The GoogleTest programs that CTest knows, with name and folder; configures if need be."""
    build(preset, "build.ninja")
    output = subprocess.run(["ctest", "--test-dir", f"build/{preset}", "--show-only=json-v1"], cwd=ROOT, check=True,
                            capture_output=True).stdout
    return gtest_programs(output.decode(), ROOT / "build" / preset)


def gtest_programs(shown: str, build_folder: pathlib.Path) -> list[dict]:
    """From CTest's JSON. A test's command is not in it as long as the program is not built: labels and folders are."""
    tests = []
    for test in json.loads(shown)["tests"]:
        properties = {item["name"]: item["value"] for item in test.get("properties", [])}
        if "gtest" in properties.get("LABELS", []):
            folder = pathlib.Path(properties["WORKING_DIRECTORY"]).relative_to(build_folder)
            tests.append({"name": test["name"], "folder": folder.parts[1:]})
    return tests


def ctest(preset: str, *selection: str, jobs: int = CORES, environment: dict[str, str] | None = None) -> None:
    """Runs the selected tests, so many programs at a time, and holds the number of skipped ones against EXPECTED_SKIPS."""
    results = ROOT / "build" / preset / "results"
    with locked(preset):
        results.mkdir(exist_ok=True)
        for old in results.glob("*.xml"):
            old.unlink()
        try:
            run("ctest", "--test-dir", f"build/{preset}", "--output-on-failure", "--no-tests=error", "--schedule-random",
                "-j", str(jobs), "--output-junit", str(results / "ctest.junit.xml"), *selection,
                env=test_environment(os.environ) | {"GTEST_OUTPUT": f"xml:{results}/", "GTEST_BRIEF": "1"} |
                    (environment or {}))
        finally:
            cases, skipped = count(results)
        without_gpu, skipped = skipped_without_gpu(results, skipped)
        print(f"{cases} test cases, {len(skipped)} skipped", flush=True)
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


def skipped_without_gpu(results: pathlib.Path, skipped: list[str]) -> tuple[list[str], list[str]]:
    """What is skipped, told apart: (all cases of programs that need a GPU, the rest). Where only some of a program's
    cases are skipped, they belong to the rest."""
    without = []
    for program in sorted(GPU_PROGRAMS):
        report = results / f"{program}.xml"
        if not report.exists():
            continue
        cases = list(xml.etree.ElementTree.parse(report).getroot().iter("testcase"))
        mine = [name for name in skipped if name.startswith(f"{program}:")]
        if len(mine) == len(cases):
            without += mine
    return without, [name for name in skipped if name not in without]


def without_cases(results: pathlib.Path) -> list[str]:
    """GoogleTest programs whose report has no case: they pass, and have tested nothing."""
    return [report.stem for report in sorted(results.glob("*.xml")) if report.name != "ctest.junit.xml" and
            next(xml.etree.ElementTree.parse(report).getroot().iter("testcase"), None) is None]


def count(results: pathlib.Path) -> tuple[int, list[str]]:
    """(cases run, names of those skipped), from GoogleTest's and CTest's reports."""
    cases, skipped = 0, []
    for report in sorted(results.glob("*.xml")):
        by_ctest = report.name == "ctest.junit.xml"
        for case in xml.etree.ElementTree.parse(report).getroot().iter("testcase"):
            status = case.get("status")
            if case.find("skipped") is not None or status in ("notrun", "disabled"):
                skipped.append(f"{report.stem}:{case.get('classname')}.{case.get('name')}")
            elif not by_ctest:
                cases += 1
    return cases, skipped


def stage_build():
    build("release")


def stage_check():
    run(sys.executable, "scripts/check.py")


def stage_unit():
    build("release")
    ctest("release", "-LE", "^(e2e|install)$")


def stage_e2e():
    build("release")
    ctest("release", "-L", "^(e2e|install)$")


def stage_sim():
    build("release", "warren_cli")
    run("build/release/bin/warren", "sim", f"--seeds={SIMULATED_SEEDS}")
    first = random.SystemRandom().randrange(10**6, 10**9)
    run("build/release/bin/warren", "sim", f"--seeds={first}:{first + FRESH_SEEDS - 1}")


def sanitized(preset: str, left_out: typing.Callable[[dict], bool], options: dict[str, str]):
    chosen = [test for test in tests_of(preset) if test["name"] not in TOO_SLOW_SANITIZED | OF_COMMANDS and
              test["folder"] != COMMANDS_FOLDER and not left_out(test)]
    if len(chosen) < LEAST_PROGRAMS:
        raise StageFailed(f"only {len(chosen)} test programs found in build/{preset}")
    build(preset, *sorted(test["name"] for test in chosen))
    pattern = "^(" + "|".join(test["name"] for test in chosen) + ")$"
    ctest(preset, "-R", pattern, jobs=WAITING_JOBS, environment=options)


def stage_asan():
    sanitized("asan", lambda test: test["name"] in THREADS_ABOVE_ALL,
              {"ASAN_OPTIONS": "detect_stack_use_after_return=1:strict_string_checks=1",
               "UBSAN_OPTIONS": "print_stacktrace=1"})


def without_threads(test: dict) -> bool:
    pure = any(test["folder"][:len(folder)] == folder for folder in PURE_FOLDERS)
    return test["name"] in WITHOUT_THREADS | OTHER_THREADS_ALIKE or (pure and test["name"] not in THREADED)


def stage_tsan():
    suppressions = ROOT / "scripts/tsan.supp"
    sanitized("tsan", without_threads,
              {"TSAN_OPTIONS": f"halt_on_error=1:second_deadlock_stack=1:suppressions={suppressions}"})


def stage_fuzz():
    run(sys.executable, "tests/fuzz/run.py", f"--seconds={FUZZ_SECONDS}")


STAGES = {
    "build": (stage_build, "build everything, optimized"),
    "check": (stage_check, "the checks of ./dev check"),
    "unit": (stage_unit, "unit tests, optimized build"),
    "e2e": (stage_e2e, "whole programs: processes, command line, installation"),
    "sim": (stage_sim, f"the simulator, {SIMULATED_SEEDS} seeds that stay and {FRESH_SEEDS} fresh ones"),
    "asan": (stage_asan, "unit tests under AddressSanitizer and UndefinedBehaviorSanitizer"),
    "tsan": (stage_tsan, "tests of what has threads under ThreadSanitizer"),
    "fuzz": (stage_fuzz, f"libFuzzer over every decoder, {FUZZ_SECONDS} s in total"),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev test", description=__doc__)
    parser.add_argument("--stage", action="append", choices=STAGES, help="run this stage; may be repeated (default: all)")
    parser.add_argument("--list", action="store_true", help="print the stages")
    parser.add_argument("--keep-going", action="store_true", help="run the later stages although one failed")
    options = parser.parse_args()
    if options.list:
        for name, (_, text) in STAGES.items():
            print(f"{name:6} {text}")
        return 0
    run(DEV, "setup")
    report, failed = [], []
    start = time.monotonic()
    for name in options.stage or STAGES:
        print(f"==== {name}: {STAGES[name][1]}", flush=True)
        begin = time.monotonic()
        try:
            STAGES[name][0]()
            verdict = "ok"
        except StageFailed as failure:
            verdict = f"FAILED: {failure}"
            failed.append(name)
        report.append((name, (time.monotonic() - begin) / 60, verdict))
        print(f"==== {name}: {report[-1][1]:.1f} min, {verdict}", flush=True)  # also known of a run that is cut off
        if failed and not options.keep_going:
            break
    print("\nstage    minutes")
    for name, minutes, verdict in report:
        print(f"{name:8} {minutes:7.1f}  {verdict}")
    print(f"{'total':8} {(time.monotonic() - start) / 60:7.1f}  {'FAILED: ' + ', '.join(failed) if failed else 'ok'}")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except StageFailed as failure:
        sys.exit(f"dev test: {failure}")
    except KeyboardInterrupt:
        sys.exit(130)
