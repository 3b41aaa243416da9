"""Measures torch.distributed.checkpoint with the state of checkpoint_bench: a GPT in fp32 with two moments,
each tensor a DTensor sharded by rows, as in FSDP. Started by torchrun, over Gloo. Syncs its files, as
Tessera does (the default of FileSystemWriter). Prints the seconds of each round as JSON.

    torchrun --standalone --nproc-per-node 2 benchmarks/peer_checkpoint.py --dir D [--rounds 3]
"""
import argparse
import json
import logging
import os
import pathlib
import shutil
import time
import warnings

warnings.filterwarnings("ignore")
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import DTensor, Shard  # noqa: E402

logging.disable(logging.WARNING)


def shapes(options):
    """Returns the same names and sizes as checkpoint_bench.cpp."""
    h = options.hidden
    yield "embed", (options.vocab, h)
    yield "positions", (h, h)
    for i in range(options.layers):
        for name, out in (("qkv", 3 * h), ("out", h), ("up", 4 * h), ("down", h)):
            yield f"blocks.{i}.{name}.weight", (out, 4 * h if name == "down" else h)
            yield f"blocks.{i}.{name}.bias", (out,)
        for name in ("norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias"):
            yield f"blocks.{i}.{name}", (h,)
    for name in ("norm.weight", "norm.bias"):
        yield name, (h,)


def make_state(options, mesh):
    rank, size = dist.get_rank(), dist.get_world_size()
    state = {}
    for name, shape in shapes(options):
        assert shape[0] % size == 0, (name, shape)
        for kind in ("param", "moment1", "moment2"):
            local = torch.arange(shape[0] // size * (shape[1] if len(shape) > 1 else 1),
                                 dtype=torch.float32)
            local = (local + rank).view(shape[0] // size, *shape[1:])
            state[f"{kind}/{name}"] = DTensor.from_local(local, mesh, [Shard(0)], run_check=False)
    return state


def drop_pages(folder):
    for path in folder.iterdir():
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def timed(body):
    """Measures the time between two barriers, which is that of the slowest rank."""
    dist.barrier()
    began = time.monotonic()
    result = body()
    dist.barrier()
    return time.monotonic() - began, result


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=pathlib.Path, required=True)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--vocab", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    first = dist.get_rank() == 0
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    state = make_state(options, mesh)
    folder = options.dir / "dcp-bench"
    took = {"save": [], "load": [], "async": []}

    def fresh(sync=True):
        dist.barrier()
        if first:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            if sync:
                os.sync()
        dist.barrier()

    def save(what):
        dcp.save(what, storage_writer=dcp.FileSystemWriter(folder))

    fresh()
    save({"warm": state["param/norm.weight"]})
    for _ in range(options.rounds):
        fresh()
        took["save"].append(timed(lambda: save(state))[0])
        if first:
            os.sync()
            drop_pages(folder)
        took["load"].append(
            timed(lambda: dcp.load(state, storage_reader=dcp.FileSystemReader(folder)))[0])
        fresh(sync=False)
        # Time that a background save blocks the caller.
        held, future = timed(
            lambda: dcp.async_save(state, storage_writer=dcp.FileSystemWriter(folder)))
        took["async"].append(held)
        future.result()
    if first:
        shutil.rmtree(folder, ignore_errors=True)
        total = sum(t.numel() for t in state.values()) * 4
        print(json.dumps({"bytes": total, "ranks": dist.get_world_size(), "tensors": len(state),
                          "torch": torch.__version__, **took}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
