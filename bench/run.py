#!/usr/bin/env python3
"""Measures Warren's allreduce beside Open MPI's and Gloo's, all over TCP on this machine, and writes docs/performance.md.

Programs take turns within each round, and the order turns from round to round, because a machine's speed drifts: only
what ran in one call of this script is compared. Warren runs twice in every round, under two names; how far apart the two
come is the spread that any ratio has to be read with. A third time it runs without a log, and so survives nothing."""

import argparse
import datetime
import json
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import report  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build/bench"
WARREN = ROOT / "build/release/bin/warren"
RUN_TIMEOUT_S = 600
MPI_TCP = ["--mca", "pml", "ob1", "--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "lo"]
MPI_SHM = ["--mca", "pml", "ob1", "--mca", "btl", "self,vader"]
# What says tcp goes over TCP on loopback; Gloo has nothing else. The rest may use that all ranks are on one host.
PROGRAMS = ["warren", "warren again", "warren allocated", "warren without log", "warren tcp", "openmpi", "openmpi tcp", "gloo ring tcp",
            "gloo halving_doubling tcp"]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def build() -> None:
    subprocess.run([str(ROOT / "scripts/setup.sh"), "--bench"], check=True)
    subprocess.run([str(ROOT / "dev"), "build", "warren_cli", "warren_bench"], check=True)
    BUILD.mkdir(parents=True, exist_ok=True)
    flags = ["-std=c++20", "-O3", "-march=native", "-I."]
    for command in (["mpicxx.openmpi", *flags, "bench/peers/mpi_bench.cc", "-o", str(BUILD / "mpi_bench")],
                    ["g++", *flags, "bench/peers/gloo_bench.cc", "-o", str(BUILD / "gloo_bench"), "-lgloo", "-lpthread"]):
        source, program = ROOT / command[command.index("-o") - 1], pathlib.Path(command[command.index("-o") + 1])
        newest = max(source.stat().st_mtime, (ROOT / "bench/harness.h").stat().st_mtime)
        if not program.exists() or program.stat().st_mtime < newest:
            say("+ " + shlex.join(command))
            subprocess.run(command, cwd=ROOT, check=True)


def commands(program: str, ranks: int, folder: pathlib.Path, arguments: list[str]) -> list[list[str]]:
    """The processes to start for one run; all of them write to the same meeting file."""
    common = [f"--name={program}", f"--meeting={folder}/meeting", *arguments]
    if program.startswith("warren"):
        flags = {"warren without log": ["--replicas=0"], "warren tcp": ["--transport=tcp"]}.get(program, [])
        buffers = ["--allocated=1"] if program == "warren allocated" else []
        return [[str(WARREN), "run", "-n", str(ranks), *flags, "--", str(ROOT / "build/release/bin/warren_bench"), *buffers,
                 *common]]
    if program.startswith("openmpi"):
        network = MPI_TCP if program == "openmpi tcp" else MPI_SHM
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        yielding = ["--mca", "mpi_yield_when_idle", "1"] if ranks > (os.cpu_count() or 1) else []
        return [["mpirun.openmpi", *root, "--oversubscribe", *network, *yielding, "-np", str(ranks),
                 str(BUILD / "mpi_bench"), *common]]
    algorithm = program.split()[1]
    return [[str(BUILD / "gloo_bench"), f"--rank={rank}", f"--ranks={ranks}", f"--algorithm={algorithm}",
             f"--store={folder}/store", *common] for rank in range(ranks)]


def run_once(program: str, ranks: int, arguments: list[str]) -> tuple[list[dict], list[str]]:
    """(one object a size, the command line); raises RuntimeError with the output if a process fails."""
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = pathlib.Path(tempfile.mkdtemp(prefix="warren-bench-", dir=base))
    try:
        (folder / "store").mkdir()
        result = folder / "result.json"
        lines = commands(program, ranks, folder, [f"--json_file={result}", *arguments])
        log = open(folder / "log", "w+")
        # A session each, so that what they start ends with them.
        processes = [subprocess.Popen(line, cwd=ROOT, stdout=log, stderr=log, start_new_session=True) for line in lines]
        try:
            codes = [process.wait(RUN_TIMEOUT_S) for process in processes]
        except subprocess.TimeoutExpired:
            codes = ["timeout"]
        finally:
            for process in processes:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        if any(codes):
            log.seek(0)
            raise RuntimeError(f"{program} with {ranks} ranks ended with {codes}:\n{log.read()[-4000:]}")
        return [json.loads(line) for line in result.read_text().splitlines()], lines[0]
    finally:
        shutil.rmtree(folder)


def machine() -> dict:
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "unknown")
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True).stdout
    return {"cpu": cpu, "cores": os.cpu_count(), "kernel": os.uname().release, "commit": commit.strip(),
            "load_before": os.getloadavg()[0], "date": datetime.date.today().isoformat()}


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev bench", description=__doc__)
    parser.add_argument("--ranks", default="2,4,8", help="world sizes")
    parser.add_argument("--sizes", default="4,1K,64K,1M,16M,100M", help="bytes")
    parser.add_argument("--rounds", type=int, default=5, help="how often each program has its turn")
    parser.add_argument("--samples", type=int, default=7, help="of each size in one turn")
    parser.add_argument("--quick", action="store_true", help="2 and 4 ranks, up to 1 MiB, 3 rounds; writes no page")
    parser.add_argument("--programs", default=",".join(PROGRAMS))
    parser.add_argument("--no-figures", action="store_true", help="leave out memory, start-up and the tracker's load")
    parser.add_argument("--recovery", action="store_true",
                        help="what faults cost, instead of speed beside other programs; takes an hour and a half")
    parser.add_argument("--choice", action="store_true",
                        help="what auto chooses beside each algorithm, instead of speed beside other programs")
    parser.add_argument("--minutes", type=float, default=30, help="with --recovery: of each of the two long runs")
    parser.add_argument("--kills", type=int, default=200, help="with --recovery: of 4 workers, and of 8")
    parser.add_argument("--megabytes", type=int, default=10240, help="with --recovery: that are replayed")
    parser.add_argument("--json", type=pathlib.Path, default=BUILD / "results.json", help="where the measurements go")
    parser.add_argument("--page", type=pathlib.Path, default=ROOT / "docs/performance.md", help="the page to write into")
    options = parser.parse_args()
    if options.recovery:
        import recovery
        described = machine()
        rows = recovery.run(options.minutes, options.kills, options.megabytes, say)
        recovery.write(options.page, rows, described)
        print(recovery.page_text(rows, described))
        return 0
    if options.choice:
        import choice
        subprocess.run([str(ROOT / "dev"), "build", "warren_cli"], check=True)
        described = machine()
        sizes = "4,1K,64K,1M,16M,100M" if not options.quick else "4,1K,64K,1M"
        cells = choice.run(WARREN, [int(ranks) for ranks in options.ranks.split(",")], sizes, 3 * options.samples, say)
        text = choice.page_text(cells, described)
        if not options.quick:
            choice.write(options.page, text)
        print(text)
        return 0
    if options.quick:
        options.ranks, options.sizes, options.rounds = "2,4", "4,1K,64K,1M", 3
    programs = options.programs.split(",")
    if unknown := set(programs) - set(PROGRAMS):
        parser.error(f"unknown programs: {', '.join(sorted(unknown))}; there are {', '.join(PROGRAMS)}")

    build()
    results = {"machine": machine(), "rounds": options.rounds, "samples": options.samples, "cells": [], "commands": {},
               "failures": []}
    arguments = [f"--sizes={options.sizes}", f"--samples={options.samples}"]
    for ranks in map(int, options.ranks.split(",")):
        for turn in range(options.rounds):
            shift = turn % len(programs)
            for program in programs[shift:] + programs[:shift]:
                say(f"{ranks} ranks, round {turn + 1} of {options.rounds}: {program}")
                try:
                    cells, line = run_once(program, ranks, arguments)
                except RuntimeError as failure:
                    say(str(failure))
                    results["failures"].append(str(failure).splitlines()[0])
                    continue
                results["commands"].setdefault(f"{program}, {ranks} ranks", shlex.join(line))
                results["cells"] += [cell | {"round": turn} for cell in cells]
    if not options.no_figures:
        import figures
        results["figures"] = figures.measure(say)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(results, indent=1) + "\n")
    print(report.tables(results))
    if not options.quick:
        report.write_page(options.page, results)
        say(f"wrote {options.json} and {options.page}")
    wrong = sum(cell["wrong"] for cell in results["cells"])
    if wrong or results["failures"]:
        say(f"{wrong} wrong elements, failures: {results['failures'] or 'none'}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
