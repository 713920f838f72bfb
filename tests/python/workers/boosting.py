"""What LightGBM grows over its own sockets it grows over Warren; and arguments that cannot be right are refused."""

import os
import pathlib
import socket

import lightgbm
import numpy as np

import warren
import warren.lightgbm

draws = np.random.default_rng(1)
x = draws.random((600, 5))
y = x[:, 0] + x[:, 1] * x[:, 2] + 0.1 * draws.random(600)
params = {"objective": "regression", "num_leaves": 7, "num_threads": 1, "verbosity": -1, "pre_partition": True,
          "deterministic": True, "force_col_wise": True, "tree_learner": "data"}


def trees(booster):
    """The model without its parameters, which name the network."""
    return booster.model_to_string().split("end of trees")[0]


def refused(error, words, *arguments, **options):
    try:
        warren.lightgbm.train(comm, *arguments, **options)
    except error as found:
        assert words in str(found), found
    else:
        raise AssertionError(words)


with warren.init() as comm:
    mine = slice(comm.rank, None, comm.size)

    def make_dataset():
        return lightgbm.Dataset(x[mine], y[mine])

    refused(ValueError, "checkpoint_every is 0", params, make_dataset, checkpoint_every=0)
    refused(ValueError, "num_machines in params", {"num_machines": 2}, make_dataset)
    refused(ValueError, "num_trees in params", {"num_trees": 2}, make_dataset)
    refused(ValueError, "tree_learner is 'feature'", {"tree": "feature"}, make_dataset)
    refused(ValueError, "boosting is 'rf'", {"boost": "rf"}, make_dataset)
    refused(ValueError, "linear_tree is set", {"linear_trees": True}, make_dataset)
    refused(ValueError, "tree_learner is 'serial'", {"tree_learner": "serial"}, make_dataset)
    grown = warren.lightgbm.train(comm, params, make_dataset, 20, checkpoint_every=20)

    # Every rank takes a port, and all of them tell each other.
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        ports = comm.allgather_object(taken.getsockname()[1])
        comm.barrier()
    own = {"machines": ",".join(f"127.0.0.1:{port}" for port in ports), "local_listen_port": ports[comm.rank],
           "num_machines": comm.size}
    reference = lightgbm.train(params | own, lightgbm.Dataset(x[mine], y[mine], params=params | own), 20)
    assert trees(grown) == trees(reference)
