#!/usr/bin/env python3
"""rabit_run.py TRACKER.py RANKS COMMAND…: starts rabit's own tracker, and the command once for each rank."""

import importlib.util
import os
import subprocess
import sys

path, ranks, command = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
spec = importlib.util.spec_from_file_location("tracker", path)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
tracker = module.RabitTracker(hostIP="127.0.0.1", nslave=ranks)
tracker.start(ranks)  # in a thread that ends with this process
where = {name: str(value) for name, value in tracker.slave_envs().items()}
workers = [subprocess.Popen(command, env=os.environ | where | {"DMLC_TASK_ID": str(rank)}) for rank in range(ranks)]
sys.exit(max(abs(worker.wait()) for worker in workers))
