#!/usr/bin/env python3
"""Kills one of two ranks of a trainer without Warren, and says how long the other one continues, and how it ends.

    build/venv-torch/bin/python bench/without_warren.py ddp lightning accelerate
    build/venv/bin/python bench/without_warren.py lightgbm xgboost
    build/venv-dask-ray/bin/python bench/without_warren.py dask-task dask-lightgbm ray-task ray-actor [--limit=N]

Prints a row for each client: the seconds from `kill -9` of rank 1 to the end of the others, and their last line. After
`--limit` seconds (120) the row says that they hang. Nothing of Warren's is imported.
"""

import argparse
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

STEP_S = 0.02  # a step computes so long


# ---- What a rank does ----


def tell(folder, rank):
    """This rank trains: it may be killed."""
    pathlib.Path(folder, f"rank{rank}.new").write_text(str(os.getpid()))
    pathlib.Path(folder, f"rank{rank}.new").rename(pathlib.Path(folder, f"rank{rank}"))


def ddp(folder):
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(128, 128))
    for step in range(10**6):
        model(torch.randn(16, 128)).square().mean().backward()
        time.sleep(STEP_S)
        if step == 20:
            tell(folder, dist.get_rank())


def lightning(folder):
    import torch
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.strategies import DDPStrategy

    class Model(LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(128, 128)

        def training_step(self, batch, step):
            time.sleep(STEP_S)
            if step == 20:
                tell(folder, self.global_rank)
            return self.layer(batch[0]).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    data = torch.utils.data.TensorDataset(torch.randn(16 * 10000, 128))
    trainer = Trainer(accelerator="cpu", devices=2, strategy=DDPStrategy(process_group_backend="gloo"), logger=False,
                      enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Model(), torch.utils.data.DataLoader(data, batch_size=16))


def accelerate(folder):
    import torch
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(128, 128)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-3))
    for step in range(10**6):
        optimizer.zero_grad()
        accelerator.backward(model(torch.randn(16, 128)).square().mean())
        optimizer.step()
        time.sleep(STEP_S)
        if step == 20:
            tell(folder, accelerator.process_index)


def lightgbm(folder, rank, ports):
    import lightgbm
    import numpy

    draws = numpy.random.default_rng(int(rank))
    x = draws.random((20000, 20))

    def after_round(environment):
        time.sleep(STEP_S)
        if environment.iteration == 10:
            tell(folder, rank)

    params = {"objective": "binary", "tree_learner": "data", "num_threads": 1, "num_machines": 2, "verbosity": 1,
              "machines": ",".join(f"127.0.0.1:{port}" for port in ports.split(",")),
              "local_listen_port": int(ports.split(",")[int(rank)])}
    lightgbm.train(params, lightgbm.Dataset(x, x[:, 0] > 0.5), 10**6, callbacks=[after_round])


def xgboost(folder, rank, port):
    import numpy
    import xgboost
    from xgboost import collective
    from xgboost.tracker import RabitTracker

    tracker = None
    if rank == "0":
        tracker = RabitTracker(host_ip="127.0.0.1", n_workers=2, sortby="task", port=int(port))
        tracker.start()
    draws = numpy.random.default_rng(int(rank))
    x = draws.random((20000, 20))

    class AfterRound(xgboost.callback.TrainingCallback):
        def after_iteration(self, model, epoch, log):
            time.sleep(STEP_S)
            if epoch == 10:
                tell(folder, rank)

    with collective.CommunicatorContext(dmlc_tracker_uri="127.0.0.1", dmlc_tracker_port=int(port), dmlc_task_id=rank,
                                        dmlc_retry=20):
        xgboost.train({"objective": "binary:logistic", "nthread": 1}, xgboost.DMatrix(x, x[:, 0] > 0.5), 10**6,
                      callbacks=[AfterRound()])


def task(folder, begun=None):
    """Of Dask or Ray: as long as 200 steps, and never longer."""
    life = len(list(pathlib.Path(folder).glob("life*")))
    pathlib.Path(folder, f"life{life}").write_text(str(os.getpid()))
    tell(folder, 1)
    for _ in range(200):
        time.sleep(STEP_S)
    return life + 1


class Actor:
    def train(self, folder):
        return task(folder)


def dask_cluster():
    import dask.distributed

    cluster = dask.distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0")
    return dask.distributed.Client(cluster)


def dask_task(folder):
    lives = dask_cluster().submit(task, folder, pure=False).result()
    print(f"the task has a result, after it was begun {lives} times", file=sys.stderr)


def dask_lightgbm(folder):
    import dask.array
    import lightgbm

    client = dask_cluster()
    x = dask.array.random.random((200000, 20), chunks=(100000, 20))
    model = lightgbm.DaskLGBMClassifier(client=client, n_estimators=100000, num_threads=1, verbosity=-1)
    workers = [nanny.pid for nanny in client.cluster.workers.values()]

    def tell_soon():
        time.sleep(15)
        pathlib.Path(folder, "rank1").write_text(str(workers[1]))
        pathlib.Path(folder, "rank0").write_text(str(os.getpid()))

    threading.Thread(target=tell_soon, daemon=True).start()
    model.fit(x, (x[:, 0] > 0.5).astype(int))


def ray_task(folder):
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    lives = ray.get(ray.remote(task).remote(folder))
    print(f"the task has a result, after it was begun {lives} times", file=sys.stderr)


def ray_actor(folder):
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    ray.get(ray.remote(Actor).remote().train.remote(folder))


# ---- What is measured ----


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def start(client, folder):
    """The processes whose end counts: the launcher, or rank 0 and then rank 1."""
    own = [sys.executable, __file__, "--worker", client, "--folder", folder]
    if client in ("ddp", "lightning", "accelerate"):
        port = free_ports(1)[0]
        launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={port}"]
        commands = [[*launcher, *own[1:]]]
    elif client == "lightgbm":
        ports = ",".join(map(str, free_ports(2)))
        commands = [[*own, str(rank), ports] for rank in range(2)]
    elif client == "xgboost":
        port = free_ports(1)[0]
        commands = [[*own, str(rank), str(port)] for rank in range(2)]
    else:
        commands = [own]
    options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True, "start_new_session": True,
               "env": {**os.environ, "OMP_NUM_THREADS": "1"}}
    return [subprocess.Popen(command, **options) for command in commands]


def measure(client, limit):
    with tempfile.TemporaryDirectory() as folder:
        processes = start(client, folder)
        said = []
        reader = threading.Thread(target=lambda: said.extend(processes[0].stderr), daemon=True)
        reader.start()
        victim = pathlib.Path(folder, "rank1")
        other = pathlib.Path(folder, "rank0")
        until = time.monotonic() + 120
        is_one = client in ("dask-task", "ray-task", "ray-actor")
        while not (victim.exists() and (is_one or other.exists())):
            if time.monotonic() > until or processes[0].poll() is not None:
                print("".join(said), file=sys.stderr)
                raise SystemExit(f"{client} has not begun to train")
            time.sleep(0.01)
        time.sleep(0.5)
        os.kill(int(victim.read_text()), signal.SIGKILL)
        killed = time.monotonic()
        try:
            code = processes[0].wait(limit)
            how = f"exit code {code}" if code >= 0 else f"signal {-code}"
        except subprocess.TimeoutExpired:
            how = "hangs"
        seconds = time.monotonic() - killed
        for process in processes:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
        reader.join(5)
        lines = [line.strip() for line in said if line.strip()]
        errors = [line for line in lines if any(word in line for word in ("Error", "rror:", "closed", "has a result"))]
        last = (errors or lines or ["nothing"])[-1].replace("|", "/")
        print(f"| {client} | {seconds:.1f} | {how} | {last[:200]} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("clients", nargs="*", help=", ".join(CLIENTS))
    parser.add_argument("--limit", type=float, default=120, help="seconds after which the others are said to hang")
    parser.add_argument("--worker", help="what a rank does")
    parser.add_argument("--folder")
    options = parser.parse_args()
    if options.worker:
        return CLIENTS[options.worker](options.folder, *options.clients)
    for client in options.clients:
        measure(client, options.limit)


CLIENTS = {
    "ddp": ddp, "lightning": lightning, "accelerate": accelerate, "lightgbm": lightgbm, "xgboost": xgboost,
    "dask-task": dask_task, "dask-lightgbm": dask_lightgbm, "ray-task": ray_task, "ray-actor": ray_actor,
}  # fmt: skip

if __name__ == "__main__":
    main()
