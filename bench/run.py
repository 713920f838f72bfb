#!/usr/bin/env python3
"""Measures Warren's allreduce beside Open MPI's, MPICH's, Gloo's and rabit's and beside the least that the hardware needs, on this
machine and among network namespaces, and writes docs/measurements/allreduce.md and the plot
docs/performance.svg; other flags write other pages of docs/measurements.

Programs take turns within each round, and the order turns from round to round, because a machine's speed drifts: only
what ran in one call of this script is compared. Warren runs twice in every round, under two names, in each way in which it is
compared; how far apart the two come is the spread that a ratio has to be read with. In each way it runs once more without a log, and so
survives nothing."""

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
import network  # noqa: E402
import programs  # noqa: E402
import rabit  # noqa: E402
import report  # noqa: E402
from programs import BUILD, HOST, HOSTS, LIMITED, OPEN, PAIRS, PLACES, PROGRAMS, RANKS_APART, ROOT, WARREN  # noqa: E402

RUN_TIMEOUT_S = 600
LIMITED_BATCH_US = 400_000  # so long that what a link may send at once after a rest matters little
# At the most: the wire takes most of the time, and always as long.
LIMITED_ROUNDS = 3
LIMITED_SAMPLES = 4
LIMITED_BYTES = 100 << 20
SIZES = "4,1K,64K,1M,16M,100M,256M"
RESULTS = BUILD / "results.json"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def build() -> None:
    subprocess.run([str(ROOT / "scripts/setup.sh"), "--bench"], check=True)
    subprocess.run([str(ROOT / "dev"), "build", "warren_cli", "bench_programs"], check=True)
    BUILD.mkdir(parents=True, exist_ok=True)
    where = subprocess.run(["stat", "-f", "-c", "%T", str(BUILD)], check=True, capture_output=True, text=True).stdout
    if where.strip() == "tmpfs":
        raise SystemExit(f"{BUILD} lies in memory: what is written to disk would be measured there")
    for name, program, compiler, libraries in programs.SOURCES:
        source, target = ROOT / "bench/peers" / name, BUILD / program
        newest = max(source.stat().st_mtime, (ROOT / "bench/harness.h").stat().st_mtime)
        if not target.exists() or target.stat().st_mtime < newest:
            command = [compiler, "-std=c++20", "-O3", "-march=native", "-I.", str(source), "-o", str(target), *libraries]
            say("+ " + shlex.join(command))
            subprocess.run(command, cwd=ROOT, check=True)


def end(processes: list[subprocess.Popen]) -> None:
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def for_people(line: list[str], folder: pathlib.Path, disk: pathlib.Path, hosts: network.Network | None) -> list[str]:
    """Without what has another name in each run: the folders, and the namespaces."""
    for space in hosts.spaces() if hosts else []:
        for enter in (space.enter, space.enter_network):
            if line[:len(enter)] == enter:
                line = [space.name, *line[len(enter):]]
    return [word.replace(str(folder), "DIR").replace(str(disk), "DISK") for word in line]


def run_once(program: str, ranks: int, arguments: list[str], hosts: network.Network | None) -> tuple[list[dict], list[str]]:
    """(one object a size, the command line); raises RuntimeError with the output if a process fails."""
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = pathlib.Path(tempfile.mkdtemp(prefix="warren-bench-", dir=base))
    disk = pathlib.Path(tempfile.mkdtemp(prefix="data-", dir=BUILD))
    try:
        (folder / "store").mkdir()
        result = folder / "result.json"
        started = programs.start(program, ranks, folder, disk, [f"--json_file={result}", *arguments], hosts)
        if started.aside:
            subprocess.run([str(WARREN), "keygen", f"--out={folder}/secret"], check=True, stdout=subprocess.DEVNULL)
        processes = []
        with open(folder / "log", "w+") as log:
            try:
                # A session each, so that what they start ends with them; their temporary files go with the folder.
                for line in started.aside + started.processes:
                    processes.append(subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                                      env=os.environ | {"TMPDIR": str(folder)}, start_new_session=True))
                codes = [process.wait(RUN_TIMEOUT_S) for process in processes[len(started.aside):]]
            except subprocess.TimeoutExpired:
                codes = ["timeout"]
            finally:
                end(processes)
            if any(codes):
                log.seek(0)
                raise RuntimeError(f"{program} with {ranks} ranks ended with {codes}:\n{log.read()[-4000:]}")
        line = for_people(started.processes[0], folder, disk, hosts)
        return [json.loads(text) for text in result.read_text().splitlines()], line
    finally:
        for made in (folder, disk):
            shutil.rmtree(made, ignore_errors=True)


def measure(results: dict, place: str, ranks: int, rounds: int, wanted: list[str], arguments: list[str],
            hosts: network.Network | None) -> None:
    """Adds cells, commands and failures to the results."""
    names = [program for program in programs.programs_of(place, ranks) if program in wanted]
    if not names:
        return
    for turn in range(rounds):
        shift = turn % len(names)
        for program in names[shift:] + names[:shift]:
            say(f"{place}, {ranks} ranks, round {turn + 1} of {rounds}: {program}")
            try:
                cells, line = run_once(program, ranks, arguments, hosts)
            except RuntimeError as failure:
                say(str(failure))
                results["failures"].append(f"{place}, {ranks} ranks: {str(failure).splitlines()[0]}")
                continue
            results["commands"].setdefault(f"{place}, {ranks} ranks: {program}", line)
            results["cells"] += [cell | {"place": place, "round": turn} for cell in cells]


def bytes_of(size: str) -> int:
    """Of "4", "1K" or "16M"."""
    return int(size.rstrip("KM")) << {"K": 10, "M": 20}.get(size[-1], 0)


def measure_namespaces(results: dict, place: str, rounds: int, wanted: list[str], sizes: str, samples: int, usual: str) -> None:
    if os.geteuid() != 0:
        results["failures"].append(f"{place}: it takes root to make them")
        return
    with network.network(HOSTS[place]) as hosts:
        if place == LIMITED:
            hosts.limit()
            sizes = ",".join(size for size in sizes.split(",") if bytes_of(size) <= LIMITED_BYTES)
            samples = min(samples, LIMITED_SAMPLES)
        if not sizes:
            return
        arguments = [f"--sizes={sizes}", f"--samples={samples}", usual]
        if place == LIMITED:
            arguments.append(f"--batch_us={LIMITED_BATCH_US}")
        measure(results, place, RANKS_APART, rounds, wanted, arguments, hosts)


def machine() -> dict:
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "unknown")
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True).stdout
    return {"cpu": cpu, "cores": os.cpu_count(), "kernel": os.uname().release, "commit": commit.strip(),
            "load_before": os.getloadavg()[0], "date": datetime.date.today().isoformat()}


def usual_copy(seconds: int) -> str:
    """The argument by which bad moments are told from others."""
    say("how fast this machine copies")
    copies = subprocess.run([BUILD / "floor_bench", "--how=copies", f"--seconds={seconds}"], check=True, capture_output=True, text=True)
    return f"--usual_copy_us={copies.stdout.strip()}"


def compare_collectives(options: argparse.Namespace) -> int:
    import collectives
    if options.quick:
        options.ranks, options.rounds, options.samples = "2,4", 1, 3
        options.sizes = options.sizes or "64,4K,64K,1M"
    chosen = options.names.split(",") if options.names else collectives.COLLECTIVES
    if unknown := set(chosen) - set(collectives.COLLECTIVES):
        raise SystemExit(f"unknown collectives: {', '.join(sorted(unknown))}; there are {', '.join(collectives.COLLECTIVES)}")
    results = {"machine": machine(), "rounds": options.rounds, "samples": options.samples, "cells": [], "commands": {}, "failures": []}
    build()
    usual = usual_copy(20)
    json_path = BUILD / "collectives.json" if options.json == RESULTS else options.json
    for collective in chosen:
        say(f"{collective}:")
        arguments = [f"--sizes={collectives.sizes_of(collective, options.sizes)}", f"--samples={options.samples}", usual,
                     f"--collective={collective}"]
        for way, place in collectives.WAYS.items():
            before = len(results["cells"])
            if place == HOST:
                for ranks in map(int, options.ranks.split(",")):
                    measure(results, place, ranks, options.rounds, collectives.programs_of(collective, way, ranks), arguments, None)
            elif os.geteuid() != 0:
                results["failures"].append(f"{place}: it takes root to make them")
            else:
                with network.network(HOSTS[place]) as hosts:
                    wanted = collectives.programs_of(collective, way, RANKS_APART)
                    measure(results, place, RANKS_APART, options.rounds, wanted, arguments, hosts)
            for cell in results["cells"][before:]:
                cell |= {"collective": collective, "way": way}
        json_path.write_text(json.dumps(results))  # of an hour, what is done stays
    if not options.quick:
        collectives.write(options.page or collectives.PAGE, results)
    print(collectives.page_text(results))
    wrong = sum(cell["wrong"] for cell in results["cells"])
    say(f"{wrong} wrong elements, failures: {results['failures'] or 'none'}")
    return 1 if wrong or results["failures"] else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev bench", description=__doc__)
    parser.add_argument("--ranks", default="2,4,8", help="world sizes on one host")
    parser.add_argument("--sizes", help=f"bytes (default: {SIZES}; of --collectives 64,4K,64K,1M,16M,100M)")
    parser.add_argument("--rounds", type=int, default=5, help="how often each program has its turn")
    parser.add_argument("--samples", type=int, default=7, help="of each size in one turn; 3 at most above 128 MiB")
    parser.add_argument("--quick", action="store_true", help="2 and 4 ranks, up to 1 MiB, 3 rounds of 3 samples (1 among namespaces, and with --collectives); writes no page")
    parser.add_argument("--places", default="host,pairs,open,limited",
                        help="where: one host, 2 namespaces of 2 ranks, 4 of one, and those with 1 Gbit/s")
    parser.add_argument("--programs", help="only these, by their names in the tables, between commas")
    parser.add_argument("--no-figures", action="store_true", help="leave out memory, start-up, overlap, the tracker's load and the kernels")
    parser.add_argument("--recovery", action="store_true",
                        help="what faults cost, instead of speed beside other programs; takes an hour and a half")
    parser.add_argument("--rewire", action="store_true", help="what going around a slow link is worth, instead of all that")
    parser.add_argument("--choice", action="store_true",
                        help="what auto chooses beside each algorithm, instead of speed beside other programs")
    parser.add_argument("--collectives", action="store_true",
                        help="all collectives beside those of other programs, instead of allreduces")
    parser.add_argument("--names", help="with --collectives: only these, between commas")
    parser.add_argument("--minutes", type=float, default=30, help="with --recovery: of each of the two long runs")
    parser.add_argument("--kills", type=int, default=200, help="with --recovery: of 4 workers, and of 8")
    parser.add_argument("--megabytes", type=int, default=10240, help="with --recovery: that are replayed")
    parser.add_argument("--json", type=pathlib.Path, default=RESULTS, help="where the measurements go")
    parser.add_argument("--page", type=pathlib.Path, help="the page to write into, instead of the benchmark's own in docs/measurements")
    options = parser.parse_args()
    if options.recovery:
        import recovery
        described = machine()
        rows = recovery.run(options.minutes, options.kills, options.megabytes, say)
        recovery.write(options.page or recovery.PAGE, rows, described)
        print(recovery.page_text(rows, described))
        return 0
    if options.rewire:
        import recovery
        import rewire
        described = machine()
        subprocess.run([str(ROOT / "dev"), "build", "warren_cli", "bench_programs"], check=True)
        rows = rewire.rows(options.rounds, say)
        recovery.write(options.page or rewire.PAGE, rows, described, rewire.BEGIN, rewire.END)
        print(recovery.page_text(rows, described))
        return 0
    if options.choice:
        import choice
        described = machine()
        subprocess.run([str(ROOT / "dev"), "build", "warren_cli"], check=True)
        sizes = "4,1K,64K,1M,16M,100M" if not options.quick else "4,1K,64K,1M"
        turns = 4 * -(-3 * options.samples // 4)  # pairs of cycles, for two runs
        cells = choice.run(WARREN, [int(ranks) for ranks in options.ranks.split(",")], sizes, turns, say)
        text = choice.page_text(cells, described)
        if not options.quick:
            choice.write(options.page or choice.PAGE, text)
        print(text)
        return 0
    if options.collectives:
        return compare_collectives(options)
    options.sizes = options.sizes or SIZES
    if options.quick:
        options.ranks, options.sizes, options.rounds, options.samples = "2,4", "4,1K,64K,1M", 3, 3
    places = [{"host": HOST, "pairs": PAIRS, "open": OPEN, "limited": LIMITED}.get(name) for name in options.places.split(",")]
    if None in places:
        parser.error("--places is a list of host, pairs, open and limited")
    known = list(dict.fromkeys(name for place in PLACES for name in PROGRAMS[place]))
    wanted = options.programs.split(",") if options.programs else known
    if unknown := set(wanted) - set(known):
        parser.error(f"unknown programs: {', '.join(sorted(unknown))}; there are {', '.join(known)}")

    described = machine()  # before this run's own load
    build()
    results = {"machine": described, "rounds": options.rounds, "samples": options.samples, "cells": [], "commands": {},
               "failures": []}
    try:
        rabit.build(say)
    except RuntimeError as why:
        say(str(why))
        results["without_rabit"] = str(why).splitlines()[0]
        wanted = [name for name in wanted if not name.startswith("rabit")]
    usual = usual_copy(5 if options.quick else 60)
    arguments = [f"--sizes={options.sizes}", f"--samples={options.samples}", usual]
    for place in places:
        if place == HOST:
            for ranks in map(int, options.ranks.split(",")):
                measure(results, place, ranks, options.rounds, wanted, arguments, None)
        else:
            most = 1 if options.quick else LIMITED_ROUNDS if place == LIMITED else options.rounds
            rounds = min(options.rounds, most)
            measure_namespaces(results, place, rounds, wanted, options.sizes, options.samples, usual)
    if not options.no_figures:
        import figures
        results["figures"] = figures.measure(say)
        results["kernels"] = figures.kernels(say)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(results, indent=1) + "\n")
    print(report.tables(results))
    if not options.quick:
        page = options.page or report.PAGE
        report.write_page(page, results)
        say(f"wrote {options.json}, {page} and {report.plot_of(page)}")
    wrong = sum(cell["wrong"] for cell in results["cells"])
    if wrong or results["failures"]:
        say(f"{wrong} wrong elements, failures: {results['failures'] or 'none'}")
        return 1
    return 0


def end_by_signal(number: int, _) -> None:
    sys.exit(128 + number)  # not at once, so that what was started and made goes too


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end_by_signal)
    sys.exit(main())
