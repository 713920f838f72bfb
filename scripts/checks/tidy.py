"""clang-tidy on the sources that this branch changed. The number of files is bounded: the largest changes come first."""

import concurrent.futures
import os
import pathlib
import re
import subprocess

from . import sources

MAX_FILES = 6  # of 10 to 150 s each


def check(root: pathlib.Path) -> list[str]:
    commands = sources.commands(root)
    if commands is None:
        return [sources.missing_database()]
    names = [name for name in sources.changed(root, sources.PRODUCT) if name in commands]
    if len(names) > MAX_FILES:
        print(f"tidy: {len(names)} changed sources; looking at the {MAX_FILES} with the largest changes")
        names = names[:MAX_FILES]

    def run(name: str) -> list[str]:
        result = subprocess.run(["clang-tidy-14", "--quiet", "-p", str((root / sources.DATABASE).parent),
                                 "--extra-arg=-Wno-unknown-warning-option", str(root / name)],
                                cwd=root, capture_output=True, text=True)
        if result.returncode == 0:
            return []
        found = re.findall(r"^(.+?:\d+:\d+: (?:error|warning): .*)$", result.stdout, re.M)
        return sorted(set(found)) or [f"{name}: clang-tidy-14 failed: {(result.stdout + result.stderr).strip()[-2000:]}"]

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return [problem for problems in pool.map(run, names) for problem in problems]
