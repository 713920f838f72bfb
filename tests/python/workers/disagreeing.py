"""Two ranks call different things."""

import numpy as np
import warren

with warren.init() as comm:
    x = np.ones(3)
    try:
        # Both ranks are told both lines.
        if comm.rank == 0:
            comm.allreduce(x)
        else:
            comm.allreduce(x, "max")
    except warren.Desync as error:
        assert isinstance(error, warren.Error) and error.code == "desync"
        print(error)
        raise SystemExit(0) from None
    raise AssertionError("no desync")
