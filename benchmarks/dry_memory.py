#!/usr/bin/env python3
"""Measures the memory of one rank of N with `tessera train --backend dry`, for each ZeRO stage and N.

One process acts as rank 0: it allocates and computes what that rank would, on the GPU (--device cuda, the
default if there is one) or on the CPU. Prints a table of GB by category, with the planner's predictions;
exits with status 1 if a prediction is off by more than 3% of the peak or 1% of the state. Without a GPU and
without --device cpu it prints a note and exits with status 0.

  python3 benchmarks/dry_memory.py --model gpt2-xl --micro-batch 4 --ranks 1,8,64
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
STATE = ["params", "grads", "optimizer"]
SHOWN = [*STATE, "activations", "buffers", "temporary", "peak"]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="gpt2-xl")
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--seq", type=int, default=1024)
    parser.add_argument("--layout", default="bf16")
    parser.add_argument("--stages", default="0,1,2,3")
    parser.add_argument("--ranks", default="1,2,8,64")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--device", choices=["cuda", "cpu"], default=None)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--train-args", default="", help="more arguments for tessera train")
    parser.add_argument("--json", type=pathlib.Path, help="also write the results to this file")
    o = parser.parse_args()
    o.stages = [int(stage) for stage in o.stages.split(",")]
    o.ranks = [int(count) for count in o.ranks.split(",")]
    return o


def has_gpu():
    if shutil.which("nvidia-smi") is None:
        return False
    done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True)
    return done.returncode == 0 and "GPU" in done.stdout


def run(o, stage, ranks, folder):
    """Returns the summary of one run, and the loss and milliseconds of its last step."""
    metrics = folder / f"{stage}-{ranks}.jsonl"
    words = [o.build / "bin/tessera", "train", "--backend", "dry", "--ranks", ranks, "--device",
             o.device, "--zero", stage, "--model", o.model, "--seq", o.seq, "--micro-batch",
             o.micro_batch, "--layout", o.layout, "--steps", o.steps, "--samples", 0, "--lr",
             "1e-5", "--metrics", metrics, *o.train_args.split()]
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        return None, f"status {done.returncode}: {last[:300]}"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    summary = next(line["summary"] for line in lines if "summary" in line)
    return {"stage": stage, "ranks": ranks, "ms": lines[o.steps - 1]["step_s"] * 1e3,
            "loss": lines[o.steps - 1]["loss"], "predicted": summary["predicted"]["memory"],
            "measured": summary["measured"]["memory"]}, None


def table(rows):
    head = ["stage", "ranks", *SHOWN, "ms a step"]
    cells = [head]
    for row in rows:
        line = [str(row["stage"]), str(row["ranks"])]
        for name in SHOWN:
            want, got = row["predicted"].get(name), row["measured"].get(name)
            off = f" ({want / got - 1:+.1%})" if want and got else ""
            line.append(f"{got / 1e9:.3f}{off}" if got is not None else "–")
        cells.append([*line, f"{row['ms']:.1f}"])
    widths = [max(len(line[i]) for line in cells) for i in range(len(head))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths))
                     for line in cells)


def bad(row):
    """Returns the predictions that are off by too much."""
    found = []
    for names, share in ((STATE, 0.01), (["peak"], 0.03)):
        want = sum(row["predicted"].get(name, 0) for name in names)
        got = sum(row["measured"].get(name, 0) for name in names)
        if abs(want - got) > share * got:
            found.append(f"stage {row['stage']}, {row['ranks']} ranks: {'state' if len(names) > 1 else names[0]} "
                         f"predicted {want / 1e9:.3f} GB, measured {got / 1e9:.3f}")
    return found


def main():
    o = arguments()
    if o.device is None and not has_gpu():
        print("dry_memory: skipped: there is no GPU; --device cpu runs it on the CPU")
        return 0
    o.device = o.device or "cuda"
    rows, problems = [], []
    with tempfile.TemporaryDirectory() as name:
        for stage in o.stages:
            for ranks in o.ranks:
                began = time.monotonic()
                row, problem = run(o, stage, ranks, pathlib.Path(name))
                if problem:
                    problems.append(f"stage {stage}, {ranks} ranks: {problem}")
                    continue
                rows.append(row)
                problems += bad(row)
                print(f"stage {stage}, {ranks} ranks: {time.monotonic() - began:.0f} s",
                      file=sys.stderr, flush=True)
    print(f"{o.model}, {o.micro_batch} × {o.seq} tokens per rank, layout {o.layout}, {o.device}: GB of "
          f"rank 0 measured (predicted, against that)\n{table(rows)}")
    for problem in problems:
        print(f"dry_memory: {problem}")
    if o.json:
        o.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
