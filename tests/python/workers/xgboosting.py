"""What XGBoost grows by its own ranks it grows in a segment; and arguments that cannot be right are refused."""

import numpy as np
import xgboost
from xgboost import collective
from xgboost.tracker import RabitTracker

import warren
import warren.xgboost

draws = np.random.default_rng(1)
x = draws.random((600, 5))
y = x[:, 0] + x[:, 1] * x[:, 2] + 0.1 * draws.random(600)
params = {"objective": "reg:squarederror", "max_depth": 3, "nthread": 1, "tree_method": "hist", "seed": 5,
          "subsample": 0.5}


def refused(error, words, *arguments, **options):
    try:
        warren.xgboost.train(comm, *arguments, **options)
    except error as found:
        assert words in str(found), found
    else:
        raise AssertionError(words)


with warren.init() as comm:
    mine = slice(comm.rank, None, comm.size)

    def make_data():
        return xgboost.DMatrix(x[mine], y[mine])

    refused(ValueError, "checkpoint_every is 0", params, make_data, checkpoint_every=0)
    refused(ValueError, "evals is given", params, make_data, evals=[])
    params["random_state"] = params.pop("seed")  # a name of XGBoost's for the same
    grown = warren.xgboost.train(comm, params, make_data, 20, checkpoint_every=20)

    tracker = RabitTracker(host_ip="127.0.0.1", n_workers=comm.size, sortby="task") if comm.rank == 0 else None
    if tracker is not None:
        tracker.start()
    place = comm.broadcast_object(tracker.worker_args() if tracker is not None else None)
    with collective.CommunicatorContext(**place, dmlc_task_id=str(comm.rank)):
        reference = xgboost.train(params, make_data(), 20)
    assert grown.get_dump(with_stats=True) == reference.get_dump(with_stats=True)
