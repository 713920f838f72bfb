"""PyTorch's DDP over Warren: a step beside Gloo's, and from a kill to the next step.

    build/venv-torch/bin/python bench/torch_ddp.py [--ranks=N] [--steps=N] [--kills=N]

Takes build/release and the package in it. `scripts/python_env.sh build/venv-torch "" python/requirements-torch.lock`
makes the Python. Prints the tables of docs/pytorch.md#figures.
"""

import argparse
import contextlib
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
WIDTHS = (128, 1024)
LAYERS = 8
BATCH = 16  # rows of a rank
BLOCK = 10  # steps of one backend before it is the other one's turn
ENVIRONMENT = {"PYTHONPATH": str(ROOT / "build/release/python"), "WARREN_LOG_LEVEL": "error", "OMP_NUM_THREADS": "1",
               **os.environ}


def compare(steps):
    """In a worker: the medians of steps over Gloo and over Warren, by turns."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import warren.torch

    comm = warren.torch.init()
    path = comm.broadcast_object(f"/tmp/warren-bench-{os.getpid()}")
    dist.init_process_group("gloo", store=dist.FileStore(path, comm.size), rank=comm.rank, world_size=comm.size)
    groups = {"gloo": dist.group.WORLD, "warren": dist.new_group(backend="warren")}
    ways = {}
    for width in WIDTHS:
        for name, group in groups.items():
            torch.manual_seed(1)
            layers = [layer for _ in range(LAYERS) for layer in (torch.nn.Linear(width, width), torch.nn.ReLU())]
            model = DistributedDataParallel(torch.nn.Sequential(*layers), process_group=group, gradient_as_bucket_view=True)
            ways[width, name] = model, torch.optim.SGD(model.parameters(), lr=1e-3), group
        ways[width, "alone"] = ways[width, "warren"]
    comm.load_checkpoint()
    times = {way: [] for way in ways}
    for turn in range(1 + -(-steps // BLOCK)):  # the first one warms up
        for (width, name), (model, optimizer, group) in ways.items():
            x = torch.randn(BATCH, width)
            for _ in range(BLOCK):
                dist.barrier(group)
                begin = time.perf_counter()
                optimizer.zero_grad()
                with model.no_sync() if name == "alone" else contextlib.nullcontext():
                    model(x).square().mean().backward()
                optimizer.step()
                if turn > 0:
                    times[width, name].append(time.perf_counter() - begin)
            comm.checkpoint(None)  # results up to here need not be kept
    slowest = {way: statistics.median(map(max, zip(*all))) for way, all in
               ((way, comm.allgather_object(mine)) for way, mine in times.items())}
    if comm.rank == 0:
        for width in WIDTHS:
            alone, gloo, ours = (slowest[width, name] * 1000 for name in ("alone", "gloo", "warren"))
            print(f"RESULT | {width} | {alone:.1f} | {gloo:.1f} | {ours:.1f} | {ours / gloo:.2f} |", flush=True)
        os.unlink(path)
    comm.finalize()
    comm.destroy()


def train():
    """In a worker: steps without end; rank 0 tells when each has ended."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import warren.torch

    print("process", os.getpid(), flush=True)
    dist.init_process_group("warren")
    model = DistributedDataParallel(torch.nn.Linear(128, 128))
    optimizer = torch.optim.Adam(model.parameters())
    training = warren.torch.Training(model=model, optimizer=optimizer)
    for _ in training.epochs(10**6):
        for _ in range(10):
            optimizer.zero_grad()
            model(torch.randn(BATCH, 128)).square().mean().backward()
            optimizer.step()
            time.sleep(0.002)  # computes
            if dist.get_rank() == 0:
                print("step", time.monotonic_ns(), flush=True)


def run(ranks, *arguments, flags=()):
    command = [ROOT / "build/release/bin/warren", "run", "-n", ranks, "--restarts=1000000", *flags, "--", sys.executable,
               __file__, *arguments]
    return subprocess.Popen(list(map(str, command)), env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                            text=True)


def recoveries_ms(kills, *flags):
    """From kill −9 of a rank to the end of the next step, in ms, one for each kill."""
    recoveries = []
    with run(2, "--train", flags=flags) as job:
        processes = []  # in the order in which they began; the last one to begin waits, if there are spares
        steps, killed_at = 0, None
        for line in job.stdout:
            if "] process " in line:
                processes.append(int(line.split()[-1]))
            if "] step " not in line:
                continue
            steps += 1
            if killed_at is not None and int(line.split()[-1]) > killed_at:
                recoveries.append((int(line.split()[-1]) - killed_at) / 1e6)
                killed_at, steps = None, 0
            if len(recoveries) == kills:
                break
            if killed_at is None and steps == 700:  # the spare is there again
                victim = processes[0]
                processes.remove(victim)
                killed_at = time.monotonic_ns()
                os.kill(victim, signal.SIGKILL)
        job.send_signal(signal.SIGINT)
    return recoveries


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--compare", action="store_true", help="what a worker does")
    parser.add_argument("--train", action="store_true", help="what a worker does")
    options = parser.parse_args()
    if options.compare:
        compare(options.steps)
    elif options.train:
        train()
    else:
        print("| width | without communication, ms | Gloo, ms | Warren, ms | ratio |\n| --- | --- | --- | --- | --- |")
        with run(options.ranks, "--compare", f"--steps={options.steps}") as job:
            for line in job.stdout:
                if "RESULT " in line:
                    print(line.split("RESULT ")[1], end="", flush=True)
        for words, flags in (("no spare", ()), ("a spare", ("--spares=1",))):
            if options.kills > 0:
                recoveries = recoveries_ms(options.kills, *flags)
                print(f"from a kill to the next step, {words}: median {statistics.median(recoveries):.0f} ms, most "
                      f"{max(recoveries):.0f} ms, of {len(recoveries)}", flush=True)


main()
