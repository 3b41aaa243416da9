#!/usr/bin/env python3
"""A GPT-2 in plain PyTorch on one GPU: the peer of compare_gpu.py, which describes the protocol.

  python3 benchmarks/peer_gpu.py --model gpt2-xl --batch 15 --kinds eager,compile --reps 3

What trains (--layout):
  bf16      bf16 parameters and gradients; fp32 master parameters and moments, 16 bytes a parameter,
            which is Tessera's layout bf16. The masters lie in one flat tensor, so that the update
            is one fused AdamW, one norm and two copies
  autocast  fp32 parameters, gradients and moments; products in bf16 under torch.autocast
How (--kinds): eager; compile (torch.compile, of the whole model or of a block: --compile).

Forward, mean cross entropy of fp32 logits, backward, clip the norm of the gradient to 1, AdamW.
Parameters are called as Tessera calls them, so that --start takes a model that `tessera checkpoint
export` wrote. Data are windows of a text, byte by byte, the same that `tessera train --data` takes.
"""

import argparse
import json
import math
import os
import struct
import sys
import time

MODELS = {"gpt2-124m": (12, 768, 12), "gpt2-355m": (24, 1024, 16), "gpt2-774m": (36, 1280, 20),
          "gpt2-xl": (48, 1600, 25), "test": (2, 64, 2)}
VOCAB, POSITIONS = 50257, 1024


def arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="gpt2-124m")
    parser.add_argument("--batch", type=int, default=4, help="sequences a step (4)")
    parser.add_argument("--seq", type=int, default=1024)
    parser.add_argument("--layout", choices=["bf16", "autocast"], default="bf16")
    parser.add_argument("--kinds", default="eager", help="eager, compile, or both with a comma")
    parser.add_argument("--compile", choices=["whole", "blocks"], default="whole")
    parser.add_argument("--compile-mode", default="default", help="as torch.compile has it")
    parser.add_argument("--attention", choices=["default", "cudnn", "flash"], default="default",
                        help="which of PyTorch's kernels; default: as it chooses")
    parser.add_argument("--vocab", type=int, default=0, help="rows of the table; 0: 50304")
    parser.add_argument("--data", help="a text; without one the same bytes are made up")
    parser.add_argument("--start", help="a safetensors file with the first parameters")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--lrs", help="a file with a learning rate in each line, for --curve")
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--betas", default="0.9,0.95")
    parser.add_argument("--steps", type=int, default=10, help="of a repetition")
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--device", default="cuda")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--serve", action="store_true", help="repetitions on demand")
    mode.add_argument("--curve", type=int, default=0, metavar="N", help="print the loss of N steps")
    mode.add_argument("--probe", action="store_true", help="say what there is, as JSON")
    return parser.parse_args()


def probe(torch):
    there = torch.cuda.is_available()
    about = {"torch": torch.__version__, "cuda": torch.version.cuda, "gpu": None}
    if there:
        about.update(gpu=torch.cuda.get_device_name(), bytes=torch.cuda.mem_get_info()[1],
                     cudnn=torch.backends.cudnn.version())
    return about


def take_stdout():
    """Standard output for our lines alone; whatever else prints there goes to standard error."""
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return lines


# ---- data: windows that a counter-based generator chooses, as tessera/data/text_file.cpp does


def philox(counter, stream, seed):
    mask = 0xFFFFFFFF
    c = [counter & mask, counter >> 32 & mask, stream & mask, stream >> 32 & mask]
    k = [seed & mask, seed >> 32 & mask]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & mask, (a >> 32) ^ c[3] ^ k[1], a & mask]
        k = [(k[0] + 0x9E3779B9) & mask, (k[1] + 0xBB67AE85) & mask]
    return c


def stream_of(name):
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


class Windows:
    def __init__(self, torch, o):
        text = open(o.data, "rb").read() if o.data else bytes(i * 7 % 96 + 32 for i in range(1 << 20))
        self.torch, self.batch, self.seq, self.seed = torch, o.batch, o.seq, o.seed
        self.bytes = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        self.stream, self.device = stream_of("data.text"), o.device

    def step(self, number):
        starts = []
        for sample in range(number * self.batch, (number + 1) * self.batch):
            words = philox(sample, self.stream, self.seed)
            starts.append((words[0] << 32 | words[1]) % (len(self.bytes) - self.seq))
        rows = self.torch.stack([self.bytes[s:s + self.seq + 1] for s in starts]).long()
        rows = rows.pin_memory() if self.device == "cuda" else rows
        rows = rows.to(self.device, non_blocking=True)
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


# ---- the model


def make_model(torch, o):
    nn, functional = torch.nn, torch.nn.functional
    layers, width, heads = MODELS[o.model]
    vocab = o.vocab or (VOCAB + 127) // 128 * 128

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.fc, self.proj2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):  # [B, T, C]
            q, k, v = (part.unflatten(2, (heads, -1)).transpose(1, 2)
                       for part in self.qkv(self.norm1(x)).split(width, dim=2))
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.proj(mixed.transpose(1, 2).flatten(2))
            return x + self.proj2(functional.gelu(self.fc(self.norm2(x)), approximate="tanh"))

    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.tok, self.pos = nn.Embedding(vocab, width), nn.Embedding(POSITIONS, width)
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            self.norm = nn.LayerNorm(width)

        def forward(self, ids, targets):  # [B, T] each
            x = self.tok(ids) + self.pos.weight[:ids.shape[1]]
            for block in self.blocks:
                x = block(x)
            logits = functional.linear(self.norm(x), self.tok.weight).float()
            return functional.cross_entropy(logits.view(-1, vocab), targets.view(-1))

    torch.manual_seed(o.seed)
    with torch.device(o.device):
        model = GPT()
    with torch.no_grad():
        for name, value in model.named_parameters():
            if value.dim() == 2:
                deep = name.endswith(("proj.weight", "proj2.weight"))
                value.normal_(std=0.02 / (math.sqrt(2 * layers) if deep else 1))
            elif name.endswith("bias"):
                value.zero_()
        if o.start:
            load(torch, model, o.start)
    return model


def load(torch, model, path):
    """Parameters of a safetensors file, by their names; rows that pad a table stay as they are."""
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        base = file.tell()
        types = {"F32": torch.float32, "BF16": torch.bfloat16}
        for name, value in model.named_parameters():
            if name not in header:
                raise SystemExit(f"peer_gpu: {path} has no {name}, but "
                                 + ", ".join(sorted(header)[:5]) + ", …")
            about = header[name]
            begin, end = about["data_offsets"]
            file.seek(base + begin)
            there = torch.frombuffer(bytearray(file.read(end - begin)),
                                     dtype=types[about["dtype"]]).view(about["shape"])
            rows = min(there.shape[0], value.shape[0])
            value[:rows] = there[:rows].to(value.device, value.dtype)


# ---- the update


class Flat:
    """bf16 parameters as views of one tensor, updated from fp32 masters in another."""

    def __init__(self, torch, model, o):
        self.torch, self.o = torch, o
        self.params = list(model.parameters())
        # Masters with and without weight decay lie apart, each group one tensor.
        self.groups = []
        for decays in (True, False):
            members = [p for p in self.params if (p.dim() >= 2) == decays]
            count = sum(p.numel() for p in members)
            master = torch.cat([p.detach().reshape(-1) for p in members]).float()
            flat = master.to(torch.bfloat16)
            at = 0
            for p in members:
                p.data = flat[at:at + p.numel()].view(p.shape)
                at += p.numel()
            self.groups.append({"members": members, "master": master, "flat": flat,
                                "count": count, "m": torch.zeros_like(master),
                                "v": torch.zeros_like(master),
                                "decay": o.weight_decay if decays else 0.0,
                                "step": torch.zeros((), device=o.device)})

    def step(self, lr):
        torch = self.torch
        with torch.no_grad():
            wide = []
            for g in self.groups:
                grads = torch.empty_like(g["master"])
                torch._foreach_copy_(list(grads.split([p.numel() for p in g["members"]])),
                                     [p.grad.view(-1) for p in g["members"]])
                wide.append(grads)
            norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(w)
                                                         for w in wide]))
            scale = torch.clamp(norm, min=1.0)  # gradients are divided by it
            betas = [float(b) for b in self.o.betas.split(",")]
            for g, grads in zip(self.groups, wide):
                g["step"] += 1
                torch._fused_adamw_([g["master"]], [grads], [g["m"]], [g["v"]], [], [g["step"]],
                                    lr=lr, beta1=betas[0], beta2=betas[1],
                                    weight_decay=g["decay"], eps=1e-8, amsgrad=False,
                                    maximize=False, grad_scale=scale, found_inf=None)
                g["flat"].copy_(g["master"])
        for p in self.params:
            p.grad = None


class Wide:
    """fp32 parameters, PyTorch's own fused AdamW."""

    def __init__(self, torch, model, o):
        self.torch = torch
        self.params = list(model.parameters())
        betas = tuple(float(b) for b in o.betas.split(","))
        self.optimizer = torch.optim.AdamW(
            [{"params": [p for p in self.params if p.dim() >= 2], "weight_decay": o.weight_decay},
             {"params": [p for p in self.params if p.dim() < 2], "weight_decay": 0.0}],
            lr=o.lr, betas=betas, eps=1e-8, fused=True)

    def step(self, lr):
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.torch.nn.utils.clip_grad_norm_(self.params, 1.0, foreach=True)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


class Trainer:
    def __init__(self, torch, o):
        self.torch, self.o = torch, o
        if o.attention != "default":
            torch.backends.cuda.enable_cudnn_sdp(o.attention == "cudnn")
            torch.backends.cuda.enable_flash_sdp(o.attention == "flash")
            torch.backends.cuda.enable_mem_efficient_sdp(False)
        torch.set_float32_matmul_precision("high")
        self.model = make_model(torch, o)
        self.parameters = sum(p.numel() for p in self.model.parameters())
        self.update = (Flat if o.layout == "bf16" else Wide)(torch, self.model, o)
        self.windows = Windows(torch, o)
        self.done = 0
        self.lrs = [float(line) for line in open(o.lrs)] if o.lrs else None
        self.compiled = None

    def loss(self, kind):
        """The function that makes it: a compiled one is made when it is first wanted."""
        if kind == "eager":
            return self.model
        if self.compiled is None:
            if self.o.compile == "whole":
                self.compiled = self.torch.compile(self.model, mode=self.o.compile_mode)
            else:
                plain = self.model
                blocks = [self.torch.compile(b, mode=self.o.compile_mode) for b in plain.blocks]
                head = self.torch.compile(self.tail, mode=self.o.compile_mode)

                def run(ids, targets):
                    x = plain.tok(ids) + plain.pos.weight[:ids.shape[1]]
                    for block in blocks:
                        x = block(x)
                    return head(x, targets)

                self.compiled = run
        return self.compiled

    def tail(self, x, targets):
        functional, model = self.torch.nn.functional, self.model
        logits = functional.linear(model.norm(x), model.tok.weight).float()
        return functional.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))

    def step(self, kind):
        ids, targets = self.windows.step(self.done)
        loss_of = self.loss(kind)
        if self.o.layout == "autocast":
            with self.torch.autocast(self.o.device, dtype=self.torch.bfloat16):
                loss = loss_of(ids, targets)
        else:
            loss = loss_of(ids, targets)
        loss.backward()
        self.update.step(self.lrs[self.done] if self.lrs else self.o.lr)
        self.done += 1
        return loss.detach()

    def wait(self):
        if self.o.device == "cuda":
            self.torch.cuda.synchronize()

    def turn(self, kind, steps, reps):
        """Repetitions after a few steps that warm up; what they needed at most."""
        cuda = self.o.device == "cuda"
        began = time.perf_counter()
        for _ in range(3):
            self.step(kind)
        self.wait()
        warm = time.perf_counter() - began
        if cuda:
            self.torch.cuda.reset_peak_memory_stats()
        ms, loss = [], None
        for _ in range(reps):
            begin = time.perf_counter()
            for _ in range(steps):
                loss = self.step(kind)
            self.wait()
            ms.append((time.perf_counter() - begin) * 1e3 / steps)
        peak = self.torch.cuda.max_memory_allocated() if cuda else 0
        if cuda:  # room for those who come next
            self.torch.cuda.empty_cache()
        return {"kind": kind, "ms": ms, "peak": peak, "loss": loss.item(), "warm_s": warm}


def serve(trainer, say):
    say({"ready": True, "parameters": trainer.parameters})
    for line in sys.stdin:
        words = line.split()
        if not words or words[0] == "quit":
            return
        if len(words) != 4 or words[0] != "go":
            raise SystemExit(f"peer_gpu: got the order {words}; wanted go KIND STEPS REPS, or quit")
        say(trainer.turn(words[1], int(words[2]), int(words[3])))


def main():
    o = arguments()
    lines = take_stdout()
    import torch

    def say(what):
        print(json.dumps(what), file=lines, flush=True)

    if o.probe:
        say(probe(torch))
        return 0
    if o.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("peer_gpu: torch finds no GPU")
    trainer = Trainer(torch, o)
    if o.serve:
        serve(trainer, say)
    elif o.curve:
        losses = [trainer.step(o.kinds.split(",")[0]) for _ in range(o.curve)]
        say({"losses": [loss.item() for loss in losses]})
    else:
        for kind in o.kinds.split(","):
            say(trainer.turn(kind, o.steps, o.reps))
    return 0


if __name__ == "__main__":
    sys.exit(main())
