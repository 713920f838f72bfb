"""XGBoost fails on one rank each time, with nobody lost: all ranks get an error after a few attempts."""

import numpy as np
import xgboost

import warren
import warren.xgboost

attempts = 0

with warren.init() as comm:

    def make_data():
        global attempts
        attempts += 1
        labels = np.full(10, 5.0 if comm.rank == 1 else 1.0)  # 5 is no class
        return xgboost.DMatrix(np.zeros((10, 2)), labels)

    try:
        warren.xgboost.train(comm, {"objective": "binary:logistic"}, make_data, 5)
    except xgboost.core.XGBoostError as error:
        print(f"rank {comm.rank} after {attempts} attempts: {error}")
    else:
        raise AssertionError("it has trained")
