#!/usr/bin/env python3
"""Compares hybrid sharding with plain ZeRO-3 on two hosts with a slow link, measured and simulated.

The hosts are network namespaces of this machine (tests/comm/two_hosts.sh: root and iproute2),
with --per-host ranks each, connected by a link of --rate. Both runs take turns, --turns times; a turn
is --steps steps, of which the first is not counted. The simulator uses the measurements of `tessera
calibrate` on this machine with all ranks busy, and the rate of the link.

Prints the median step time of each, their ratio, and the ratio predicted by the simulator. The machine
should be otherwise idle, because the ranks share its cores.
"""

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODEL = ("--layers 4 --hidden 256 --heads 8 --vocab 2048 --seq 128 --micro-batch 4 --layout fp32 "
         "--zero 3").split()


def arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tessera", default=str(ROOT / "build/bin/tessera"))
    parser.add_argument("--per-host", type=int, default=2, help="ranks per host (2)")
    parser.add_argument("--rate", type=float, default=200, help="rate of the link in Mbit/s (200)")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6, help="steps per turn (6)")
    return parser.parse_args()


def measure(given, replicas, folder):
    metrics = pathlib.Path(folder) / "metrics.jsonl"
    command = [str(ROOT / "tests/comm/two_hosts.sh"), "--as", "torchrun", str(given.per_host), "--", given.tessera,
               "train", *MODEL, "--backend", "two-level", "--threads", "1", "--samples", "0",
               "--steps", str(given.steps), "--dp-replicate", str(replicas),
               "--metrics", str(metrics)]
    done = subprocess.run(command, capture_output=True, text=True,
                          env={**os.environ, "TWO_HOSTS_RATE": f"{given.rate}mbit"})
    if done.returncode == 77:
        print(done.stdout.strip())
        sys.exit(0)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\nfailed:\n{done.stdout}{done.stderr}")
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [line["step_s"] for line in lines[1:] if "step_s" in line], lines[-1]["summary"]


# Hardware entry of this machine as one of two hosts, whose ranks share its cores.
def hardware(given, folder):
    ranks, path = 2 * given.per_host, pathlib.Path(folder) / "hosts.toml"
    subprocess.run([given.tessera, "calibrate", "--ranks", str(ranks), "--threads", "1", "--name",
                    "host", "--out", str(path)], check=True, capture_output=True)
    text = path.read_text()
    link = f"between = {{ bandwidth = {given.rate / 8 * 1e6}, latency = 1e-4 }}\nnics = 1"
    text = re.sub(r"^between = .*$", link, text, flags=re.MULTILINE)
    text = re.sub(r"^per_node = .*$", f"per_node = {given.per_host}", text, flags=re.MULTILINE)
    cores = int(re.search(r"^cores = (\d+)$", text, re.MULTILINE)[1])
    text = re.sub(r"^cores = .*$", f"cores = {max(1, cores // 2)}", text, flags=re.MULTILINE)
    path.write_text(text)
    return path


def simulate(given, replicas, entry):
    command = [given.tessera, "simulate", *MODEL, "--hardware-file", str(entry), "--hardware", "host",
               "--dp", str(2 * given.per_host), "--gpus-per-node", str(given.per_host),
               "--dp-replicate", str(replicas), "--json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main():
    given = arguments()
    steps, sent = {1: [], 2: []}, {}
    with tempfile.TemporaryDirectory() as folder:
        entry = hardware(given, folder)
        for _ in range(given.turns):
            for replicas in steps:
                times, summary = measure(given, replicas, folder)
                steps[replicas] += times
                sent[replicas] = summary["measured"]["sent"]
        simulated = {replicas: simulate(given, replicas, entry)["step"] for replicas in steps}
    print(f"two hosts of {given.per_host} ranks, {given.rate:g} Mbit/s between them, {given.turns} turns of "
          f"{given.steps} steps")
    print("| | measured ms, median (min) | simulated ms | sent per rank: dp, dp_replicate |\n|---|---|---|---|")
    for replicas, name in ((1, "ZeRO-3"), (2, "ZeRO-3, a replica per host")):
        of = steps[replicas]
        print(f"| {name} | {1e3 * statistics.median(of):.0f} ({1e3 * min(of):.0f}) | {1e3 * simulated[replicas]:.0f} "
              f"| {sent[replicas]['dp'] / 1e6:.1f} MB, {sent[replicas]['dp_replicate'] / 1e6:.1f} MB |")
    measured = statistics.median(steps[1]) / statistics.median(steps[2])
    predicted = simulated[1] / simulated[2]
    print(f"\nhybrid sharding is {measured:.2f} times as fast; simulated {predicted:.2f} "
          f"({100 * (predicted / measured - 1):+.1f}%)")


if __name__ == "__main__":
    main()
