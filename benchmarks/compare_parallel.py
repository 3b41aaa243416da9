#!/usr/bin/env python3
"""Compares tensor and pipeline parallelism of Tessera and PyTorch: 2 ranks of 1 thread, in turns.

    compare_parallel.py [--rounds 5] [--dtype fp32|bf16] [--python .peers-venv/bin/python]
Prints a table, updates docs/benchmarks.md and writes all results to build/bench/parallel.json: median
(and best) tokens/s over the rounds, the ratio of Tessera to PyTorch, and the pipeline bubble as measured
and by the schedule.
"""
import argparse
import datetime
import json
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGETS = {"tp": 1.0, "pp": 1.5}
NAMES = {"tp": "tensor parallelism, tp 2", "pp": "pipeline, pp 2, 1F1B, 8 micro-batches"}
# From dominated by overhead to dominated by matrix products.
WIDTHS = {64: dict(layers=4, hidden=64, heads=4, vocab=256, seq=64),
          256: dict(layers=4, hidden=256, heads=4, vocab=512, seq=128),
          512: dict(layers=4, hidden=512, heads=8, vocab=512, seq=128)}
EQUAL = 0.05  # allowed difference between the measured bubble and that of equal stages


def arguments():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--steps", type=int, help="steps per turn; default: fewer for wider models")
    p.add_argument("--widths", default="64,256,512", help="hidden sizes, some of 64,256,512")
    p.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    p.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    p.add_argument("--python", default=str(ROOT / ".peers-venv" / "bin" / "python"))
    p.add_argument("--quick", action="store_true", help="2 rounds; does not change docs/benchmarks.md")
    p.add_argument("--no-docs", action="store_true", help="do not change docs/benchmarks.md")
    o = p.parse_args()
    if o.quick:
        o.rounds, o.no_docs = min(o.rounds, 2), True
    try:
        o.widths = [int(word) for word in o.widths.split(",")]
    except ValueError:
        p.error(f'--widths {o.widths}: must be some of {", ".join(map(str, WIDTHS))}')
    if o.rounds < 1 or not set(o.widths) <= set(WIDTHS):
        p.error(f"--rounds must be at least 1, and --widths some of {', '.join(map(str, WIDTHS))}")
    return o


def checked(command, **more):
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, **more)
    if done.returncode != 0:
        sys.exit(f"bench: {' '.join(map(str, command))}\nended with {done.returncode}:\n"
                 f"{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout


def steps_of(o, width):
    return o.steps or {64: 40, 256: 10, 512: 4}[width]


def tessera(o, mode, width):
    micro, accumulation = (8, 1) if mode == "tp" else (2, 8)
    with tempfile.TemporaryDirectory() as folder:
        metrics = pathlib.Path(folder) / "m.jsonl"
        command = [o.build / "bin" / "tessera", "train", f"--{mode}", "2", "--threads", "1",
                   "--samples", "0", "--steps", str(steps_of(o, width) + 2), "--micro-batch",
                   str(micro), "--grad-accum", str(accumulation), "--metrics", str(metrics),
                   "--layout", o.dtype]
        for name, value in WIDTHS[width].items():
            command += ["--" + name, str(value)]
        checked(command)
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    summary = lines[-1]["summary"]
    rate = statistics.median(line["tokens_per_s"] for line in lines[2:-1])
    return {"tokens_per_s": rate, "bubble": summary.get("bubble"),
            "planned": summary.get("predicted_bubble")}


def torch(o, mode, width):
    command = [o.python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
               ROOT / "benchmarks" / "peer_parallel.py", "--mode", mode, "--steps",
               str(steps_of(o, width)), "--dtype", o.dtype]
    for name, value in WIDTHS[width].items():
        command += ["--" + name, str(value)]
    command += ["--batch", "8" if mode == "tp" else "16", "--micros", "1" if mode == "tp" else "8"]
    out = checked(command, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return json.loads(out.strip().splitlines()[-1])


def measure(o):
    results = [{"mode": mode, "width": width, "tessera": [], "torch": []}
               for mode in TARGETS for width in o.widths]
    for number in range(o.rounds):
        for result in results:
            both = [("tessera", tessera), ("torch", torch)]
            for name, run in both if number % 2 == 0 else both[::-1]:
                result[name].append(run(o, result["mode"], result["width"]))
        print(f"bench: round {number + 1} of {o.rounds}", file=sys.stderr, flush=True)
    return results


def judge(result):
    """Adds the ratios of the medians and of the best, and whether the targets are met."""
    rates = {library: [turn["tokens_per_s"] for turn in result[library]] for library in ("tessera", "torch")}
    result["median"] = {library: statistics.median(rates[library]) for library in rates}
    result["best"] = {library: max(rates[library]) for library in rates}
    result["ratio"] = result["median"]["tessera"] / result["median"]["torch"]
    result["best_ratio"] = result["best"]["tessera"] / result["best"]["torch"]
    result["met"] = result["ratio"] >= TARGETS[result["mode"]]
    bubbles = [turn["bubble"] for turn in result["tessera"] if turn["bubble"] is not None]
    if bubbles:
        result["bubble"] = statistics.median(bubbles)
        result["planned"] = result["tessera"][0]["planned"]


def table(results):
    lines = ["| | width | Tessera, tokens/s | PyTorch, tokens/s | × | | bubble |",
             "|---|---|---|---|---|---|---|"]
    for r in results:
        median, best = r["median"], r["best"]
        bubble = ""
        if "bubble" in r:
            near = abs(r["bubble"] - r["planned"]) <= EQUAL
            bubble = (f"{r['bubble']:.1%}, by the schedule {r['planned']:.1%}"
                      f"{'' if near else ': **off**'}")
        lines.append(f"| {NAMES[r['mode']]} | {r['width']} "
                     f"| {median['tessera']:,.0f} ({best['tessera']:,.0f}) "
                     f"| {median['torch']:,.0f} ({best['torch']:,.0f}) "
                     f"| {r['ratio']:.2f} ({r['best_ratio']:.2f}), want {TARGETS[r['mode']]:g} "
                     f"| {'met' if r['met'] else '**missed**'} | {bubble} |")
    return "\n".join(lines)


def machine():
    model = platform.processor() or platform.machine()
    try:
        out = subprocess.run(["lscpu"], capture_output=True, text=True).stdout
        model = re.search(r"Model name:\s*(.+)", out).group(1).strip()
    except (OSError, AttributeError):
        pass
    return f"{model} ({platform.machine()}), {os.cpu_count()} cores"


def write_docs(page, dtype, text):
    begin, end = f"<!-- parallel {dtype}: begin -->", f"<!-- parallel {dtype}: end -->"
    whole = page.read_text()
    if begin not in whole or end not in whole:
        sys.exit(f"bench: {page} does not have the markers {begin} and {end}, so it was not changed")
    head, tail = whole.split(begin)[0], whole.split(end)[1]
    page.write_text(f"{head}{begin}\n{text}\n{end}{tail}")


def main():
    o = arguments()
    load = os.getloadavg()[0]
    results = measure(o)
    for result in results:
        judge(result)
    about = (f"{datetime.date.today()}: {machine()}. {o.dtype}, {o.rounds} rounds; load average "
             f"{load:.1f} before and {os.getloadavg()[0]:.1f} after.")
    text = about + "\n\n" + table(results)
    print(text)
    report = o.build / "bench" / "parallel.json"
    report.parent.mkdir(parents=True, exist_ok=True)
    report.write_text(json.dumps({"about": about, "dtype": o.dtype, "results": results}, indent=1))
    if not o.no_docs:
        write_docs(ROOT / "docs" / "benchmarks.md", o.dtype, text)
        print("Updated the table in docs/benchmarks.md.")


if __name__ == "__main__":
    main()
