#!/usr/bin/env python3
"""Compares the step times that `tessera plan` predicts for this machine with measured ones.

    compare_plan.py [--rounds 3] [--steps 12] [--build build]
Each round runs `tessera calibrate` with 2 and with 4 ranks, then trains each mesh, which predicts its step
with the entry for that number of ranks. Each round is compared separately, because the speed of a machine
changes over time, and the median of the ratios is reported. Ranks may share cores: calibrate runs all ranks
at once, so its rates include that. Prints a table, and writes all results to build/bench/plan.json. Exits
with status 0 even if a prediction is off by more than 10%, because timings are not tests.
"""
import argparse
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
WITHIN = 0.10
MODEL = ["--layers", "4", "--hidden", "256", "--heads", "4", "--vocab", "2048", "--seq", "128",
         "--micro-batch", "4", "--layout", "fp32"]
MESHES = [(2, "dp 2", ["--dp", "2"]),
          (2, "dp 2, ZeRO 3", ["--dp", "2", "--zero", "3"]),
          (2, "tp 2", ["--tp", "2"]),
          (2, "pp 2, 4 micro-batches", ["--pp", "2", "--grad-accum", "4"]),
          (4, "dp 4", ["--dp", "4"]),
          (4, "tp 2 x dp 2", ["--tp", "2", "--dp", "2"]),
          (4, "pp 2 x dp 2, 4 micro-batches", ["--pp", "2", "--dp", "2", "--grad-accum", "4"])]


def arguments():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--steps", type=int, default=12, help="steps per turn; the first two do not count")
    p.add_argument("--time", default="1", help="seconds per measurement of calibrate")
    p.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    p.add_argument("--quick", action="store_true", help="1 round of 6 steps")
    p.add_argument("--no-docs", action="store_true", help="accepted like in other benchmarks; this one writes no docs")
    o = p.parse_args()
    if o.quick:
        o.rounds, o.steps = 1, min(o.steps, 6)
    if o.rounds < 1 or o.steps < 3:
        p.error("--rounds must be at least 1 and --steps at least 3")
    return o


def checked(command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=900)
    if done.returncode != 0:
        sys.exit(f"bench: {' '.join(map(str, command))}\nended with {done.returncode}:\n"
                 f"{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout


def turn(o, mesh, entry, folder):
    tessera = o.build / "bin" / "tessera"
    hardware = ["--hardware-file", entry, "--hardware", "this-machine"]
    metrics = pathlib.Path(folder) / "m.jsonl"
    checked([tessera, "train", *MODEL, *mesh, "--threads", "1", "--samples", "0", "--steps",
             o.steps, "--metrics", metrics, *hardware])
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    metrics.unlink()
    steps = [line["step_s"] for line in lines if "step" in line][2:]
    # The prediction of train for this mesh and entry.
    predicted = lines[-1]["summary"]["predicted"]["step_s"]
    return {"median": statistics.median(steps), "least": min(steps), "predicted": predicted}


def main():
    o = arguments()
    turns = {name: [] for _, name, _ in MESHES}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(o.rounds):
            for ranks in (2, 4):
                entry = pathlib.Path(folder) / f"{ranks}.toml"
                checked([o.build / "bin" / "tessera", "calibrate", "--ranks", ranks, "--threads",
                         "1", "--time", o.time, "--out", entry])
                for mesh_ranks, name, mesh in MESHES:
                    if mesh_ranks == ranks:
                        turns[name].append(turn(o, mesh, entry, folder))
            print(f"plan: round {number + 1} of {o.rounds}", file=sys.stderr)
    print(f"\nSteps predicted after tessera calibrate and measured: {os.cpu_count()} cores, "
          f"{platform.machine()}, {o.rounds} rounds of {o.steps} steps; GPT of 4 layers of 256, "
          "fp32, 1 thread per rank\n")
    print(f"  {'ranks':<7}{'mesh':<31}{'median':>10}{'min':>10}{'predicted':>11}{'ratio':>8}"
          f"{'from':>7}{'to':>7}  within 10%")
    report = []
    for ranks, name, _ in MESHES:
        of = turns[name]
        ratios = [each["predicted"] / each["median"] for each in of]
        ratio = statistics.median(ratios)
        good = abs(ratio - 1) <= WITHIN
        report.append({"ranks": ranks, "mesh": name, "turns": of, "ratio": ratio, "within": good})
        print(f"  {ranks:<7}{name:<31}"
              f"{1e3 * statistics.median(each['median'] for each in of):>7.0f} ms"
              f"{1e3 * min(each['least'] for each in of):>7.0f} ms"
              f"{1e3 * statistics.median(each['predicted'] for each in of):>8.0f} ms"
              f"{ratio:>8.2f}{min(ratios):>7.2f}{max(ratios):>7.2f}  {'yes' if good else 'no'}")
    print(f"\n  {sum(each['within'] for each in report)} of {len(report)} within 10%; ratio: "
          "predicted / measured, median and range over the rounds")
    out = o.build / "bench"
    out.mkdir(parents=True, exist_ok=True)
    (out / "plan.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
