"""Who may include whom (docs/architecture.md, "The rooms"), what the public headers may show, and that recovery/ stays
pure."""

import pathlib
import re

from . import tree

# The folders of ours that the sources of a folder may include, besides their own.
MAY_INCLUDE = {
    "recovery": set(),
    "storage": {"recovery"},
    "tracker": {"recovery", "storage"},
    "worker": {"recovery", "storage"},
    "launcher": {"recovery", "storage", "worker"},
    "rabit": set(),
    "cuda": {"worker/device/device_table.h"},
    "chaos": {"recovery", "storage", "tracker", "worker", "launcher"},
    "cli": {"recovery", "storage", "tracker", "worker", "launcher", "chaos"},
    "include": set(),
    "examples": set(),
    "python": set(),
    # Collectives are measured through the public headers; an inner part that is measured by itself, through its own.
    "bench": {"recovery", "storage", "tracker", "worker"},
    "tests": {"recovery", "storage", "tracker", "worker", "launcher", "rabit", "cuda", "chaos", "cli", "bench", "examples"},
}
# The rooms of a folder, from the ground up: the sources of a room include those of rooms before it, and their own.
ROOMS = {
    "recovery": [["base"], ["wire"], ["decide"], ["tracker", "worker"]],
    "worker": [["system"], ["kernels"], ["schedule"], ["settings"], ["launch"], ["transport"], ["segments"], ["replay"],
               ["rounds"], ["life"], ["device"], ["disk"], ["session"], ["api"]],
}
FOLDERS = set(MAY_INCLUDE)
# Public headers, with the one folder of ours that they may include.
PUBLIC_HEADERS = {
    pathlib.PurePosixPath("include/warren"): "warren",
    pathlib.PurePosixPath("rabit/include"): "rabit",
}
PUBLIC_SYSTEM = re.compile(r"[a-z_]+|stddef\.h|stdint\.h|stdbool\.h|stdio\.h|inttypes\.h|strings\.h|time\.h")
# rabit's streams are dmlc-core's, where a program has that.
PUBLIC_EXCEPTIONS = {"rabit/include/rabit/serializable.h": {"dmlc/io.h"}}

# recovery/ may include these of the standard library: none does I/O, reads a clock, starts a thread or draws a number.
PURE = {
    "algorithm", "any", "array", "bit", "bitset", "cassert", "cctype", "charconv", "cinttypes", "climits", "compare",
    "concepts", "cstddef", "cstdint", "cstdlib", "cstring", "deque", "functional", "initializer_list", "iterator",
    "limits", "list", "map", "memory", "numeric", "optional", "set", "source_location", "span", "string",
    "string_view", "tuple", "type_traits", "utility", "variant", "vector",
}
# Not unordered containers: what they iterate over comes in an order that a seed does not repeat.
IMPURE_CALLS = re.compile(
    r"\b(?:std::(?:rand|time|clock|getenv|system|thread|mutex|cout|cerr|ofstream|ifstream|random_device)|"
    r"(?<![\w:.>])(?:getenv|rand|srand|fopen|printf|clock_gettime|gettimeofday|usleep|sleep|nanosleep))\s*[({;<]")
PURE_EXCEPTIONS = {
    # A broken invariant ends the process, and says why on standard error.
    "recovery/base/check.h": {"cstdio"},
}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def _includes(text: str):
    for number, line in enumerate(text.splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            yield number, match.group(1) == "<", match.group(2)


def _allowed(folder: str, target: str) -> bool:
    top = target.split("/")[0]
    return top == folder or top in MAY_INCLUDE[folder] or target in MAY_INCLUDE[folder]


def _room_problem(name: pathlib.PurePath, target: str) -> str | None:
    """What is wrong with this include from one room of a folder into another; None if nothing is."""
    own, other = name.parts, target.split("/")
    if own[0] not in ROOMS or other[0] != own[0] or (own[1] == other[1] and len(own) > 2):
        return None
    floors = {room: floor for floor, rooms in enumerate(ROOMS[own[0]]) for room in rooms}
    for path in (own, other):
        if len(path) < 3 or path[1] not in floors:
            return f"'{'/'.join(path)}' is in no room of {own[0]}/ that scripts/checks/includes.py knows"
    if floors[other[1]] >= floors[own[1]]:
        return (f"{own[0]}/{own[1]}/ may not include {own[0]}/{other[1]}/ ('{target}'); from the ground up the rooms are "
                f"{', '.join(' and '.join(rooms) for rooms in ROOMS[own[0]])}")
    return None


def _check_file(name: pathlib.Path, text: str) -> list[str]:
    problems = []
    path = name.as_posix()
    folder = name.parts[0]
    public = next((own for header, own in PUBLIC_HEADERS.items() if name.is_relative_to(header)), None)
    for number, system, target in _includes(text):
        where = f"{path}:{number}"
        top = target.split("/")[0]
        if public:
            if (top != public and not (system and PUBLIC_SYSTEM.fullmatch(target)) and
                    target not in PUBLIC_EXCEPTIONS.get(path, set())):
                problems.append(f"{where}: a public header includes '{target}'; only the standard library and "
                                f"<{public}/…> may show through")
            continue
        if system:
            if folder == "recovery" and target not in PURE | PURE_EXCEPTIONS.get(path, set()):
                problems.append(f"{where}: recovery/ is free of I/O, clocks, threads and randomness, and <{target}> is "
                                "not on the list in scripts/checks/includes.py")
            continue
        if target.startswith("../") or target.startswith("./"):
            problems.append(f"{where}: include '{target}' by its path from the root")
        elif top == "warren":
            if folder in {"recovery", "storage", "tracker"}:
                problems.append(f"{where}: {folder}/ may not include the worker's public header '{target}'")
            elif folder in {"python", "rabit"} and target != "warren/c_api.h":
                problems.append(f"{where}: {folder}/ lies over warren/c_api.h alone, not '{target}'")
        elif top in FOLDERS and not _allowed(folder, target):
            problems.append(f"{where}: {folder}/ may not include {top}/ ('{target}'); it may include "
                            f"{', '.join(sorted(MAY_INCLUDE[folder])) or 'nothing of ours but itself'}")
        elif problem := _room_problem(name, target):
            problems.append(f"{where}: {problem}")
        elif top not in FOLDERS and folder == "recovery":
            problems.append(f"{where}: recovery/ includes the standard library and protobuf's messages, not '{target}'")
    if folder == "recovery":
        for number, line in enumerate(text.splitlines(), 1):
            code = line.split("//")[0]
            if path not in PURE_EXCEPTIONS and IMPURE_CALLS.search(code):
                problems.append(f"{path}:{number}: recovery/ is free of I/O, clocks, threads and randomness: "
                                f"'{code.strip()}'")
            if re.search(r"\bstd::unordered_", code):
                problems.append(f"{path}:{number}: recovery/ iterates in an order that a seed repeats; use std::map or "
                                "std::set")
    return problems


def check(root: pathlib.Path) -> list[str]:
    problems = []
    for name in tree.files(root, ".h", ".cc", ".cpp", ".hpp", ".c", ".cu"):
        if name.parts[0] in FOLDERS:
            problems += _check_file(name, (root / name).read_text())
        elif len(name.parts) > 1:
            problems.append(f"{name}: the folder {name.parts[0]}/ is in no table; add it to scripts/checks/includes.py "
                            "with what it may include")
    return problems
