#!/usr/bin/env python3
"""Compares `tessera generate` with `transformers` on the CPU, in turns: tokens/s.

Both continue the same prompts greedily with the same random weights of a GPT-2 (default: 124M
parameters) in fp32 and bf16. The time includes the prompt and all generated tokens, but not loading.
Prints medians and the best.

    .interop-venv/bin/python benchmarks/compare_generate.py [--rounds N] [--tokens N] [--batch N …]
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompt-tokens", type=int, default=16)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--dtype", nargs="+", default=["fp32", "bf16"])
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--program", default=str(ROOT / "build/bin/tessera"))
    return parser.parse_args()


def main():
    args = arguments()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    import torch
    import transformers

    torch.set_num_threads(args.threads)
    transformers.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        config = transformers.GPT2Config(n_layer=args.layers)
        model = transformers.GPT2LMHeadModel(config).eval()
        model.save_pretrained(folder)
        models = {"fp32": model, "bf16": None}
        if "bf16" in args.dtype:
            models["bf16"] = transformers.GPT2LMHeadModel.from_pretrained(
                folder, dtype=torch.bfloat16).eval()
        print(f"GPT-2 of {model.num_parameters() / 1e6:.0f}M parameters, {args.threads} threads, "
              f"{args.prompt_tokens} + {args.tokens} tokens, torch {torch.__version__}, "
              f"transformers {transformers.__version__}")
        for dtype in args.dtype:
            for batch in args.batch:
                compare(args, folder, models[dtype], dtype, batch)


def compare(args, folder, model, dtype, batch):
    import torch

    prompts = torch.randint(0, 50000, (batch, args.prompt_tokens),
                            generator=torch.Generator().manual_seed(batch))
    pad = model.config.eos_token_id

    def theirs():
        began = time.perf_counter()
        with torch.inference_mode():
            out = model.generate(prompts, attention_mask=torch.ones_like(prompts), do_sample=False,
                                 max_new_tokens=args.tokens, min_new_tokens=args.tokens,
                                 pad_token_id=pad)
        seconds = time.perf_counter() - began
        return batch * args.tokens / seconds, out[:, args.prompt_tokens:].tolist()

    command = [args.program, "generate", "--from", folder, "--tokenizer", "ids", "--temperature",
               "0", "--tokens", str(args.tokens), "--batch", str(batch), "--dtype", dtype,
               "--threads", str(args.threads), "--ignore-end", "--json"]
    for row in prompts.tolist():
        command += ["--prompt", " ".join(map(str, row))]

    def ours():
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(done.stderr)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        summary = lines[-1]["summary"]
        seconds = summary["prompt_s"] + summary["write_s"]
        return batch * args.tokens / seconds, [line["tokens"] for line in lines[:-1]]

    theirs()  # warm-up: the first call includes one-time costs
    rates = {"tessera": [], "transformers": []}
    for _ in range(args.rounds):
        for name, run in (("tessera", ours), ("transformers", theirs)):
            rate, texts = run()
            rates[name].append(rate)
            if name == "tessera":
                own = texts
    same = sum(a == b for x, y in zip(own, texts) for a, b in zip(x, y))
    median = {name: statistics.median(all_) for name, all_ in rates.items()}
    print(f"{dtype} batch {batch}: tessera {median['tessera']:.1f} tokens/s (best "
          f"{max(rates['tessera']):.1f}), transformers {median['transformers']:.1f} (best "
          f"{max(rates['transformers']):.1f}): {median['tessera'] / median['transformers']:.2f} x; "
          f"{100 * same / (batch * args.tokens):.0f}% of the tokens equal", flush=True)


if __name__ == "__main__":
    main()
