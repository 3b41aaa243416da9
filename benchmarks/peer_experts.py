#!/usr/bin/env python3
"""A layer with experts in plain PyTorch, with torch._grouped_mm: the peer of experts_bench.

  python3 benchmarks/peer_experts.py --tokens 16384 --hidden 2048 --ffn 1024 --experts 64 --per-token 8

Top-k of a softmax router, SwiGLU experts, bf16. Prints one JSON line for each kind: the median time of
forward and backward together and its share of the rate of a dense product with the same operations.
"""

import argparse
import json
import statistics

import torch
import torch.nn.functional as F


class Experts(torch.nn.Module):
    def __init__(self, a):
        super().__init__()
        self.k, self.count = a.per_token, a.experts

        def weight(*shape):
            return torch.nn.Parameter(torch.randn(*shape, device=a.device, dtype=torch.bfloat16) * 0.02)

        self.router = weight(a.experts, a.hidden)
        self.up = weight(a.experts, a.hidden, 2 * a.ffn)
        self.down = weight(a.experts, a.ffn, a.hidden)

    def forward(self, x):
        scores = F.softmax(F.linear(x.float(), self.router.float()), -1)
        weights, chosen = scores.topk(self.k, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        flat = chosen.flatten()
        order = flat.argsort(stable=True)
        counts = torch.zeros(self.count, dtype=torch.int32, device=x.device)
        counts.scatter_add_(0, flat, torch.ones_like(flat, dtype=torch.int32))
        ends = counts.cumsum(0, dtype=torch.int32)
        token = order // self.k
        rows = x[token]
        gate, value = torch._grouped_mm(rows, self.up, offs=ends).chunk(2, -1)
        wide = F.silu(gate) * value * weights.flatten()[order, None].to(x.dtype)
        out = torch._grouped_mm(wide, self.down, offs=ends)
        return torch.zeros_like(x).index_add_(0, token, out)


def timed(run, steps, device):
    times = []
    for step in range(steps + 5):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize(device)
        if step >= 5:
            times.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    for name, value in (("tokens", 16384), ("hidden", 2048), ("ffn", 1024), ("experts", 64),
                        ("per-token", 8), ("steps", 20)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--kinds", default="eager,compile")
    a = parser.parse_args()
    a.device = torch.device("cuda")
    torch.manual_seed(0)
    x = torch.randn(a.tokens, a.hidden, device=a.device, dtype=torch.bfloat16, requires_grad=True)
    dy = torch.randn_like(x)
    layer = Experts(a)
    flops = 3 * 2 * a.tokens * a.per_token * 3 * a.hidden * a.ffn
    for kind in a.kinds.split(","):
        call = torch.compile(layer) if kind == "compile" else layer

        def run():
            x.grad = None
            layer.zero_grad(set_to_none=True)
            call(x).backward(dy)

        seconds = timed(run, a.steps, a.device)
        print(json.dumps({"kind": kind, "ms": round(1e3 * seconds, 3), "tflops": round(flops / seconds / 1e12, 1)}))
    width = a.ffn * a.per_token
    up = torch.randn(2 * width, a.hidden, device=a.device, dtype=torch.bfloat16, requires_grad=True)
    down = torch.randn(a.hidden, width, device=a.device, dtype=torch.bfloat16, requires_grad=True)

    def dense():
        x.grad = up.grad = down.grad = None
        F.linear(F.linear(x, up)[:, :width], down).backward(dy)

    seconds = timed(dense, a.steps, a.device)
    print(json.dumps({"kind": "dense products", "ms": round(1e3 * seconds, 3),
                      "tflops": round(flops / seconds / 1e12, 1)}))


if __name__ == "__main__":
    main()
