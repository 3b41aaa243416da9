#!/usr/bin/env python3
"""Measures Gloo of torch.distributed in the same way as `tessera bench comm`, with the same keys.

  .peers-venv/bin/python benchmarks/peer_gloo.py --ranks 2 --sizes 4096,26214400 --time 0.3

Starts its own ranks with one thread each, or joins those of torchrun.
"""

import argparse
import json
import math
import os
import socket
import time


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--sizes", default="4096,26214400,104857600", help="comma-separated bytes")
    parser.add_argument("--ops", default="all_reduce,reduce_scatter,all_gather")
    parser.add_argument("--time", type=float, default=0.5, help="seconds per measurement")
    return parser.parse_args()


class Case:
    """One operation with its buffers: all_reduce in place, the others out of place."""

    def __init__(self, torch, op, count):
        self.torch, self.op, self.count = torch, op, count
        self.rank = torch.distributed.get_rank()
        self.ranks = torch.distributed.get_world_size()
        self.whole = torch.zeros(count)
        self.shard = torch.zeros(count // self.ranks)
        distributed = torch.distributed  # the names changed in 2.13, which accepts both
        self.scatter = getattr(distributed, "reduce_scatter_single",
                               distributed.reduce_scatter_tensor)
        self.gather = getattr(distributed, "all_gather_single",
                              distributed.all_gather_into_tensor)
        self.run = getattr(self, "_" + op)

    def _all_reduce(self):
        self.torch.distributed.all_reduce(self.whole)

    def _reduce_scatter(self):
        self.scatter(self.shard, self.whole)

    def _all_gather(self):
        self.gather(self.whole, self.shard)

    def check(self):
        """Checks the result. Element i of rank r is (i + r) % 8, so every result is exact."""
        torch = self.torch
        index = torch.arange(self.count)
        values = [((index + r) % 8).float() for r in range(self.ranks)]
        total = sum(values)
        stride = self.count // self.ranks
        own = slice(self.rank * stride, (self.rank + 1) * stride)
        self.whole.copy_(values[self.rank])
        self.shard.copy_(values[self.rank][own])
        self.run()
        if self.op == "all_reduce":
            good = torch.equal(self.whole, total)
        elif self.op == "reduce_scatter":
            good = torch.equal(self.shard, total[own])
        else:
            pieces = [v.chunk(self.ranks)[r] for r, v in enumerate(values)]
            good = torch.equal(self.whole, torch.cat(pieces))
        if not good:
            raise SystemExit(f"peer_gloo: {self.op} of {self.count} floats gave a wrong result")
        self.whole.zero_()  # so that repeated in-place sums stay zero
        self.shard.zero_()


def measure(case, seconds):
    """Measures repetitions that all ranks start together. One repetition has enough calls to take a fifth
    of a millisecond, and its time is that of the slowest rank."""
    torch = case.torch
    distributed = torch.distributed

    def slowest(values):
        tensor = torch.tensor(values, dtype=torch.float64)
        distributed.all_reduce(tensor, distributed.ReduceOp.MAX)
        return tensor

    def timed(calls):
        distributed.barrier()
        begin = time.perf_counter()
        for _ in range(calls):
            case.run()
        return (time.perf_counter() - begin) / calls

    case.check()
    timed(3)
    once = slowest([timed(3)]).item()
    calls = min(max(math.ceil(200e-6 / once), 1), 1000)
    repetitions = int(min(max(seconds / (once * calls), 5), 1000))
    every = slowest([timed(calls) for _ in range(repetitions)]).sort().values
    return every[repetitions // 2].item(), every[0].item()


def rank_main(local_rank, options, port):
    if port is not None:
        os.environ.update(RANK=str(local_rank), WORLD_SIZE=str(options.ranks),
                          MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    import torch
    import torch.distributed as distributed

    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    ranks = distributed.get_world_size()
    results = []
    for op in options.ops.split(","):
        for size in map(int, options.sizes.split(",")):
            count = -(-size // (4 * ranks)) * ranks
            median, least = measure(Case(torch, op, count), options.time)
            results.append({
                "op": op, "backend": "gloo", "memory": "ordinary", "dtype": "f32",
                "ranks": ranks, "bytes": 4 * count, "ms": median * 1e3, "min_ms": least * 1e3,
                "gb_per_s": 4 * count / median * 1e-9,
            })
    if distributed.get_rank() == 0:
        print("[\n" + ",\n".join("  " + json.dumps(r) for r in results) + "\n]")
    distributed.barrier()
    distributed.destroy_process_group()


def main():
    options = arguments()
    if "RANK" in os.environ:
        rank_main(int(os.environ["RANK"]), options, None)
        return
    import torch.multiprocessing as multiprocessing

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    multiprocessing.start_processes(rank_main, (options, port), options.ranks,
                                    start_method="fork")


if __name__ == "__main__":
    main()
