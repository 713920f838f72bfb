"""Figures beside the allreduce itself: an idle worker's memory, the time to the first round, what overlap and fusion
gain, a tracker with 5,000 workers, and the kernels beside the bandwidth of memory."""

import json
import pathlib
import re
import signal
import statistics
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BIN = ROOT / "build/release/bin"
STARTS = 7
LOAD_WORKERS = 5000
LOAD_PROCESSES = 4
LOAD_SECONDS = 20
TRACKER_READY_S = 30
OVERLAP_RUNS = 5
# (what is trained, the ranks, their settings, the example's arguments): large layers; small ones, of which many are put together.
OVERLAPS = [("16 layers of 80 kB, 0.5 ms of computing each", 2, [], []),
            ("16 layers of 1 MB, 0.5 ms of computing each, over TCP", 4, ["--transport=tcp"], ["--elements=250000"]),
            ("128 layers of 2 kB, 0.05 ms of computing each, over TCP", 4, ["--transport=tcp"],
             ["--layers=128", "--elements=500", "--compute_us=50"])]


def first_round(ranks: int) -> dict:
    """From `warren run` being started to the last rank's first finished round, and what each worker then holds."""
    with tempfile.TemporaryDirectory(prefix="warren-bench-") as folder:
        start_us = time.clock_gettime(time.CLOCK_MONOTONIC) * 1e6
        subprocess.run([str(BIN / "warren"), "run", "-n", str(ranks), "--", str(BIN / "first_round"), folder], check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=120)
        reports = [json.loads(path.read_text()) for path in pathlib.Path(folder).glob("*.json")]
    if len(reports) != ranks:
        raise RuntimeError(f"{len(reports)} of {ranks} workers wrote a report")
    return {"ms": (max(report["finished_us"] for report in reports) - start_us) / 1000,
            "rss_kib": statistics.median(report["rss_kib"] for report in reports),
            "before_kib": statistics.median(report["before_kib"] for report in reports)}


def tracker_load() -> dict:
    with tempfile.TemporaryDirectory(prefix="warren-bench-") as folder:
        secret = f"{folder}/secret"
        subprocess.run([str(BIN / "warren"), "keygen", f"--out={secret}"], check=True, stdout=subprocess.DEVNULL)
        with open(f"{folder}/log", "w+") as log:
            tracker = subprocess.Popen(
                [str(BIN / "warren"), "tracker", "--bind=127.0.0.1", "--port=0", "--advertise=127.0.0.1", "--http_port=0",
                 f"--secret_file={secret}", f"--data_dir={folder}/data"], stdout=log, stderr=log)
            try:
                address = None
                deadline = time.monotonic() + TRACKER_READY_S
                while address is None:
                    text = pathlib.Path(log.name).read_text()
                    address = re.search(r"WARREN_TRACKER=([0-9.]+:[0-9]+)", text)
                    if tracker.poll() is not None or time.monotonic() > deadline:
                        raise RuntimeError(f"the tracker does not come up:\n{text}")
                    time.sleep(0.02)
                output = subprocess.run(
                    [str(BIN / "tracker_load"), f"--tracker={address.group(1)}", f"--tracker_pid={tracker.pid}",
                     f"--secret_file={secret}", f"--workers={LOAD_WORKERS}", f"--processes={LOAD_PROCESSES}",
                     f"--seconds={LOAD_SECONDS}"],
                    check=True, capture_output=True, text=True, timeout=600).stdout
            finally:
                tracker.send_signal(signal.SIGTERM)
                try:
                    tracker.wait(20)
                except subprocess.TimeoutExpired:
                    tracker.kill()
                    tracker.wait()
    return json.loads(output)


def overlap_rows(say) -> list[dict]:
    """What examples/overlap.cc says of itself: the same steps one operation after the other, overlapped, and put together too."""
    rows = []
    for what, ranks, settings, arguments in OVERLAPS:
        say(f"overlap and fusion, {what}: {OVERLAP_RUNS} runs")
        gains: dict[str, list[float]] = {"overlap": [], "fusion": []}
        for _ in range(OVERLAP_RUNS):
            command = [str(BIN / "warren"), "run", "-n", str(ranks), *settings, "--", str(BIN / "overlap"), *arguments]
            output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
            last = output.splitlines()[-1]
            run = json.loads(last[last.index("{"):])  # after the rank that says it
            gains["overlap"].append(run["seconds"] / run["seconds_overlapped"])
            gains["fusion"].append(run["seconds_overlapped"] / run["seconds_fused"])
        value = "; ".join(f"{name} {statistics.median(times):.2f} times as fast ({min(times):.2f}–{max(times):.2f})"
                          for name, times in gains.items())
        rows.append({"name": f"training with {what}, {ranks} ranks: what is gained by overlap, and by fusion besides",
                     "value": f"{value}; {OVERLAP_RUNS} runs",
                     "how": " ".join(["warren run", f"-n {ranks}", *settings, "-- overlap", *arguments])})
    return rows


def kernels(say) -> list[dict]:
    """One object a kernel and size, as kernels_bench prints it."""
    subprocess.run([str(ROOT / "dev"), "build", "kernels_bench"], check=True)
    say("kernels")
    output = subprocess.run([str(BIN / "kernels_bench"), "--json"], check=True, capture_output=True, text=True,
                            timeout=600).stdout
    return [json.loads(line) for line in output.splitlines()]


def measure(say) -> list[dict]:
    subprocess.run([str(ROOT / "dev"), "build", "warren_cli", "first_round", "tracker_load", "overlap"], check=True)
    say(f"time to the first round, {STARTS} starts")
    eight = [first_round(8) for _ in range(STARTS)]
    times = sorted(start["ms"] for start in eight)
    rss = statistics.median(start["rss_kib"] for start in eight) / 1024
    before = statistics.median(start["before_kib"] for start in eight) / 1024
    overlaps = overlap_rows(say)
    say(f"a tracker with {LOAD_WORKERS} workers")
    load = tracker_load()
    how = "warren run -n 8 -- first_round DIR"
    load_how = f"tracker_load --workers={LOAD_WORKERS} --processes={LOAD_PROCESSES} --seconds={LOAD_SECONDS}"
    return [
        {"name": "`warren run -n 8`, from its start to the first round finished on all ranks",
         "value": f"{statistics.median(times):.0f} ms ({times[0]:.0f}–{times[-1]:.0f}, {STARTS} starts)", "how": how},
        {"name": "memory (RSS) of a worker of 8 after its first round",
         "value": f"{rss:.1f} MiB, {rss - before:.1f} MiB of it since the program's start", "how": how},
        *overlaps,
        {"name": f"tracker: {load['workers']} workers join at once, with CURVE, until the first and the last have the plan",
         "value": f"{load['first_plan_ms']:.0f} and {load['last_plan_ms']:.0f} ms; {load['plan_mb']:.0f} MB of plans; "
                  f"processor time of the tracker {load['plan_cpu_s']:.2f} s", "how": load_how},
        {"name": "tracker: one of them is replaced, until the last has the new plan (least, median, most)",
         "value": ", ".join(f"{ms:.0f}" for ms in load["reconfigured_ms"]) + " ms; processor time of the tracker "
                  f"{load['reconfigured_cpu_s']:.2f} s each", "how": load_how},
        {"name": f"tracker: {load['heartbeats_per_s']:.0f} heartbeats a second",
         "value": f"{load['heartbeat_cpu_percent']:.1f} % of a core", "how": load_how},
        {"name": "tracker: memory (RSS) empty, with the job, at its peak",
         "value": f"{load['rss_before_mib']:.0f}, {load['rss_mib']:.0f}, {load['peak_mib']:.0f} MiB", "how": load_how},
        {"name": "tracker: finalize of all, until the last worker knows",
         "value": f"{load['finalize_ms']:.0f} ms", "how": load_how},
    ]
