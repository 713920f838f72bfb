"""Trains by one client while workers are killed at random moments, and compares the bytes with an undisturbed run's.

    export PYTHONPATH=build/release/python
    PYTHON tests/python/soak_trainers.py --client=NAME [--ranks=2] [--kills=20] [--how=kill]

Run by hand. PYTHON is build/venv/bin/python, and for Dask and Ray build/venv-dask-ray/bin/python. The clients of
PyTorch need build/venv-torch. `--how`: `kill` is kill -9, `stop` is one SIGSTOP, and `all` is the loss of all
processes at once with a data_dir. The last line of the output is a row of a table: client, ranks, what was done,
kills, seconds, result.
"""

import argparse
import functools
import os
import pathlib
import signal
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
os.environ.setdefault("TESTED_WARREN", str(ROOT / "build/release/bin/warren"))
os.environ["PATH"] = f"{pathlib.Path(os.environ['TESTED_WARREN']).parent}:{os.environ['PATH']}"

from conftest import HERE, Jobs
from killing import example, run_and_kill, run_until_epoch

# The program, its option for the number of epochs, and whether `python -m warren.torch` runs it.
TORCH = {
    "ddp": (example("torch_ddp"), False),
    "ways": (HERE / "workers/torch_training.py", False),  # DDP in five ways, FSDP2 and Horovod's steps, side by side
    "fsdp2": (example("torch_fsdp2"), False),
    "horovod": (example("torch_horovod_steps"), False),
    "hook": (HERE / "workers/torch_hook.py", False),
    "lightning": (example("torch_lightning"), True),
    "accelerate": (example("torch_accelerate"), True),
}
BOOSTING = {"lightgbm": example("boosting"), "xgboost": example("xgboosting")}
CLUSTERS = ("dask", "ray")
STOPPED_MS = 1000  # the round timeout where workers are stopped or all are lost


def program_of(client, epochs):
    """Jobs, and the program with its arguments."""
    if client in BOOSTING:
        timeout = ["--timeout_s=45"] if client == "xgboost" else []
        return Jobs(), [BOOSTING[client], f"--segments={epochs}", *timeout]
    from torch_venv import TorchJobs

    program, as_it_is = TORCH[client]
    return TorchJobs(as_it_is), [program, f"--epochs={epochs}"]


def under_the_launcher(options, folder):
    """Kills that were made, and whether the bytes are those of an undisturbed run."""
    epochs = options.epochs or max(options.kills * 3 // 2, 12)
    jobs, (program, *arguments) = program_of(options.client, epochs)
    expected, path = folder / "expected", folder / "weights"
    jobs.run(options.ranks, program, *arguments, f"--weights_file={expected}")
    command = (options.ranks, program, *arguments, f"--weights_file={path}")
    if options.how == "all":
        flags = [f"--data_dir={folder / 'data'}", f"--round_timeout_ms={STOPPED_MS}"]
        run_until_epoch(epochs // 2, *command, flags=flags, jobs=jobs)
        assert not path.exists()
        jobs.run(*command, flags=flags)
        return options.ranks, path.read_bytes() == expected.read_bytes()
    early = first = 0 if options.how == "stop" else min(options.kills // 5, 2)
    killed, output = run_and_kill(
        *command, jobs=jobs, early=early, first=first, later=options.kills - early - first, last_epoch=epochs,
        how=signal.SIGSTOP if options.how == "stop" else signal.SIGKILL,
        flags=[f"--round_timeout_ms={STOPPED_MS}"] if options.how == "stop" else [],
    )  # fmt: skip
    equal = path.read_bytes() == expected.read_bytes()
    if not equal or "ranks disagree" in output or "Traceback" in output:
        print(output)
    return sum(killed.values()), equal


def under_a_cluster(options, folder):
    """Kills that were made, and whether the bytes are those of an undisturbed run."""
    import cluster_ranks
    from digits_ranks import shares


    def ready():
        return True

    if options.client == "dask":
        import dask.config
        import dask.distributed
        from distributed.core import Status

        import warren.dask

        dask.config.set({"distributed.deploy.lost-worker-timeout": "1h"})
        cluster = dask.distributed.LocalCluster(n_workers=options.ranks, threads_per_worker=2, dashboard_address=":0")
        client = dask.distributed.Client(cluster)
        run = functools.partial(warren.dask.run, client)

        def ready():
            return all(nanny.process and nanny.process.status == Status.running for nanny in cluster.workers.values())

    else:
        os.environ["PYTHONPATH"] = f"{HERE}:{HERE.parents[1] / 'examples/python'}:{os.environ['PYTHONPATH']}"
        import ray

        import warren.ray

        ray.init(num_cpus=options.ranks, include_dashboard=False, _node_ip_address="127.0.0.1", logging_level="error")
        run = warren.ray.run
    settings = {} if options.how == "kill" else {"round_timeout_ms": STOPPED_MS}
    if options.how == "all":
        settings["data_dir"] = str(folder / "data")
    model = "boosting" if options.how == "kill" and options.model == "boosting" else "softmax"
    places = [folder / "calm", folder / "killed"]
    for place in places:
        place.mkdir()
    call = functools.partial(run, cluster_ranks.digits, options.ranks, each=shares(options.ranks), restarts=100)
    (places[0] / "go").touch()
    expected = call(args=[model, places[0]])
    running = cluster_ranks.Running(call, args=[model, places[1]], **settings)
    if options.how == "kill":
        running.kill(places[1], options.ranks, options.kills, ready)
        return options.kills, running.end() == expected
    cluster_ranks.wait_for(lambda: (cluster_ranks.read(places[1], "epoch") or 0) >= 3)
    victims = [cluster_ranks.read(places[1], f"rank{rank}") for rank in range(options.ranks)]
    for process in victims if options.how == "all" else victims[-1:]:
        os.kill(process, signal.SIGKILL if options.how == "all" else signal.SIGSTOP)
    cluster_ranks.wait_for(lambda: cluster_ranks.read(places[1], f"rank{options.ranks - 1}") != victims[-1])
    (places[1] / "go").touch()
    return len(victims) if options.how == "all" else 1, running.end() == expected


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--client", required=True, choices=[*TORCH, *BOOSTING, *CLUSTERS])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--how", default="kill", choices=["kill", "stop", "all"])
    parser.add_argument("--epochs", type=int, help="of the training; by default one and a half for each kill")
    parser.add_argument("--model", default="softmax", choices=["softmax", "boosting"], help="under Dask and Ray")
    options = parser.parse_args()
    if options.how == "stop":
        options.kills = 1
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        kind = under_a_cluster if options.client in CLUSTERS else under_the_launcher
        kills, equal = kind(options, pathlib.Path(name))
    seconds = time.monotonic() - begin
    print(f"| {options.client} | {options.ranks} | {options.how} | {kills} | {seconds:.0f} | "
          f"{'equal' if equal else 'DIFFERENT'} |", flush=True)
    sys.exit(not equal)


if __name__ == "__main__":
    main()
