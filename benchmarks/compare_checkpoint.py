#!/usr/bin/env python3
"""Compares Tessera's checkpoints with plain files and torch.distributed.checkpoint on this machine.

The same state (a GPT of 1 GB: fp32 parameters and two moments, 2 ranks) is written to the same folder in
turns: plain sequential writes, Tessera's save, torch's save. All are synced to the disk, and read back
after their pages were dropped. Then a training run measures the cost of a background save per step.
Prints a table, writes build/bench/checkpoint.json, and updates the table in docs/benchmarks.md.
"""

import argparse
import datetime
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

import compare_comm

ROOT = compare_comm.ROOT
# Targets: fraction of the plain rate, multiple of torch's rate, fraction of a step.
WANT_PLAIN, WANT_TORCH, WANT_STEP = 0.8, 1.5, 0.05
STATE = {"layers": 6, "hidden": 1024, "vocab": 8192}
# About one second per step on two slow cores, with 93 MB of state per rank.
TRAIN = {"layers": 4, "hidden": 512, "heads": 8, "vocab": 2048, "seq": 128, "micro-batch": 2,
         "grad-accum": 1, "steps": 24, "save-every": 4, "zero": 2, "ranks": 2, "threads": 1,
         "samples": 0}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="number of rounds (7)")
    parser.add_argument("--quick", action="store_true",
                        help="3 rounds with a tenth of the state; does not change docs/benchmarks.md")
    parser.add_argument("--dir", type=pathlib.Path,
                        help="folder for the files (the build folder); its disk is measured")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--python", type=pathlib.Path, default=compare_comm.PEERS_PYTHON,
                        help="Python with torch (that of .peers-venv)")
    parser.add_argument("--no-docs", action="store_true", help="do not change docs/benchmarks.md")
    options = parser.parse_args()
    options.state, options.train = dict(STATE), dict(TRAIN)
    if options.quick:
        options.rounds, options.no_docs = min(options.rounds, 3), True
        options.state.update(layers=2, hidden=512)
        options.train.update(layers=2, hidden=256, steps=9, **{"save-every": 3})
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: must be at least 1")
    return options


def call(words, **more):
    words = [str(word) for word in words]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, **more)
    if done.returncode != 0:
        raise SystemExit(f"bench: {' '.join(words)}\nended with status {done.returncode}\n"
                         f"{(done.stdout + done.stderr)[-4000:]}")
    return done.stdout


def flags(values):
    return [text for name, value in values.items() for text in (f"--{name}", str(value))]


def bench(options, folder, number, only):
    return json.loads(call([options.build / "bin/checkpoint_bench", "--dir", folder, "--rounds", 1,
                            "--first", number, "--only", only, "--json", *flags(options.state)]))


def plain_files(options, folder, number):
    return bench(options, folder, number, "plain")


def ours(options, folder, number):
    return bench(options, folder, number, "checkpoint")


def torch(options, folder, _):
    words = [options.python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2,
             ROOT / "benchmarks/peer_checkpoint.py", "--dir", folder, "--rounds", 1,
             *flags(options.state)]
    lines = call(words, env=dict(os.environ, OMP_NUM_THREADS="1")).splitlines()
    return json.loads([line for line in lines if line.startswith("{")][-1])


def all_rounds(options, folder):
    """Returns seconds by (library, operation)."""
    turns = {"plain": plain_files, "tessera": ours}
    if options.python.exists():
        turns["torch"] = torch
    else:
        print(f"bench: {options.python} is missing, so torch is not measured; run: scripts/peers.sh",
              file=sys.stderr)
    seconds, sizes = {}, {}
    for number in range(options.rounds):
        first = number % len(turns)  # the order rotates
        for library in (list(turns) * 2)[first:first + len(turns)]:
            answer = turns[library](options, folder, number)
            sizes[library] = {key: answer.pop(key) for key in ("bytes", "ranks", "tensors")}
            answer.pop("torch", None)
            for what, values in answer.items():
                seconds.setdefault((library, what), []).extend(values)
        print(f"bench: round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
    if len({json.dumps(size) for size in sizes.values()}) > 1:
        raise SystemExit(f"bench: the sizes of the states differ: {sizes}")
    return seconds, sizes["tessera"]


def training(options, folder):
    """Returns the cost of a background save: seconds that the caller is blocked, and the slowdown of the step
    during which the files are written, both relative to a step without a save."""
    metrics = folder / "metrics.jsonl"
    call([options.build / "bin/tessera", "train", "--save", folder / "run", "--metrics", metrics,
          *flags(options.train)])
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    steps = [line for line in lines if "step" in line]
    every = options.train["save-every"]
    # The first save allocates the memory of its copy, so it does not count.
    later = [line for line in steps if line["step"] > every]
    beside = [line["step_s"] for line in later if line["step"] % every == 1]
    without = statistics.median(line["step_s"] for line in later
                                if line["step"] % every not in (0, 1))
    held = [line.get("save_exposed_s") or 0 for line in later]
    held = [value for value in held if value > 0]
    figures = {"step_s": without, "beside": statistics.median(beside) / without - 1}
    if held:
        figures.update(held_s=statistics.median(held), held=statistics.median(held) / without,
                       held_least=min(held) / without)
    return figures


def table(seconds, size, train):
    """Returns the rows: operation, Tessera's rate and ratios. Rates in MB/s, medians and best."""
    def rate(library, what):
        values = seconds.get((library, what))
        if not values:
            return None
        return {"median": size["bytes"] / statistics.median(values) / 1e6,
                "best": size["bytes"] / min(values) / 1e6}

    def over(a, b):
        return a and b and {kind: a[kind] / b[kind] for kind in ("median", "best")}

    rows = []
    # Compared with the fastest plain write, and with reads through the page cache, which load uses too:
    # ranks that read the same bytes share them there.
    def fastest(*ways):
        return max((rate("plain", way) for way in ways), key=lambda r: r["median"])

    for what, plain in (("save", fastest("write", "early", "write_direct")),
                        ("load", fastest("read"))):
        mine, theirs = rate("tessera", what), rate("torch", what)
        row = {"what": what, "tessera": mine, "plain": plain, "torch": theirs,
               "of_plain": over(mine, plain), "of_torch": over(mine, theirs)}
        row["met"] = (row["of_plain"]["median"] >= WANT_PLAIN and
                      (theirs is None or row["of_torch"]["median"] >= WANT_TORCH))
        rows.append(row)
    rows.append({"what": "read past the cache", "tessera": None,
                 "plain": rate("plain", "read_direct"), "torch": None, "of_plain": None,
                 "of_torch": None, "met": None})
    rows.append({"what": "load, from memory", "tessera": rate("tessera", "load_cached"),
                 "plain": rate("plain", "read_cached"), "torch": None,
                 "of_plain": over(rate("tessera", "load_cached"), rate("plain", "read_cached")),
                 "of_torch": None, "met": None})
    rows.append({"what": "copy for a save in the background",
                 "tessera": rate("tessera", "snapshot"), "plain": None,
                 "torch": rate("torch", "async"), "of_plain": None,
                 "of_torch": over(rate("tessera", "snapshot"), rate("torch", "async")),
                 "met": None})
    met = train["held"] <= WANT_STEP if "held" in train else None
    return rows, met


def markdown(rows, train, met):
    def cell(figures, form):
        if not figures:
            return ""
        return f"{form.format(figures['median'])} ({form.format(figures['best'])})"

    verdict = {True: "met", False: "**missed**", None: ""}
    lines = ["| | Tessera, MB/s | plain files | torch | of plain | × torch | |",
             "|---|---|---|---|---|---|---|"]
    for row in rows:
        wants = row["met"] is not None
        of_plain, of_torch = cell(row["of_plain"], "{:.0%}"), cell(row["of_torch"], "{:.1f}")
        lines.append(
            f"| {row['what']} | {cell(row['tessera'], '{:,.0f}')} | {cell(row['plain'], '{:,.0f}')} "
            f"| {cell(row['torch'], '{:,.0f}')} "
            f"| {of_plain}{f', want {WANT_PLAIN:.0%}' if wants and of_plain else ''} "
            f"| {of_torch}{f', want {WANT_TORCH:g}' if wants and of_torch else ''} "
            f"| {verdict[row['met']]} |")
    text = f"Training with a step of {train['step_s']:.2f} s: "
    if "held" in train:
        text += (f"a background save blocks it for {train['held_s'] * 1e3:.0f} ms, "
                 f"{train['held']:.1%} of a step (least {train['held_least']:.1%}), "
                 f"want {WANT_STEP:.0%}: {verdict[met]}. ")
    text += f"The step during which the files are written takes {train['beside']:+.0%} compared with a step without a save."
    return "\n".join(lines) + "\n\n" + text


def description(report):
    m, size = report["machine"], report["state"]
    return (f"{report['date']}: {m['cpu']} ({m['architecture']}), {m['cores']} cores, "
            f"{m['memory_gib']} GiB, Linux {m['kernel']}, {report['file_system']}. {m['tessera']}, "
            f"commit {m['commit']}; torch {m['torch']}. {size['bytes'] / 1e6:,.0f} MB in "
            f"{size['tensors']} tensors, {size['ranks']} ranks. {report['rounds']} rounds; load "
            f"average {report['load_before']} before and {report['load_after']} after.")


def write_docs(page, report):
    begin, end = "<!-- checkpoint table: begin -->", "<!-- checkpoint table: end -->"
    text = page.read_text()
    if begin not in text or end not in text:
        raise SystemExit(f"bench: {page} does not have the markers {begin} and {end}")
    before, after = text.split(begin)[0], text.split(end)[1]
    page.write_text(f"{before}{begin}\n{description(report)}\n\n{report['markdown']}\n{end}{after}")


def main():
    options = arguments()
    for name in ("checkpoint_bench", "tessera"):
        if not (options.build / "bin" / name).exists():
            raise SystemExit(f"bench: {options.build / 'bin' / name} is missing; run: make build")
    load = round(os.getloadavg()[0], 1)
    if load > 0.5:
        print(f"bench: the load average is {load}: other programs are running, and figures will "
              "be less certain", file=sys.stderr)
    parent = options.dir or options.build
    folder = pathlib.Path(tempfile.mkdtemp(prefix="checkpoint-bench-", dir=parent))
    try:
        seconds, size = all_rounds(options, folder)
        train = training(options, folder)
        kind = compare_comm.output_of("stat", "-f", "-c", "%T", str(folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    rows, met = table(seconds, size, train)
    report = {
        "date": datetime.date.today().isoformat(),
        "machine": compare_comm.machine(options),
        "file_system": kind,
        "rounds": options.rounds,
        "load_before": load,
        "load_after": round(os.getloadavg()[0], 1),
        "state": size,
        "table": rows,
        "training": dict(train, met=met),
        "seconds": {f"{library} {what}": values for (library, what), values in seconds.items()},
        "markdown": markdown(rows, train, met),
    }
    target = options.build / "bench/checkpoint.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(report, indent=1) + "\n")
    print(description(report) + "\n\n" + report["markdown"])
    print(f"\nMedians over rounds (the best); all figures: {target}")
    if not options.no_docs:
        write_docs(ROOT / "docs/benchmarks.md", report)
        print("Updated the table in docs/benchmarks.md.")


if __name__ == "__main__":
    main()
