"""C++ sources are as clang-format-14 writes them; `./dev format` makes them so."""

import pathlib
import re
import subprocess

from . import tree

BATCH = 64


def check(root: pathlib.Path) -> list[str]:
    names = [str(name) for name in tree.files(root, ".h", ".cc", ".cpp", ".hpp", ".c", ".cu")]
    problems = {}
    for start in range(0, len(names), BATCH):
        result = subprocess.run(["clang-format-14", "--dry-run", "--Werror", *names[start:start + BATCH]], cwd=root,
                                capture_output=True, text=True)
        for match in re.finditer(r"^(\S+?):(\d+):\d+: error: code should be clang-formatted", result.stderr, re.M):
            problems.setdefault(match.group(1), match.group(2))
        if result.returncode and not problems:
            return [f"clang-format-14 failed: {result.stderr.strip()}"]
    return [f"{name}:{line}: not formatted; run ./dev format" for name, line in problems.items()]
