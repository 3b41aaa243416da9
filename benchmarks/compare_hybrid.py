#!/usr/bin/env python3
"""Compares hybrid sharding with plain ZeRO-3 on two hosts with a slow link, measured and simulated.

The hosts are network namespaces of this machine (tests/comm/two_hosts.sh: root and iproute2), with --per-host
ranks each, connected by a link of --rate. A turn measures everything that is compared, one after the other:

1. the link: an all-reduce between the two hosts (tessera bench comm),
2. steps of all ranks without communication (--comm off), plain ZeRO-3, and one replica per host: --steps steps each,
   of which the first is not counted, --runs times one after another.

The simulator gets the rates of `tessera calibrate` on this machine with all ranks busy, scaled so that it predicts the
steps without communication, and the measured link. So it predicts how computation and communication combine, and load
of the machine that lasts longer than a turn changes both sides. Prints, for each turn and over all, the median and
least step times, those simulated from the median and from the least, and the ratios. By default there is one rank per
host, so that two cores suffice; with more ranks than cores, the ranks of both hosts compute on the same cores.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
HOSTS = ROOT / "tests/comm/two_hosts.sh"
ALONE = "no communication"
KINDS = {  # flags of the runs
    ALONE: ["--zero", "0", "--comm", "off"],
    "ZeRO-3": ["--zero", "3"],
    "a replica per host": ["--zero", "3", "--dp-replicate", "2"],
}
SUMMARIES = {"median": statistics.median, "least": min}


@dataclasses.dataclass
class Turn:
    steps: dict  # measured seconds of all steps, by kind
    simulated: dict  # seconds of a step, by summary and kind
    link: float  # bytes per second


def ratio(times):
    _, plain, hybrid = (times[kind] for kind in KINDS)
    return plain / hybrid


def summary(steps, name):
    return {kind: SUMMARIES[name](of) for kind, of in steps.items()}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tessera", default=str(ROOT / "build/bin/tessera"))
    parser.add_argument("--per-host", type=int, default=1, help="ranks per host (1)")
    parser.add_argument("--rate", type=float, default=200, help="rate of the link in Mbit/s (200)")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--runs", type=int, default=2, help="runs of each kind in a turn (2)")
    parser.add_argument("--steps", type=int, default=6, help="steps of a run (6)")
    parser.add_argument("--model", default="--layers 4 --hidden 256 --heads 8 --vocab 2048 --seq 128 --micro-batch 4",
                        help="flags of the model and its batch")
    parser.add_argument("--time", default="400ms", help="time of each measurement of calibrate (400ms)")
    given = parser.parse_args()
    given.model = given.model.split() + ["--layout", "fp32"]
    return given


def run(command, **more):
    done = subprocess.run(command, capture_output=True, text=True, **more)
    if done.returncode == 77:
        print(done.stdout.strip())
        sys.exit(0)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\nfailed:\n{done.stdout}{done.stderr}")
    return done.stdout


def on_hosts(given, per_host, command):
    return run([str(HOSTS), "--as", "torchrun", str(per_host), "--", given.tessera, *command],
               env={**os.environ, "TWO_HOSTS_RATE": f"{given.rate}mbit"})


# Step times of a run, without the first, and the bytes that a rank sends.
def train(given, kind, folder):
    metrics = pathlib.Path(folder) / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    on_hosts(given, given.per_host,
             ["train", *given.model, *KINDS[kind], "--backend", "two-level", "--threads", "1", "--samples", "0",
              "--steps", str(given.steps), "--metrics", str(metrics)])
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [line["step_s"] for line in lines[1:] if "step_s" in line], lines[-1]["summary"]["measured"]["sent"]


# Bytes per second and seconds of latency of the link, from all-reduces over both hosts.
def measure_link(given):
    big = 8 << 20
    text = on_hosts(given, 1, ["bench", "comm", "--backend", "two-level", "--ops", "all_reduce", "--sizes",
                               f"1KiB,{big >> 20}MiB", "--time", "2s", "--json"])
    seconds = {row["bytes"]: row["ms"] / 1e3 for row in json.loads(text[text.index("["):])}
    latency = seconds[1024] / 2  # a ring over two ranks has two steps
    return big / (seconds[big] - seconds[1024]), latency


# Hardware entry of this machine as one of two hosts, whose ranks share its cores.
def calibrate(given, folder):
    path = pathlib.Path(folder) / "machine.toml"
    run([given.tessera, "calibrate", "--ranks", str(2 * given.per_host), "--threads", "1", "--time", given.time,
         "--name", "host", "--out", str(path)])
    text = path.read_text()
    cores = int(re.search(r"^cores = (\d+)$", text, re.MULTILINE)[1])
    return with_values(text, {"per_node": given.per_host, "cores": max(1, cores // 2)})


def with_values(text, values):
    for key, value in values.items():
        text = re.sub(rf"^{key} = .*$", f"{key} = {value}", text, flags=re.MULTILINE)
    return text


# Returns the entry with computation that takes `factor` times as long.
def slower(text, factor):
    rates = {key: float(re.search(rf"^{key} = (.*)$", text, re.MULTILINE)[1]) / factor
             for key in ("peak_16bit", "peak_fp32", "memory_bandwidth")}
    return with_values(text, rates)


# Seconds of a step of each kind.
def simulate(given, text, folder):
    path = pathlib.Path(folder) / "hosts.toml"
    path.write_text(text)
    seconds = {}
    for kind, flags in KINDS.items():
        flags = [flag for flag in flags if flag not in ("--comm", "off")]
        command = [given.tessera, "simulate", *given.model, *flags, "--dp", str(2 * given.per_host), "--hardware-file",
                   str(path), "--hardware", "host", "--gpus-per-node", str(given.per_host), "--json"]
        result = json.loads(run(command))
        seconds[kind] = result["step"]
        if kind == ALONE:
            seconds[kind] = result["time"]["compute"] + result["time"]["optimizer"]
    return seconds


def take_turn(given, folder, machine, sent):
    bandwidth, latency = measure_link(given)
    steps = {kind: [] for kind in KINDS}
    for _ in range(given.runs):
        for kind in KINDS:
            times, sent[kind] = train(given, kind, folder)
            steps[kind] += times
    link = {"between": f"{{ bandwidth = {bandwidth}, latency = {latency} }}\nnics = 1"}
    text = with_values(machine, link)
    simulated = {}
    for name in SUMMARIES:
        factor = summary(steps, name)[ALONE] / simulate(given, text, folder)[ALONE]
        simulated[name] = simulate(given, slower(text, factor), folder)
    return Turn(steps, simulated, bandwidth)


def main():
    given = arguments()
    turns, sent = [], {}
    with tempfile.TemporaryDirectory() as folder:
        machine = calibrate(given, folder)
        for number in range(1, given.turns + 1):
            turn = take_turn(given, folder, machine, sent)
            turns.append(turn)
            ratios = ", ".join(f"{name} {ratio(summary(turn.steps, name)):.2f} (simulated "
                               f"{ratio(turn.simulated[name]):.2f})" for name in SUMMARIES)
            print(f"turn {number}: link {turn.link * 8 / 1e6:.0f} Mbit/s, ratio of steps: {ratios}", flush=True)
    print(f"\ntwo hosts of {given.per_host} rank{'s' * (given.per_host > 1)}, {given.rate:g} Mbit/s between them, "
          f"{os.cpu_count()} cores in all, {given.turns} turns of {given.runs} × {given.steps} steps; milliseconds\n")
    print("| | median | simulated | least | simulated | sent per rank: dp, dp_replicate |\n|---|---|---|---|---|---|")
    for kind in KINDS:
        cells = []
        for name, of in SUMMARIES.items():
            cells.append(of([step for turn in turns for step in turn.steps[kind]]))
            cells.append(of([turn.simulated[name][kind] for turn in turns]))
        print(f"| {kind} | {' | '.join(f'{1e3 * seconds:.0f}' for seconds in cells)} "
              f"| {sent[kind]['dp'] / 1e6:.1f} MB, {sent[kind]['dp_replicate'] / 1e6:.1f} MB |")
    for name in SUMMARIES:
        measured = statistics.median(ratio(summary(turn.steps, name)) for turn in turns)
        simulated = statistics.median(ratio(turn.simulated[name]) for turn in turns)
        print(f"\nZeRO-3 takes {measured:.2f} times as long as a replica per host by the {name} steps of a turn; "
              f"simulated {simulated:.2f} ({100 * (simulated / measured - 1):+.1f}%)")


if __name__ == "__main__":
    main()
