"""What Python costs: small calls beside C++, importing, wheels, and from a kill to the next step.

    build/venv/bin/python bench/python.py

Takes build/release, the package in it, and the wheels in dist/ if there are any. Prints the tables of
docs/python.md#figures.
"""

import glob
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BIN = ROOT / "build/release/bin"
TURNS, CALLS, BATCHES = 5, 500, 200
KILLS = 15
ENVIRONMENT = dict(os.environ, PYTHONPATH=str(ROOT / "build/release/python"), WARREN_LOG_LEVEL="error")

SMALL_CALLS = f"""
import time, numpy, warren
with warren.init() as comm:
    comm.load_checkpoint()
    x = numpy.zeros(1, "float32")
    least = float("inf")
    for batch in range({BATCHES}):
        begin = time.perf_counter_ns()
        for i in range({CALLS}):
            comm.allreduce(x, out=x)
        least = min(least, (time.perf_counter_ns() - begin) / {CALLS})
        comm.checkpoint(b"")
    if comm.rank == 0:
        print(f"least {{least:.0f}}")
"""

# Rank 0 tells when each step has ended.
STEPS = """
import os, time, numpy, warren
print("process", os.getpid())
with warren.init() as comm:
    state = {"x": numpy.ones(1000)}
    for step in comm.epochs(10**6, state, every=10):
        state["x"] += comm.allreduce(state["x"], "average")
        time.sleep(0.001)  # computes
        if comm.rank == 0:
            print("step", time.monotonic_ns(), flush=True)
"""


def run(ranks, *program, flags=()):
    command = [BIN / "warren", "run", "-n", ranks, "--restarts=1000000", *flags, "--", *program]
    return subprocess.Popen(list(map(str, command)), env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                            text=True)


def least_ns(ranks, *program):
    with run(ranks, *program, flags=["--bind_to_core"]) as job:
        output = job.stdout.read()
    return float(output.split("least ")[1].split()[0])


def small_calls(ranks):
    cpp, python = [], []
    for _ in range(TURNS):  # what else runs on the machine disturbs both alike
        cpp.append(least_ns(ranks, BIN / "small_calls", CALLS, BATCHES))
        python.append(least_ns(ranks, sys.executable, "-c", SMALL_CALLS))
    return min(cpp), min(python)


def start_ms(code):
    def once():
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, check=True)
        return (time.perf_counter() - begin) * 1000

    return min(once() for _ in range(20))


def from_kill_to_step_ms(spares):
    """Of KILLS kills of a rank other than 0: from the signal until rank 0 has finished a step that had not ended."""
    times = []
    with run(2, sys.executable, "-c", STEPS, flags=[f"--spares={spares}"]) as job:
        processes, killed_ns, left = [], None, 0
        for line in job.stdout:
            worker, word, number = line.split()
            if word == "process" and worker != "[0]":
                processes.append(int(number))
            if word != "step":
                continue
            if killed_ns is not None and int(number) > killed_ns:
                # The first step after the kill may have been about to end: the next one needs the other rank.
                times.append((int(number) - killed_ns) / 1e6)
                killed_ns, left = (None, 100) if times[-1] > 5 else (killed_ns, 0)
                if killed_ns is not None:
                    times.pop()
                if len(times) == KILLS:
                    break
            elif killed_ns is None:
                left -= 1
                if left < 0 and len(processes) > spares:
                    killed_ns = time.monotonic_ns()
                    os.kill(processes.pop(0), signal.SIGKILL)
        job.send_signal(signal.SIGTERM)
        job.stdout.read()
    return statistics.median(times), max(times)


def main():
    print("| figure | C++ | Python |\n| --- | --- | --- |")
    for ranks in (1, 2):
        cpp, python = small_calls(ranks)
        print(f"| an allreduce of one float, {ranks} rank{'s' if ranks > 1 else ''}: µs | {cpp / 1000:.2f} | "
              f"{python / 1000:.2f} (+{(python - cpp) / 1000:.2f}, ×{python / cpp:.2f}) |")
    print("\n| figure | |\n| --- | --- |")
    empty = start_ms("pass")
    print(f"| `import warren`, ms | {start_ms('import warren') - empty:.0f} |")
    print(f"| `import numpy`, ms | {start_ms('import numpy') - empty:.0f} |")
    for wheel in sorted(glob.glob(str(ROOT / "dist/*.whl"))):
        print(f"| the wheel {os.path.basename(wheel).split('-')[2]}, MB | {os.path.getsize(wheel) / 1e6:.1f} |")
    for spares in (0, 1):
        median, most = from_kill_to_step_ms(spares)
        print(f"| from kill −9 to the next step, {'a spare' if spares else 'no spare'}, 2 ranks: ms, median and most of "
              f"{KILLS} | {median:.0f}, {most:.0f} |")


main()
