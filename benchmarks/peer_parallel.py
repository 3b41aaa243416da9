#!/usr/bin/env python3
"""Measures PyTorch's tensor parallelism or 1F1B pipeline with a small GPT over Gloo, for compare_parallel.py.

    python -m torch.distributed.run --standalone --nproc-per-node 2 peer_parallel.py --mode tp
Rank 0 prints one JSON object: {"tokens_per_s": median over the steps, "loss": of the last step}.
"""
import argparse
import contextlib
import json
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, width, heads, parts):
        super().__init__()
        self.heads, self.head_dim = heads // parts, width // heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        # Three matrices, because the API shards by rows: a fused one would be sharded across q, k and v.
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.proj = nn.Linear(width, width)
        self.fc, self.proj2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        y = self.norm1(x)
        b, t, _ = y.shape
        q, k, v = (m(y).view(b, t, self.heads, self.head_dim).transpose(1, 2)
                   for m in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, -1))
        return x + self.proj2(F.gelu(self.fc(self.norm2(x)), approximate="tanh"))


class Embedding(nn.Module):
    def __init__(self, vocab, seq, width):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, width), nn.Embedding(seq, width)

    def forward(self, ids):
        return self.tok(ids) + self.pos.weight[: ids.shape[1]]


class Head(nn.Module):
    def __init__(self, vocab, width):
        super().__init__()
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)

    def forward(self, x):
        return self.head(self.norm(x))


def layers_of(a, parts):
    return [Embedding(a.vocab, a.seq, a.hidden),
            *(Block(a.hidden, a.heads, parts) for _ in range(a.layers)),
            Head(a.vocab, a.hidden)]


def loss_of(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def clip(model, most, mode):
    """Clips the global gradient norm to `most`, summed over shards and pipeline stages."""
    parts, shared, grads = torch.zeros(()), torch.zeros(()), []
    for p in model.parameters():
        placements = getattr(p.grad, "placements", ())
        grad = p.grad.to_local() if placements else p.grad
        grads.append(grad)
        if mode == "pp" or any(x.is_shard() for x in placements):
            parts += grad.square().sum()
        else:
            shared += grad.square().sum()
    dist.all_reduce(parts)
    norm = (parts + shared).sqrt()
    if norm > most:
        torch._foreach_mul_(grads, (most / norm).item())


def tensor_parallel(a, world):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel, loss_parallel,
                                                   parallelize_module)
    model = nn.Sequential(*layers_of(a, world)).to(a.type)
    mesh = init_device_mesh("cpu", (world,))
    for layer in model:
        if isinstance(layer, Block):
            parallelize_module(layer, mesh, {
                "q": ColwiseParallel(), "k": ColwiseParallel(), "v": ColwiseParallel(),
                "proj": RowwiseParallel(), "fc": ColwiseParallel(), "proj2": RowwiseParallel()})
        elif isinstance(layer, Embedding) and a.share_vocab:
            parallelize_module(layer, mesh, {"tok": RowwiseParallel(input_layouts=Replicate())})
        elif isinstance(layer, Head) and a.share_vocab:
            parallelize_module(layer, mesh, {"head": ColwiseParallel(use_local_output=False)})

    def run(ids, targets):
        total = 0.0
        for x, y in zip(ids.chunk(a.micros), targets.chunk(a.micros)):
            with loss_parallel() if a.share_vocab else contextlib.nullcontext():
                loss = loss_of(model(x), y) / a.micros
                loss.backward()
            total += loss.item()
        return total
    return model, run


def pipeline(a, world, rank):
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B
    layers = layers_of(a, 1)
    half = 1 + a.layers // 2
    model = nn.Sequential(*(layers[:half] if rank == 0 else layers[half:])).to(a.type)
    stage = PipelineStage(model, rank, world, torch.device("cpu"))
    schedule = Schedule1F1B(stage, a.micros, loss_fn=loss_of)

    def run(ids, targets):
        losses = []
        if rank == 0:
            schedule.step(ids)
            return 0.0
        schedule.step(target=targets, losses=losses)
        return torch.stack(losses).mean().item()
    return model, run


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--mode", choices=["tp", "pp"], required=True)
    for name, value in dict(layers=4, hidden=256, heads=4, vocab=2048, seq=128, batch=8, micros=1,
                            steps=12).items():
        p.add_argument("--" + name, type=int, default=value)
    p.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    p.add_argument("--share-vocab", action="store_true",
                   help="tp: also shard embedding and head, with a loss over the shards")
    a = p.parse_args()
    a.type = torch.bfloat16 if a.dtype == "bf16" else torch.float32
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank, world = dist.get_rank(), dist.get_world_size()
    model, run = tensor_parallel(a, world) if a.mode == "tp" else pipeline(a, world, rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=a.mode == "pp")
    times, loss = [], 0.0
    for step in range(a.steps + 2):
        g = torch.Generator().manual_seed(step)
        ids = torch.randint(a.vocab, (a.batch, a.seq + 1), generator=g)
        dist.barrier()
        began = time.perf_counter()
        loss = run(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())
        clip(model, 1.0, a.mode)
        optimizer.step()
        optimizer.zero_grad()
        dist.barrier()
        times.append(time.perf_counter() - began)
    if rank == world - 1:
        print(json.dumps({"tokens_per_s": a.batch * a.seq / statistics.median(times[2:]),
                          "loss": loss}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
