#!/usr/bin/env python3
"""Compares Tessera with PyTorch DDP, ZeroRedundancyOptimizer, FSDP2 and DeepSpeed 1-3, then with PyTorch's
tensor and pipeline parallelism and torch.distributed.checkpoint, on this machine.

    benchmarks/peers.py               everything: 1, 2 and 4 ranks, three sizes of model, 7 rounds
    benchmarks/peers.py --quick       a selection that takes ten minutes on 2 idle cores, 7 rounds

Training: same GPT, data and threads (1 per rank); all programs of a case are started once and then take
turns, as compare_train.py describes. A case is a model size on a number of ranks, always with the same number
of tokens per rank, so that time as a function of parameters or ranks is a power law. Reports for every
program the time of a step (median, min, spread of the rounds) and the memory of a rank (peak resident, and
proportional, which counts shared pages once). A program that fails or takes too long is omitted with the
reason, and the others continue; when --budget is spent, the remaining cases are listed. Results are saved
after every case in build/bench/peers-DTYPE.json; --table recreates the tables and the chart from that file.
Updates docs/benchmarks.md between the markers of the dtype, and docs/peers-DTYPE.svg. bf16 is useful only on
processors with bf16 instructions.
"""

import argparse
import datetime
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import time

import compare_comm
import compare_train
import peers_table
import served

ROOT = pathlib.Path(__file__).resolve().parent.parent
# The same number of tokens per rank in all sizes. `steps` per turn, about half a second.
SIZES = {
    "small": dict(layers=2, hidden=128, heads=4, vocab=1024, steps=12),
    "medium": dict(layers=4, hidden=256, heads=4, vocab=1024, steps=3),
    "large": dict(layers=6, hidden=512, heads=8, vocab=1024, steps=1),
}
TOKENS = {"seq": 128, "micro-batch": 2}
# The most informative first, because the budget may end before the last.
CASES = [(2, "medium"), (2, "small"), (2, "large"), (4, "small"), (4, "medium"), (4, "large"),
         (1, "medium"), (1, "small"), (1, "large")]
QUICK_CASES = CASES[:4]
STAGES = {0: ["ddp"], 1: ["zero1", "deepspeed-1"], 2: ["fsdp2-keep", "deepspeed-2"],
          3: ["fsdp2", "deepspeed-3"]}
PARTS = ["train", "parallel", "checkpoint"]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="number of rounds (7)")
    parser.add_argument("--quick", action="store_true",
                        help="2 ranks and one case of 4, a budget of 9 minutes")
    parser.add_argument("--budget", type=float, help="seconds after which no case is started")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--cases", help="such as 2:medium,4:small")
    parser.add_argument("--only", default="*", help="programs, as in compare_train.py")
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32", help="(fp32)")
    parser.add_argument("--extra-path", action="append", default=[], type=pathlib.Path,
                        help="folder of Python packages for the peers; see scripts/peers_extra.sh")
    parser.add_argument("--start-timeout", type=float, default=120, help="limit of the start in seconds")
    parser.add_argument("--turn-timeout", type=float, default=120, help="limit of a turn in seconds")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--python", default=str(compare_comm.PEERS_PYTHON))
    parser.add_argument("--no-docs", action="store_true", help="do not change docs/")
    parser.add_argument("--table", action="store_true", help="only recreate the tables from the last results")
    parser.add_argument("--json", type=pathlib.Path, help="(build/bench/peers-DTYPE.json)")
    o = parser.parse_args()
    o.cases = ([(int(c.split(":")[0]), c.split(":")[1]) for c in o.cases.split(",")] if o.cases
               else QUICK_CASES if o.quick else CASES)
    o.parts = o.parts.split(",")
    if o.rounds < 1 or not {s for _, s in o.cases} <= set(SIZES) or not set(o.parts) <= set(PARTS):
        parser.error(f"--rounds must be at least 1, --cases of {', '.join(SIZES)} such as 2:small,"
                     f" --parts of {', '.join(PARTS)}")
    o.budget = o.budget or (540 if o.quick else 3600)
    o.json = o.json or o.build / f"bench/peers-{o.dtype}.json"
    # Further options of compare_train.command().
    o.warmup, o.tessera_args, o.peer_heap = 2, "", "default"
    return o


def note(text):
    print(f"peers: {text}", file=sys.stderr, flush=True)


def descendants(pid):
    """Returns the memory of a process from /proc."""
    found, waiting = [], [pid]
    while waiting:
        one = waiting.pop()
        for path in pathlib.Path(f"/proc/{one}/task").glob("*/children"):
            try:
                children = [int(word) for word in path.read_text().split()]
            except OSError:
                continue
            found += children
            waiting += children
    return found


def memory_of(program, ranks):
    """Returns the mean memory of the ranks of a program in bytes. The largest processes are the ranks; the
    launcher is smaller."""
    held = []
    for pid in descendants(program.process.pid):
        try:
            status = pathlib.Path(f"/proc/{pid}/status").read_text()
            rollup = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        number = lambda text, key: next((int(line.split()[1]) * 1024 for line in text.splitlines()
                                         if line.startswith(key)), 0)
        held.append((number(status, "VmHWM:"), number(rollup, "Pss:")))
    held = sorted(held, reverse=True)[:ranks]
    if len(held) < ranks:
        return None
    return {"peak": statistics.mean(h[0] for h in held), "share": statistics.mean(h[1] for h in held)}


def programs_of(o, ranks):
    names = []
    for stage, peers in STAGES.items():
        if ranks == 1 and stage > 0:
            continue
        names.append((f"tessera-own-{stage}", stage))
        names += [(peer, stage) for peer in peers]
    return [(name, stage) for name, stage in names if compare_train.wanted(o, name)]


def measure_case(o, ranks, size, left_out):
    """Runs one model size on a number of ranks. Returns the turns of every program."""
    shape = {**SIZES[size], **TOKENS}
    steps = max(1, shape.pop("steps") * 2 // max(ranks, 2))
    o.ranks, o.shape = ranks, shape
    o.cores = served.physical_cores(ranks)
    running, found = {}, {}

    def leave_out(name, error):
        left_out[f"{name}, {ranks} ranks, {size}"] = str(error)
        note(f"{name} is left out: {error}")

    try:
        for name, stage in programs_of(o, ranks):
            ours = name.startswith("tessera-")
            try:
                running[name] = served.Served(
                    name, compare_train.command(o, name, stage, o.dtype),
                    dict(os.environ) if ours else compare_train.environment(o),
                    o.build / f"bench/logs/peers-{ranks}-{size}-{name}.log", o.cores,
                    start_timeout=o.start_timeout)
                found[name] = {"stage": stage, "ms": [],
                               "parameters": running[name].ready.get("parameters")}
            except served.ProgramFailed as error:
                leave_out(name, error)
        for number in range(o.rounds):
            turns = list(running)
            first = number % max(len(turns), 1)
            for name in turns[first:] + turns[:first]:
                try:
                    answer = running[name].go(steps, timeout=o.turn_timeout)
                    found[name]["ms"].append(answer["ms"])
                    found[name]["loss"] = answer["loss"]
                except served.ProgramFailed as error:
                    leave_out(name, error)
                    running.pop(name).stop(grace=0)
                    del found[name]
        for name, program in running.items():
            found[name]["memory"] = memory_of(program, ranks)
    finally:
        for program in running.values():
            program.quit()
        for program in running.values():
            program.stop(grace=10)
    return {"ranks": ranks, "size": size, "shape": shape, "steps": steps, "programs": found}


def sibling(o, part, left):
    """Runs another comparison script. Returns its table and the reason if it failed."""
    words = [sys.executable, str(ROOT / f"benchmarks/compare_{part}.py"), "--build", str(o.build),
             "--python", o.python]
    if o.quick:
        words += ["--quick"] + (["--widths", "256"] if part == "parallel" else [])
    if o.no_docs and not o.quick:
        words.append("--no-docs")
    note(f"{part}: {' '.join(words[1:])}")
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=max(60, left))
    except subprocess.TimeoutExpired:
        return None, f"not finished within the remaining {left:.0f} s"
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if line.strip()]
        return done.stdout or None, errors[-1][:300] if errors else f"status {done.returncode}"
    return done.stdout, None


def main():
    o = arguments()
    if o.table:
        return show(o, json.loads(o.json.read_text()))
    # On SIGTERM, stop the started programs too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    began = time.monotonic()
    left = lambda: o.budget - (time.monotonic() - began)
    about, why = compare_train.probe(o) if shutil.which(o.python) else (
        None, f"{o.python} is not there; run: scripts/peers.sh")
    report = {"date": datetime.date.today().isoformat(), "machine": compare_comm.machine(o),
              "peers_python": about, "dtype": o.dtype, "rounds": o.rounds, "quick": o.quick,
              "scheduling": compare_comm.scheduling(), "load_before": os.getloadavg()[0],
              "cases": [], "left_out": {}, "parts": {}}
    if why:
        report["left_out"]["peers"] = why
        note(why)
        o.only = "tessera*" if o.only == "*" else o.only

    def keep():
        report["load_after"] = os.getloadavg()[0]
        report["seconds"] = time.monotonic() - began
        o.json.parent.mkdir(parents=True, exist_ok=True)
        o.json.write_text(json.dumps(report, indent=1) + "\n")

    # Reserve time for the shorter parts, which come last.
    reserve = sum({"parallel": 75, "checkpoint": 75}.get(part, 0) for part in o.parts) if o.quick else 0
    took = 0
    for ranks, size in o.cases if "train" in o.parts else []:
        if left() - reserve < took:
            report["left_out"][f"{ranks} ranks, {size}"] = "the budget was spent"
            continue
        start = time.monotonic()
        note(f"{size} model on {ranks} ranks, {left():.0f} s left")
        report["cases"].append(measure_case(o, ranks, size, report["left_out"]))
        took = time.monotonic() - start
        keep()
    for part in [p for p in ("parallel", "checkpoint") if p in o.parts]:
        if left() < 20:
            report["left_out"][part] = "the budget was spent"
            continue
        report["parts"][part], problem = sibling(o, part, left() if o.quick else 3600)
        if problem:
            report["left_out"][part] = problem
        keep()
    keep()
    return show(o, report)


def show(o, report):
    text = peers_table.markdown(report)
    print(text)
    for part, table in report["parts"].items():
        print(f"\n{part}\n{table or ''}")
    for name, reason in report["left_out"].items():
        print(f"omitted: {name}: {reason}")
    print(f"\nAll figures: {o.json}")
    if not o.no_docs and report["cases"]:
        peers_table.write_docs(ROOT / "docs", report)
        print(f"Updated the tables in docs/benchmarks.md and docs/peers-{o.dtype}.svg.")
    return 1 if any(name.startswith("tessera") for name in report["left_out"]) else 0


if __name__ == "__main__":
    sys.exit(main())
