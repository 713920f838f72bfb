"""PyTorch's Gloo backend on CUDA tensors, one process a rank, on the first GPU: one JSON object a size on standard output of rank 0, with
the fields of `warren bench --json`.

  torch_gpu.py RANK RANKS PORT ITERATIONS BYTES[,BYTES…]
"""

import json
import os
import sys
import time

import torch
import torch.distributed as dist

WARM_UP = 3


def main() -> None:
    rank, ranks, port, iterations = (int(word) for word in sys.argv[1:5])
    sizes = [int(word) for word in sys.argv[5].split(",")]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(ranks), GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo")
    torch.cuda.set_device(0)
    for size in sizes:
        count = size // 4
        errors, times_us = 0, []
        for i in range(-WARM_UP, iterations):
            # Whole numbers, whose sums are exact; the same on each rank but for its number.
            tensor = (torch.arange(count, device="cuda", dtype=torch.int64) % 1021 + rank).to(torch.float32)
            torch.cuda.synchronize()
            dist.barrier()
            begin = time.perf_counter()
            dist.all_reduce(tensor)
            torch.cuda.synchronize()
            took = torch.tensor([(time.perf_counter() - begin) * 1e6], dtype=torch.float64)
            dist.all_reduce(took, op=dist.ReduceOp.MAX)
            if i >= 0:
                times_us.append(took.item())
            expected = ((torch.arange(count, device="cuda", dtype=torch.int64) % 1021) * ranks + ranks * (ranks - 1) // 2).to(torch.float32)
            errors += int((tensor != expected).sum().item())
        if rank == 0:
            times_us.sort()
            print(json.dumps({"collective": "allreduce", "bytes": count * 4, "ranks": ranks, "iterations": iterations,
                              "min_us": times_us[0], "median_us": times_us[len(times_us) // 2], "max_us": times_us[-1],
                              "errors": errors, "torch": torch.__version__}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


main()
