"""Sources of the product, those of this branch's change, and the command that compiles each by itself.

The commands are those of the preset `alone` (CMakePresets.json), which `./dev check` configures."""

import json
import os
import pathlib
import shlex
import subprocess

PRODUCT = {"recovery", "storage", "tracker", "worker", "launcher", "rabit", "cuda", "chaos", "cli"}
ALL = PRODUCT | {"bench", "examples", "tests"}
DATABASE = pathlib.PurePath("build/alone/compile_commands.json")


def _git(root: pathlib.Path, *arguments: str) -> str | None:
    result = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
    return result.stdout.strip() if result.returncode == 0 else None


def base(root: pathlib.Path) -> str | None:
    """The commit that a change is compared with: the merge base with origin/main if there is one, else the one before."""
    head = _git(root, "rev-parse", "HEAD")
    for candidate in ("origin/main", "origin/master"):
        merge_base = _git(root, "merge-base", "HEAD", candidate)
        if merge_base and merge_base != head:
            return merge_base
    return _git(root, "rev-parse", "HEAD~")


def changed(root: pathlib.Path, folders: set[str]) -> list[str]:
    """Sources in these folders that differ from base(), committed or not; the largest change comes first."""
    since = base(root)
    if since is None:
        print("no older commit to compare with; no changed source is looked at")
        return []
    sizes = {}
    for line in (_git(root, "diff", "--numstat", "--no-renames", "--diff-filter=d", since) or "").splitlines():
        added, removed, name = line.split("\t")
        if name.endswith(".cc") and name.split("/")[0] in folders:
            sizes[name] = int(added) + int(removed)
    return sorted(sizes, key=lambda name: (-sizes[name], name))


def commands(root: pathlib.Path) -> dict[str, list[str]] | None:
    """The compiler's words for each C++ source of ours, without ccache; None where build/alone has none."""
    database = root / DATABASE
    if not database.exists():
        return None
    found = {}
    for entry in json.loads(database.read_text()):
        path = pathlib.Path(entry["file"])
        if path.suffix != ".cc" or not path.is_relative_to(root) or path.relative_to(root).parts[0] not in ALL:
            continue
        words = shlex.split(entry["command"])
        if os.path.basename(words[0]) == "ccache":
            words = words[1:]
        found[path.relative_to(root).as_posix()] = words
    return found or None


def compiled_alone(root: pathlib.Path) -> set[str]:
    """Sources that the release build compiles by themselves, in no batch; none where there is no such build."""
    database = root / "build/release/compile_commands.json"
    if not database.exists():
        return set()
    paths = {pathlib.Path(entry["file"]) for entry in json.loads(database.read_text())}
    return {path.relative_to(root).as_posix() for path in paths if path.is_relative_to(root)}


def missing_database() -> str:
    return f"{DATABASE} is missing, or has no command for a source of this folder; run ./dev check, which makes it"
