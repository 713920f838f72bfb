#!/usr/bin/env python3
"""check.py [--root DIR] [--list] [NAME…]: the checks of the source that no compiler makes; all of them, or those named."""

import argparse
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from checks import format_check, includes, leftovers, links, standalone, tidy, words  # noqa: E402

CHECKS = {
    "format": format_check.check,
    "includes": includes.check,
    "links": links.check,
    "leftovers": leftovers.check,
    "words": words.check,
    "standalone": standalone.check,
    "tidy": tidy.check,
}
# Checks that run only when they are named, or that say more then.
BY_NAME = {"standalone_all": standalone.check_all, "words": words.show}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", default=pathlib.Path(__file__).resolve().parent.parent, type=pathlib.Path)
    parser.add_argument("--list", action="store_true", help="print the names of the checks")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(CHECKS | BY_NAME))
    options = parser.parse_args()
    if options.list:
        print("\n".join(CHECKS))
        return 0
    checks = CHECKS | BY_NAME
    for name in options.names:
        if name not in checks:
            parser.error(f"unknown check '{name}'; there are {', '.join(checks)}")
    failed = []
    for name in options.names or CHECKS:
        problems = checks[name](options.root.resolve())
        for problem in problems:
            print(f"{name}: {problem}", file=sys.stderr)
        print(f"check {name}: {'ok' if not problems else f'{len(problems)} problem(s)'}", flush=True)
        if problems:
            failed.append(name)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
