"""Makes an array of the state longer, which a restarted worker could not restore in place."""

import numpy as np
import warren

with warren.init() as comm:
    state = {"losses": np.zeros(0)}
    for epoch in comm.epochs(5, state):
        state["losses"] = np.append(state["losses"], comm.allreduce(1.5))
