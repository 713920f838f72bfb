"""Trees of one leaf, of a class without rows, count the rows of all ranks, and ranks have equal models."""

import lightgbm
import numpy as np

import warren
import warren.lightgbm

# Of two ranks one has 10 rows and the other 9: LightGBM's counts of them have different lengths.
x = np.random.default_rng(1).random((19, 2))
y = (x[:, 0] > 0.5).astype(float)
params = {"objective": "multiclass", "num_class": 3, "min_data_in_leaf": 2, "num_threads": 1}

with warren.init() as comm:
    mine = slice(comm.rank, None, comm.size)
    booster = warren.lightgbm.train(
        comm, params, lambda: lightgbm.Dataset(x[mine], y[mine]), 4, checkpoint_every=2
    )
    models = comm.allgather_object(booster.model_to_string())
    assert models == models[:1] * comm.size
    counts = [tree.split("\nleaf_count=")[1].split("\n")[0] for tree in models[0].split("\nTree=")[1:]]
    assert counts[2::3] == ["19"] * 4, counts
    assert all(sum(map(int, count.split())) == 19 for count in counts), counts
