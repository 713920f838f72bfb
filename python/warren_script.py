#!python
"""The program `warren`, which lies in the package beside the libraries that it needs."""

import importlib.util
import os
import sys

found = importlib.util.find_spec("warren")  # which is not imported
if found is None or found.origin is None:
    sys.exit("warren: the package warren-allreduce is not installed in this Python, " + sys.executable)
program = os.path.join(os.path.dirname(found.origin), "warren_program")
os.execv(program, [sys.argv[0], *sys.argv[1:]])
