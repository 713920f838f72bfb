"""Each source compiles by itself. Builds read several sources as one, which hides an include that a source forgets."""

import concurrent.futures
import os
import pathlib
import subprocess

from . import sources

MAX_FILES = 24  # of 1 to 3 s each; check_all looks at every one


def _problems(root: pathlib.Path, words: list[str], name: str) -> list[str]:
    """What the compiler says of the source, which it reads and does not translate."""
    command = [word for word in words if word != "-c"]
    if "-o" in command:
        at = command.index("-o")
        del command[at:at + 2]
    result = subprocess.run([*command, "-fsyntax-only"], cwd=root / sources.DATABASE.parent, capture_output=True,
                            text=True)
    if result.returncode == 0:
        return []
    errors = [line for line in result.stderr.splitlines() if " error: " in line]
    return [f"{name} does not compile by itself: {(errors or [result.stderr.strip()[-500:]])[0]}"]


def _check(root: pathlib.Path, commands: dict[str, list[str]], names: list[str]) -> list[str]:
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        found = pool.map(lambda name: _problems(root, commands[name], name), names)
        return [problem for problems in found for problem in problems]


def check(root: pathlib.Path) -> list[str]:
    """Looks at the sources that this branch changed, those with the largest changes first."""
    commands = sources.commands(root)
    if commands is None:
        return [sources.missing_database()]
    names = [name for name in sources.changed(root, sources.ALL) if name in commands]
    if len(names) > MAX_FILES:
        print(f"standalone: {len(names)} changed sources; looking at the {MAX_FILES} with the largest changes")
    return _check(root, commands, names[:MAX_FILES])


def check_all(root: pathlib.Path) -> list[str]:
    """Looks at every source of the product, but for those that the release build compiles by themselves anyway."""
    commands = sources.commands(root)
    if commands is None:
        return [sources.missing_database()]
    wanted = {name for name in commands if name.split("/")[0] in sources.PRODUCT} - sources.compiled_alone(root)
    return _check(root, commands, sorted(wanted))
