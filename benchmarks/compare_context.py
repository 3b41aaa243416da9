#!/usr/bin/env python3
"""Compares both kinds of context parallelism over slow links, measured and simulated.

Two ranks on two cores share the tokens of each sequence. `--link-bandwidth` of tessera train delays
their messages as a link of each --rate would, while the cores compute. All runs take turns,
--turns times; a turn is --steps steps, of which the first is not counted. The simulator uses the
measurements of `tessera calibrate` on this machine with both ranks busy, and the rate of the link.
The share of the peak that attention reaches is fitted to the ring without a slow link, which is no
prediction; all others are.

Other programs on this machine only add time, so the minimum is the better estimate if it is busy.
"""

import argparse
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
KINDS = ("ring", "ulysses")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tessera", default=str(ROOT / "build/bin/tessera"))
    parser.add_argument("--rates", type=float, nargs="+", default=[100, 50, 25],
                        help="rates of the link in MB/s (100 50 25)")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5, help="steps per turn (5)")
    parser.add_argument("--seq", type=int, default=4096, help="tokens of a sequence (4096)")
    parser.add_argument("--hidden", type=int, default=128, help="width of the model (128)")
    return parser.parse_args()


def model(given):
    return (f"--layers 1 --hidden {given.hidden} --heads 4 --vocab 64 --seq {given.seq} --micro-batch 1 "
            "--layout fp32").split()


def measure(given, kind, rate, folder):
    metrics = pathlib.Path(folder) / "metrics.jsonl"
    link = [] if rate is None else ["--link-bandwidth", f"{rate}MB/s"]
    command = [given.tessera, "train", *model(given), "--ranks", "2", "--cp", "2", "--cp-kind", kind,
               "--positions", str(given.seq), "--global-batch", "1", "--threads", "1", "--samples", "0", "--steps", str(given.steps),
               "--metrics", str(metrics), *link]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\nfailed:\n{done.stdout}{done.stderr}")
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [line["step_s"] for line in lines[1:] if "step_s" in line]


def calibrated(given, folder):
    """Returns the hardware entry of this machine as TOML."""
    path = pathlib.Path(folder) / "machine.toml"
    subprocess.run([given.tessera, "calibrate", "--ranks", "2", "--threads", "1", "--name", "machine",
                    "--time", "0.3s", "--out", str(path)], check=True, capture_output=True)
    return path.read_text()


def simulate(given, kind, rate, entry, efficiency, folder):
    text = re.sub(r"^attention_efficiency = .*$", f"attention_efficiency = {efficiency}", entry,
                  flags=re.MULTILINE)
    if rate is not None:
        # A slow link copies no more than a fast one, so the copies slow the cores down for a shorter
        # share of its time.
        slower = rate * 1e6 / float(re.search(r"^inside = { bandwidth = ([0-9.e+]+)", text, re.MULTILINE)[1])
        text = re.sub(r"^(inside = { bandwidth = )[0-9.e+]+", rf"\g<1>{rate * 1e6}", text,
                      flags=re.MULTILINE)
        text = re.sub(r"^interference = (.*)$", lambda found: f"interference = {float(found[1]) * slower}",
                      text, flags=re.MULTILINE)
    path = pathlib.Path(folder) / "link.toml"
    path.write_text(text)
    command = [given.tessera, "simulate", *model(given), "--hardware-file", str(path), "--hardware", "machine",
               "--cp", "2", "--cp-kind", kind, "--grad-accum", "1", "--gpus-per-node", "2", "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\nfailed:\n{done.stderr}")
    return json.loads(done.stdout)["step"]


def fitted_efficiency(given, seconds, entry, folder):
    """Returns the share of the peak with which the simulated ring takes this time."""
    low, high = 0.001, 1.0
    for _ in range(20):
        middle = (low * high) ** 0.5
        if simulate(given, "ring", None, entry, middle, folder) > seconds:
            low = middle
        else:
            high = middle
    return (low * high) ** 0.5


def main():
    given = arguments()
    runs = [(kind, rate) for rate in [None, *given.rates] for kind in KINDS]
    steps = {run: [] for run in runs}
    with tempfile.TemporaryDirectory() as folder:
        entry = calibrated(given, folder)
        for _ in range(given.turns):
            for run in runs:
                steps[run] += measure(given, *run, folder)
        efficiency = fitted_efficiency(given, min(steps["ring", None]), entry, folder)
        simulated = {run: simulate(given, *run, entry, efficiency, folder) for run in runs}
    print(f"2 ranks with a core each, {given.seq} tokens, width {given.hidden}; {given.turns} turns of "
          f"{given.steps} steps; attention at {100 * efficiency:.1f}% of the peak")
    print("| link | kind | measured ms, minimum (median) | simulated ms | |\n|---|---|--:|--:|--:|")
    for kind, rate in runs:
        of = steps[kind, rate]
        least, expected = min(of), simulated[kind, rate]
        off = "fitted" if (kind, rate) == ("ring", None) else f"{100 * (expected / least - 1):+.1f}%"
        link = "memory" if rate is None else f"{rate:g} MB/s"
        print(f"| {link} | {kind} | {1e3 * least:.1f} ({1e3 * statistics.median(of):.1f}) "
              f"| {1e3 * expected:.1f} | {off} |")


if __name__ == "__main__":
    main()
