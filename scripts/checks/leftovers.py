"""Notes to oneself that a commit must not carry, and tests that switch themselves off."""

import pathlib
import re

from . import tree

WORDS = "|".join(["TO" + "DO", "FIX" + "ME", "X" * 3 + r"\b", "HA" + "CK" + r"\b"])
NOTE = re.compile(rf"\b(?:{WORDS})")
SKIP = re.compile(r"\bGTEST_" + r"SKIP\b|\bDISABLED" + r"_\w|@unittest\.skip")
# Tests that need hardware, root, or namespaces skip themselves where they have none; scripts/run_tests.py counts those cases.
MAY_SKIP = {"tests/cli/cli_test.cc", "tests/cuda/gpu_test.cc", "tests/e2e/process_test.cc", "tests/e2e/rewire_test.cc",
            "tests/e2e/straggler_test.cc", "tests/e2e/weather_test.cc", "tests/storage/secret_test.cc",
            "tests/worker/transport/connector_test.cc", "tests/worker/segments/exchange_test.cc"}
CONFLICT = re.compile(r"^(?:<{7}|>{7})( |$)")
SUFFIXES = {".h", ".cc", ".cpp", ".c", ".cu", ".py", ".sh", ".cmake", ".txt", ".md", ".json", ".proto", ".yml", ".yaml", ""}


def check(root: pathlib.Path) -> list[str]:
    problems = []
    for name in tree.files(root):
        if name.suffix not in SUFFIXES or "data" in name.parts:
            continue
        try:
            text = (root / name).read_text()
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            # Documentation may speak of these words; code may not contain them.
            if name.suffix != ".md" and NOTE.search(line):
                problems.append(f"{name}:{number}: do it now or open an issue: {line.strip()}")
            if name.parts[0] == "tests" and name.as_posix() not in MAY_SKIP and SKIP.search(line):
                problems.append(f"{name}:{number}: a test that does not run is not a test: {line.strip()}")
            if CONFLICT.match(line):
                problems.append(f"{name}:{number}: a merge conflict's marker")
    return problems
