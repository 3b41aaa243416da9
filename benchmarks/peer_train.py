#!/usr/bin/env python3
"""Trains the benchmark GPT in PyTorch, synchronized by one of Tessera's peers.

  .peers-venv/bin/python -m torch.distributed.run --standalone --nproc-per-node 2 \\
      benchmarks/peer_train.py --peer ddp --dtype fp32 --reps 3 --steps 2

Peers, each used as its documentation recommends:
  none         no communication
  ddp          DistributedDataParallel, gradients as views of its buckets           (stage 0)
  zero1        the same with ZeroRedundancyOptimizer                                (stage 1)
  fsdp2-keep   fully_shard of each block and the root, without resharding after forward (close to stage 2)
  fsdp2        the same, with resharding after forward                              (stage 3)
  deepspeed-1, deepspeed-2, deepspeed-3

The step: forward, mean cross entropy of float logits, backward, clip the global gradient norm to 1,
AdamW (PyTorch's fused one, which is twice as fast on the CPU as its foreach one). Same model, data,
seed and hyperparameters for all, so their fp32 losses agree, except `none`.

Types: fp32 is fp32 throughout. With bf16, `none`, ddp, zero1 and fsdp2 have bf16 parameters, gradients and
moments and reduce in bf16, as after model.to(bfloat16): their fastest mode, with 8 bytes per parameter.
DeepSpeed's bf16 mode reduces in bf16 and updates fp32 master parameters with fp32 moments. Attention, GELU and layer norms run in the dtype of
the parameters; the loss is fp32.

Prints only JSON lines on standard output; output of libraries is redirected to standard error. Without
--serve it runs --reps repetitions of --steps steps and prints a line for each. With --serve it reads
commands from standard input (protocol: compare_train.py). --self-check trains 20 steps and fails unless the
loss fell. --probe times one matmul in each dtype (no launcher needed).
"""

import argparse
import datetime
import json
import math
import os
import sys
import time

PEERS = ["none", "ddp", "zero1", "fsdp2-keep", "fsdp2", "deepspeed-1", "deepspeed-2", "deepspeed-3"]
ALPHABET = 64   # number of tokens in the data, few so that the loss falls quickly from ln V
BATCHES = 16    # generated before the clock starts, then repeated


def arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--peer", choices=PEERS, default="ddp")
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--vocab", type=int, default=8192)
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--micro-batch", type=int, default=4, help="sequences per rank and step (4)")
    parser.add_argument("--lr", type=float, default=6e-4)
    parser.add_argument("--threads", type=int, default=1, help="threads per rank (1)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--warmup", type=int, default=2, help="warm-up steps (2)")
    parser.add_argument("--steps", type=int, default=2, help="steps per repetition (2)")
    parser.add_argument("--reps", type=int, default=3, help="repetitions (3)")
    parser.add_argument("--ds-bucket", type=int, default=6_553_600,
                        help="elements of a DeepSpeed bucket (25 MiB of fp32, as in DDP)")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--serve", action="store_true", help="repetitions on demand, see above")
    mode.add_argument("--self-check", action="store_true")
    mode.add_argument("--probe", action="store_true")
    options = parser.parse_args()
    if options.hidden % options.heads:
        parser.error(f"--heads {options.heads}: must divide --hidden {options.hidden}")
    for name in ("steps", "reps", "threads"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} {getattr(options, name)}: must be at least 1")
    return options


def take_stdout():
    """Reserves standard output for the protocol and redirects all other output to standard error."""
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return lines


def make_model(torch, o):
    nn, functional = torch.nn, torch.nn.functional

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(o.hidden), nn.LayerNorm(o.hidden)
            self.qkv = nn.Linear(o.hidden, 3 * o.hidden)
            self.project = nn.Linear(o.hidden, o.hidden)
            self.up = nn.Linear(o.hidden, 4 * o.hidden)
            self.down = nn.Linear(4 * o.hidden, o.hidden)

        def forward(self, x):  # [B, T, C]
            q, k, v = (part.unflatten(2, (o.heads, -1)).transpose(1, 2)
                       for part in self.qkv(self.norm1(x)).split(o.hidden, dim=2))
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.project(mixed.transpose(1, 2).flatten(2))
            return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))

    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.token = nn.Embedding(o.vocab, o.hidden)
            self.position = nn.Embedding(o.seq, o.hidden)
            self.blocks = nn.ModuleList(Block() for _ in range(o.layers))
            self.norm = nn.LayerNorm(o.hidden)
            self.head = nn.Linear(o.hidden, o.vocab, bias=False)
            self.head.weight = self.token.weight
            for name, value in self.named_parameters():
                if value.dim() == 2:
                    deep = name.endswith(("project.weight", "down.weight"))
                    nn.init.normal_(value, std=0.02 / (math.sqrt(2 * o.layers) if deep else 1))
                elif name.endswith("bias"):
                    nn.init.zeros_(value)

        def forward(self, tokens, targets):  # [B, T] each
            x = self.token(tokens) + self.position(torch.arange(o.seq))
            for block in self.blocks:
                x = block(x)
            logits = self.head(self.norm(x)).float()
            return functional.cross_entropy(logits.view(-1, o.vocab), targets.view(-1))

    torch.manual_seed(o.seed)
    return GPT()


def make_batches(torch, o, rank):
    """Returns sequences that step through a small alphabet with a constant stride."""
    generator = torch.Generator().manual_seed(o.seed * 1000 + rank)
    size = min(ALPHABET, o.vocab)
    shape = (BATCHES, o.micro_batch, 1)
    start = torch.randint(size, shape, generator=generator)
    stride = torch.randint(1, 4, shape, generator=generator)
    walk = (start + stride * torch.arange(o.seq + 1)) % size
    return [(w[:, :-1].contiguous(), w[:, 1:].contiguous()) for w in walk]


ADAMW = {"betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1, "fused": True}
CLIP = 1.0


def torch_step(torch, o, model):
    """Training step of none, ddp, zero1 and fsdp2."""
    if o.dtype == "bf16":
        model = model.to(torch.bfloat16)
    if o.peer in ("ddp", "zero1"):
        model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    elif o.peer.startswith("fsdp2"):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
        for part in [*model.blocks, model]:
            # Backward needs the root again immediately, so FSDP2 keeps it by default.
            free = o.peer == "fsdp2" and part is not model
            fully_shard(part, mesh=mesh, reshard_after_forward=free)
    parameters = list(model.parameters())
    if o.peer == "zero1":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        optimizer = ZeroRedundancyOptimizer(parameters, torch.optim.AdamW, lr=o.lr,
                                            parameters_as_bucket_view=True, **ADAMW)
    else:
        optimizer = torch.optim.AdamW(parameters, lr=o.lr, **ADAMW)
    clip = torch.nn.utils.clip_grad_norm_

    def step(tokens, targets):
        optimizer.zero_grad(set_to_none=True)
        loss = model(tokens, targets)
        loss.backward()
        clip(parameters, CLIP)
        optimizer.step()
        return loss.detach()

    return step


def deepspeed_step(torch, o, model):
    # DeepSpeed would otherwise select the GPU if there is one. This benchmark uses the CPU.
    os.environ["DS_ACCELERATOR"] = "cpu"
    os.environ.setdefault("LOCAL_SIZE", os.environ["LOCAL_WORLD_SIZE"])
    try:
        import deepspeed
    except ImportError as error:
        raise SystemExit(f"DeepSpeed cannot be imported ({error}); run: scripts/peers.sh") from error
    import logging

    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    # DeepSpeed's shared-memory all-reduce is for inference only; without this it would be compiled.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    config = {
        "train_micro_batch_size_per_gpu": o.micro_batch,
        "gradient_clipping": CLIP,
        "steps_per_print": 1 << 30,
        "bf16": {"enabled": o.dtype == "bf16"},
        "zero_optimization": {
            "stage": int(o.peer[-1]),
            "overlap_comm": True,
            "contiguous_gradients": True,
            "reduce_bucket_size": o.ds_bucket,
            "allgather_bucket_size": o.ds_bucket,
            "stage3_prefetch_bucket_size": o.ds_bucket,
        },
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=o.lr, **ADAMW)
    engine, _, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)

    def step(tokens, targets):
        loss = engine(tokens, targets)
        engine.backward(loss)
        engine.step()
        return loss.detach()

    return step


class Trainer:
    def __init__(self, torch, o):
        self.torch, self.o = torch, o
        self.distributed = torch.distributed
        self.rank, self.ranks = self.distributed.get_rank(), self.distributed.get_world_size()
        make = deepspeed_step if o.peer.startswith("deepspeed") else torch_step
        model = make_model(torch, o)
        self.parameters = sum(p.numel() for p in model.parameters())
        self.step = make(torch, o, model)
        self.batches = make_batches(torch, o, self.rank)
        self.done = 0
        self.rep = 0

    def train(self, steps):
        loss = None
        for _ in range(steps):
            loss = self.step(*self.batches[self.done % len(self.batches)])
            self.done += 1
        return loss

    def repetition(self, steps):
        """Measures steps that all ranks start together, until the last rank has finished."""
        self.distributed.barrier()
        begin = time.perf_counter()
        loss = self.train(steps)
        self.distributed.barrier()
        seconds = (time.perf_counter() - begin) / steps
        loss = loss.double()
        self.distributed.all_reduce(loss)
        tokens = self.ranks * self.o.micro_batch * self.o.seq
        self.rep += 1
        return {"peer": self.o.peer, "dtype": self.o.dtype, "rep": self.rep - 1, "steps": steps,
                "ms": seconds * 1e3, "tokens_per_s": tokens / seconds,
                "loss": loss.item() / self.ranks}

    def self_check(self):
        first = self.repetition(1)["loss"]
        answer = self.repetition(19)
        answer.update(first_loss=first, fell=answer["loss"] < 0.9 * first)
        return answer

    def serve(self, say):
        """Serves commands. Waits without spinning: rank 0 for a line, the others in a collective."""
        say({"ready": True, "peer": self.o.peer, "dtype": self.o.dtype, "ranks": self.ranks,
             "parameters": self.parameters})
        order = self.torch.zeros(1, dtype=self.torch.int64)
        while True:
            if self.rank == 0:
                words = sys.stdin.readline().split()
                good = len(words) == 2 and words[0] == "go" and words[1].isdigit()
                order.fill_(max(int(words[1]), 1) if good else 0)
                if words and not good and words != ["quit"]:
                    print(f"peer_train: unknown command {words}; must be go K or quit",
                          file=sys.stderr)
            self.distributed.broadcast(order, 0)
            if order.item() == 0:
                return
            say(self.repetition(int(order.item())))


def probe(torch):
    """Returns the GFLOP/s of one small matmul in each dtype, best of three, on one thread."""
    torch.set_num_threads(1)
    rates = {}
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        a = torch.ones(256, 256, dtype=dtype)
        torch.mm(a[:32, :32], a[:32, :32])
        seconds = math.inf
        for _ in range(3):
            begin = time.perf_counter()
            torch.mm(a, a)
            seconds = min(seconds, time.perf_counter() - begin)
        rates[name + "_gflops"] = 2 * 256 ** 3 / seconds * 1e-9
    import importlib.metadata

    try:
        deepspeed = importlib.metadata.version("deepspeed")
    except importlib.metadata.PackageNotFoundError:
        deepspeed = None
    return {**rates, "torch": torch.__version__, "deepspeed": deepspeed}


def main():
    o = arguments()
    lines = take_stdout()
    os.environ.setdefault("OMP_NUM_THREADS", str(o.threads))
    import torch

    if o.probe:
        print(json.dumps(probe(torch)), file=lines)
        return 0
    if "RANK" not in os.environ:
        raise SystemExit("peer_train: must be started by torchrun; see --help for the command")
    torch.set_num_threads(o.threads)
    # With --serve, a program may wait for a long time while others take their turns.
    torch.distributed.init_process_group("gloo", timeout=datetime.timedelta(hours=24))
    rank = torch.distributed.get_rank()

    def say(what):
        if rank == 0:
            print(json.dumps(what), file=lines, flush=True)

    status = 0
    trainer = Trainer(torch, o)
    if o.self_check:
        answer = trainer.self_check()
        say(answer)
        status = 0 if answer["fell"] else 1
    else:
        trainer.train(o.warmup)
        if o.serve:
            trainer.serve(say)
        else:
            for _ in range(o.reps):
                say(trainer.repetition(o.steps))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    return status


if __name__ == "__main__":
    sys.exit(main())
