#!/usr/bin/env python3
"""Tensor and pipeline parallelism of Tessera beside PyTorch's, 2 ranks of 1 thread, in turns.

    compare_parallel.py [--rounds 5] [--python .peers-venv/bin/python] [--json out.json]
Prints a table: median and best tokens/s over the rounds, Tessera's over PyTorch's, and the bubble of
the pipeline as measured and as its schedule has it.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SIZES = dict(layers=4, hidden=256, heads=4, vocab=2048, seq=128)
WANTED = {"tp": 1.0, "pp": 1.5}


def tessera(program, mode, steps):
    micro, accumulation = (8, 1) if mode == "tp" else (2, 8)
    with tempfile.TemporaryDirectory() as folder:
        metrics = pathlib.Path(folder) / "m.jsonl"
        command = [program, "train", f"--{mode}", "2", "--threads", "1", "--samples", "0",
                   "--steps", str(steps), "--micro-batch", str(micro), "--grad-accum",
                   str(accumulation), "--metrics", str(metrics)]
        for name, value in SIZES.items():
            command += ["--" + name, str(value)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    summary = lines[-1]["summary"]
    rate = statistics.median(line["tokens_per_s"] for line in lines[2:-1])
    return rate, summary.get("bubble"), summary.get("predicted_bubble")


def torch(python, mode, steps):
    command = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
               str(ROOT / "benchmarks" / "peer_parallel.py"), "--mode", mode, "--steps",
               str(steps)]
    for name, value in SIZES.items():
        command += ["--" + name, str(value)]
    command += ["--batch", "8" if mode == "tp" else "16", "--micros", "1" if mode == "tp" else "8"]
    done = subprocess.run(command, check=True, capture_output=True, text=True,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})
    return json.loads(done.stdout.strip().splitlines()[-1])["tokens_per_s"]


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--steps", type=int, default=12)
    p.add_argument("--python", default=str(ROOT / ".peers-venv" / "bin" / "python"))
    p.add_argument("--program", default=str(ROOT / "build" / "bin" / "tessera"))
    p.add_argument("--json")
    a = p.parse_args()
    rates = {(who, mode): [] for mode in WANTED for who in ("tessera", "torch")}
    bubbles, planned = [], None
    for round_ in range(a.rounds):
        for mode in WANTED:
            for who in ("tessera", "torch") if round_ % 2 == 0 else ("torch", "tessera"):
                if who == "torch":
                    rates[who, mode].append(torch(a.python, mode, a.steps))
                else:
                    rate, bubble, planned_now = tessera(a.program, mode, a.steps)
                    rates[who, mode].append(rate)
                    if bubble is not None:
                        bubbles.append(bubble)
                        planned = planned_now
        print(f"bench: round {round_ + 1} of {a.rounds}", flush=True)
    print("\n| | Tessera, tokens/s | PyTorch, tokens/s | × | wanted | |\n|---|---|---|---|---|---|")
    for mode, name in (("tp", "tensor parallelism, tp 2"), ("pp", "pipeline, pp 2, 1F1B, 8 micro-batches")):
        ours, theirs = rates["tessera", mode], rates["torch", mode]
        ratio = statistics.median(ours) / statistics.median(theirs)
        best = max(ours) / max(theirs)
        print(f"| {name} | {statistics.median(ours):,.0f} ({max(ours):,.0f}) "
              f"| {statistics.median(theirs):,.0f} ({max(theirs):,.0f}) "
              f"| {ratio:.2f} ({best:.2f}) | {WANTED[mode]} "
              f"| {'met' if ratio >= WANTED[mode] else '**missed**'} |")
    if planned is not None:
        print(f"\nBubble of the pipeline: {statistics.median(bubbles):.1%} (least {min(bubbles):.1%}); "
              f"{planned:.1%} with equal stages and nothing but computation.")
    if a.json:
        pathlib.Path(a.json).write_text(json.dumps(
            {"rates": {f"{w} {m}": r for (w, m), r in rates.items()}, "bubbles": bubbles,
             "planned": planned}))


if __name__ == "__main__":
    main()
