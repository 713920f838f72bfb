"""clang-tidy on the sources that this branch changed, with the commands of build/release.

Changed: against the merge base with origin/main where there is one, else against the commit before; and what is not
committed. The number of files is bounded: a change of more is looked at in order of size, largest change first."""

import concurrent.futures
import json
import os
import pathlib
import re
import subprocess

MAX_FILES = 6  # of 10 to 150 s each
FOLDERS = {"recovery", "storage", "tracker", "worker", "cuda", "chaos", "cli"}


def _git(root: pathlib.Path, *arguments: str) -> str | None:
    result = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
    return result.stdout.strip() if result.returncode == 0 else None


def base(root: pathlib.Path) -> str | None:
    head = _git(root, "rev-parse", "HEAD")
    for candidate in ("origin/main", "origin/master"):
        merge_base = _git(root, "merge-base", "HEAD", candidate)
        if merge_base and merge_base != head:
            return merge_base
    return _git(root, "rev-parse", "HEAD~")


def changed(root: pathlib.Path) -> list[str]:
    """Sources with a compile command's worth of change, largest change first; nothing if there is no older commit."""
    since = base(root)
    if since is None:
        print("tidy: no older commit to compare with; no file is looked at")
        return []
    sizes = {}
    for line in (_git(root, "diff", "--numstat", "--diff-filter=d", since) or "").splitlines():
        added, removed, name = line.split("\t")
        if name.endswith(".cc") and name.split("/")[0] in FOLDERS:
            sizes[name] = int(added) + int(removed)
    return sorted(sizes, key=lambda name: (-sizes[name], name))


def check(root: pathlib.Path) -> list[str]:
    database = root / "build/release/compile_commands.json"
    if not database.exists():
        return ["build/release/compile_commands.json is missing; run ./dev build first"]
    known = {entry["file"] for entry in json.loads(database.read_text())}
    names = [name for name in changed(root) if str(root / name) in known]
    if len(names) > MAX_FILES:
        print(f"tidy: {len(names)} changed sources; looking at the {MAX_FILES} with the largest changes")
        names = names[:MAX_FILES]

    def run(name: str) -> list[str]:
        result = subprocess.run(["clang-tidy-14", "--quiet", "-p", str(database.parent), "--extra-arg=-Wno-unknown-warning-option",
                                 str(root / name)], cwd=root, capture_output=True, text=True)
        if result.returncode == 0:
            return []
        found = re.findall(r"^(.+?:\d+:\d+: (?:error|warning): .*)$", result.stdout, re.M)
        return sorted(set(found)) or [f"{name}: clang-tidy-14 failed: {(result.stdout + result.stderr).strip()[-2000:]}"]

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return [problem for problems in pool.map(run, names) for problem in problems]
