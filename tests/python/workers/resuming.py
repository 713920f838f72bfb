"""A loop with state of every kind, of all ranks and of this one, and calls before and after it."""

import os
import pathlib
import sys

import numpy as np
import warren

print(f"process {os.getpid()} begins", flush=True)
with warren.init() as comm:
    names = comm.once("schema").allgather(np.array([comm.rank], "int32"))
    first = comm.allreduce(comm.rank + 1)
    array = np.zeros(5, "float32")
    history = []
    draws = np.random.default_rng(3)
    nested = {"history": history, "step": 0}
    pair = (np.zeros(2), 0)
    first_of_pair = pair[0]
    state = {"array": array, "nested": nested, "draws": draws, "name": "a", "scalar": np.int8(1), "pair": pair}
    local = {"own": np.zeros(2), "draws": np.random.Generator(np.random.MT19937(comm.rank))}
    own = local["own"]
    for epoch in comm.epochs(200, state, local=local, every=2):
        assert state["array"] is array and state["nested"]["history"] is history and state["draws"] is draws
        assert local["own"] is own and state["nested"]["step"] == epoch == len(history)
        assert type(state["scalar"]) is np.int8 and state["pair"][0] is first_of_pair
        if epoch > 0:
            assert list(state["later"]) == ["z", "a"] and state["later"]["a"].flags.fnc
        own += local["draws"].random(2)
        array += comm.allreduce(draws.random(5).astype("float32"))
        history.append(float(comm.allreduce(own).sum()))
        state["nested"]["step"] += 1
        state["name"] += "b"
        first_of_pair += array[:2]
        state["later"] = {"z": epoch, "a": np.full((2, 3), epoch).T}
        if comm.rank == 0:
            print(f"epoch {epoch}", flush=True)
    everyone = comm.gather(own)
    if comm.rank == 0:
        arrays = (array.tobytes(), first_of_pair.tobytes(), everyone.tobytes(), names.tolist())
        pathlib.Path(sys.argv[1]).write_text(repr((arrays, history, state["name"], draws.random(), first)))
