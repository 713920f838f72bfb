"""Children by multiprocessing compute for a worker, in a pool that it keeps; the worker's calls go on."""

import multiprocessing
import sys

import numpy as np
import warren


def square_sum(n):
    return float((np.arange(n) ** 2).sum())


def main(way):
    with warren.init() as comm:
        with multiprocessing.get_context(way).Pool(1) as pool:
            for n in (3, 5, 7):
                own = sum(pool.map(square_sum, [n, n + comm.rank]))
                everyone = comm.allgather(np.array([own]))[:, 0].tolist()
                assert everyone == [square_sum(n) + square_sum(n + r) for r in range(comm.size)], everyone
        assert comm.allreduce(1) == comm.size


if __name__ == "__main__":
    main(sys.argv[1])
