#!/usr/bin/env python3
"""Builds the fuzzers, writes their seeds, replays kept findings and fuzzes for some seconds in total.

A finding fails the run; its input stays in build/asan/findings/<fuzzer>/ and the line that reproduces it is printed.
Once mended, the input belongs into tests/fuzz/found/<fuzzer>/, from where every later run replays it."""

import argparse
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / "build/asan"
MAX_INPUT_BYTES = 4096
MEMORY_LIMIT_MB = 1024
# One input may take this long at most: a decoder whose time is not linear in its input is a way to stop a tracker.
INPUT_TIMEOUT_S = 5


def fuzzers() -> list[str]:
    return re.findall(r"^warren_fuzzer\(NAME (\w+)", (ROOT / "tests/fuzz/CMakeLists.txt").read_text(), re.M)


def fuzz(name: str, seconds: int) -> str | None:
    """Replays the kept findings of a fuzzer and fuzzes. Returns the outcome; None after a failure, which is printed."""
    program = BUILD / f"bin/fuzz_{name}"
    corpus, findings = BUILD / "corpus" / name, BUILD / "findings" / name
    corpus.mkdir(parents=True, exist_ok=True)
    findings.mkdir(parents=True, exist_ok=True)
    limits = [f"-max_len={MAX_INPUT_BYTES}", f"-rss_limit_mb={MEMORY_LIMIT_MB}", f"-timeout={INPUT_TIMEOUT_S}",
              f"-artifact_prefix={findings}/"]
    kept = sorted(path for path in (ROOT / "tests/fuzz/found" / name).glob("*") if path.is_file())
    commands = [[str(program), *limits, *map(str, kept)]] if kept else []
    commands.append([str(program), *limits, f"-max_total_time={seconds}", "-print_final_stats=1", "-verbosity=0",
                     str(corpus), str(BUILD / "seeds" / name)])
    for command in commands:
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace")
        if result.returncode:
            print(result.stderr[-6000:], file=sys.stderr)
            for path in re.findall(r"Test unit written to (\S+)", result.stderr):
                print(f"fuzz {name}: reproduce with {program} {path}", file=sys.stderr)
            print(f"fuzz {name}: FAILED: {' '.join(command)}", file=sys.stderr)
            return None
    runs = re.search(r"number_of_executed_units:\s*(\d+)", result.stderr)
    return f"{runs.group(1) if runs else '?'} inputs in {seconds} s, {len(kept)} kept findings replayed, ok"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="of fuzzing, over all fuzzers together")
    parser.add_argument("--only", choices=fuzzers(), help="one fuzzer")
    options = parser.parse_args()
    names = [options.only] if options.only else fuzzers()
    subprocess.run([str(ROOT / "dev"), "build", "--preset", "asan", "fuzz_seeds", *[f"fuzz_{name}" for name in names]],
                   check=True)
    subprocess.run([str(BUILD / "bin/fuzz_seeds"), str(BUILD / "seeds")], check=True)
    share = max(1, options.seconds // len(names))
    failed = False
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:  # each has a core
        for name, done in zip(names, pool.map(lambda name: fuzz(name, share), names)):
            failed = failed or done is None
            if done:
                print(f"fuzz {name}: {done}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
