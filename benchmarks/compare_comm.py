#!/usr/bin/env python3
"""Compares Tessera's collectives with those of Gloo and Open MPI on this machine.

The three take turns in many short rounds, so that other load on the machine affects all of them
equally. Prints the table with its targets, writes build/bench/comm.json, and updates the table in
docs/benchmarks.md. Needs only Python's standard library.
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
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PEERS_PYTHON = ROOT / ".peers-venv/bin/python"
KIB, MIB = 1 << 10, 1 << 20

# Programs started in a round for each of the three libraries: ranks, cores, operations, sizes.
RUNS = [
    {"ranks": 2, "ops": ["all_reduce"], "sizes": [4 * KIB, 25 * MIB, 100 * MIB]},
    {"ranks": 2, "ops": ["reduce_scatter", "all_gather"], "sizes": [25 * MIB]},
    {"ranks": 4, "cores": 2, "ops": ["all_reduce"], "sizes": [25 * MIB]},
]

# Rows of the table: operation, ranks, bytes, memory, and the target speedup over Gloo and Open MPI.
ROWS = [
    ("all_reduce", 2, 25 * MIB, "symmetric", 8, 2),
    ("all_reduce", 2, 100 * MIB, "symmetric", 5, 2),
    ("all_reduce", 2, 25 * MIB, "ordinary", 2.5, 1),
    ("all_reduce", 2, 4 * KIB, "symmetric", 50, 0.5),
    ("all_reduce", 4, 25 * MIB, "symmetric", 4, 3),
    ("reduce_scatter", 2, 25 * MIB, "symmetric", 1, 1),
    ("reduce_scatter", 2, 25 * MIB, "ordinary", 1, 1),
    ("all_gather", 2, 25 * MIB, "symmetric", 1, 1),
    ("all_gather", 2, 25 * MIB, "ordinary", 1, 1),
]
LIBRARIES = ["tessera", "gloo", "openmpi"]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="number of rounds (7)")
    parser.add_argument("--time", type=float, default=0.2, help="seconds of each measurement (0.2)")
    parser.add_argument("--quick", action="store_true",
                        help="3 rounds of 0.05 s; does not change docs/benchmarks.md")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--no-docs", action="store_true", help="do not change docs/benchmarks.md")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.time, options.no_docs = min(options.rounds, 3), 0.05, True
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: must be at least 1")
    return options


def mpirun(ranks, confined):
    """Returns the usual mpirun command. mpirun does not detect that it is confined to few cores, so yielding,
    its default when it detects that, is enabled explicitly."""
    words = ["mpirun", "-n", str(ranks)]
    if os.geteuid() == 0:
        words.append("--allow-run-as-root")
    if confined:
        words += ["--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]
    return words


def command(library, run, options):
    ops, sizes = ",".join(run["ops"]), ",".join(map(str, run["sizes"]))
    measured = ["--ops", ops, "--sizes", sizes, "--time", str(options.time)]
    ranks = str(run["ranks"])
    if library == "tessera":
        return [options.build / "bin/tessera", "bench", "comm", "--ranks", ranks, *measured,
                "--backend", "shm", "--memory", "both", "--json"]
    if library == "gloo":
        return [PEERS_PYTHON, ROOT / "benchmarks/peer_gloo.py", "--ranks", ranks, *measured]
    return [*mpirun(run["ranks"], "cores" in run), options.build / "bin/peer_mpi", *measured]


def measure(library, run, options):
    """Returns the results of one start by (library, op, ranks, bytes, memory)."""
    cores = sorted(os.sched_getaffinity(0))[:run.get("cores")]
    words = [str(word) for word in command(library, run, options)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300,
                          preexec_fn=lambda: os.sched_setaffinity(0, cores))
    if done.returncode != 0:
        raise SystemExit(f"bench: {' '.join(words)}\nended with status {done.returncode}\n"
                         f"{done.stderr[-4000:]}")
    return {(library, r["op"], r["ranks"], r["bytes"], r["memory"]): r
            for r in json.loads(done.stdout)}


def all_rounds(options):
    """Returns the results of all rounds by key."""
    rounds = {}
    total = options.rounds * len(RUNS) * len(LIBRARIES)
    done, began = 0, time.monotonic()
    for number in range(options.rounds):
        for run in RUNS:
            first = number % len(LIBRARIES)  # the order rotates
            for library in LIBRARIES[first:] + LIBRARIES[:first]:
                for key, figures in measure(library, run, options).items():
                    rounds.setdefault(key, []).append(figures)
                done += 1
                left = (time.monotonic() - began) / done * (total - done)
                bar = "#" * (30 * done // total)
                text = f"round {number + 1}/{options.rounds} |{bar:<30}| {left:4.0f} s left"
                if sys.stderr.isatty():
                    print(f"\r{text}", end="\n" if done == total else "", file=sys.stderr, flush=True)
                elif done % (len(RUNS) * len(LIBRARIES)) == 0:
                    print(text, file=sys.stderr, flush=True)
    return rounds


def summary(rounds):
    return {key: {"ms": statistics.median(r["ms"] for r in figures),
                  "min_ms": min(r["min_ms"] for r in figures)}
            for key, figures in rounds.items()}


def size_text(size):
    return f"{size // MIB} MiB" if size >= MIB else f"{size // KIB} KiB"


def milliseconds(value):
    return f"{value:.2f}" if value >= 1 else f"{value:.3g}" if value >= 0.1 else f"{value:.4f}"


def times(value):
    return f"{value:.0f}×" if value >= 100 else f"{value:.1f}×"


def table(summaries):
    rows = []
    for op, ranks, size, memory, over_gloo, over_mpi in ROWS:
        ours = summaries[("tessera", op, ranks, size, memory)]
        row = {"op": op, "ranks": ranks, "bytes": size, "memory": memory, "tessera": ours,
               "met": True}
        for peer, target in (("gloo", over_gloo), ("openmpi", over_mpi)):
            theirs = summaries[(peer, op, ranks, size, "ordinary")]
            ratio = theirs["ms"] / ours["ms"]
            row[peer] = dict(theirs, target=target, times=ratio,
                             times_of_minima=theirs["min_ms"] / ours["min_ms"])
            row["met"] = row["met"] and ratio >= target
        rows.append(row)
    return rows


def markdown(rows):
    lines = ["| f32 | memory | Tessera ms | Gloo ms | Open MPI ms | vs Gloo | vs Open MPI | |",
             "|---|---|---|---|---|---|---|---|"]
    for row in rows:
        cells = [f"{row['op']}, {row['ranks']} ranks{' on 2 cores' if row['ranks'] == 4 else ''}, "
                 f"{size_text(row['bytes'])}", row["memory"]]
        for library in LIBRARIES:
            figures = row[library]
            cells.append(f"{milliseconds(figures['ms'])} ({milliseconds(figures['min_ms'])})")
        for peer in ("gloo", "openmpi"):
            figures = row[peer]
            cells.append(f"{times(figures['times'])} ({times(figures['times_of_minima'])}), "
                         f"want {figures['target']:g}×")
        cells.append("met" if row["met"] else "**missed**")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def plain(rows):
    """Formats the table for a terminal."""
    head = ["", "memory", "Tessera", "Gloo", "Open MPI", "vs Gloo", "want", "vs Open MPI", "want", ""]
    cells = [head]
    for row in rows:
        cells.append([f"{row['op']} {size_text(row['bytes'])}, {row['ranks']} ranks", row["memory"],
                      *(milliseconds(row[library]["ms"]) + " ms" for library in LIBRARIES),
                      times(row["gloo"]["times"]), f"{row['gloo']['target']:g}×",
                      times(row["openmpi"]["times"]), f"{row['openmpi']['target']:g}×",
                      "met" if row["met"] else "MISSED"])
    widths = [max(len(line[i]) for line in cells) for i in range(len(head))]
    return "\n".join("  ".join(text.ljust(width) if i < 2 else text.rjust(width)
                               for i, (text, width) in enumerate(zip(line, widths)))
                     for line in cells)


def output_of(*words):
    try:
        return subprocess.run(words, capture_output=True, text=True, cwd=ROOT).stdout.strip()
    except OSError:
        return ""


def machine(options):
    model = re.search(r"Model name:\s*(.+)", output_of("lscpu"))
    memory = re.search(r"MemTotal:\s*(\d+)", pathlib.Path("/proc/meminfo").read_text())
    torch = sorted((ROOT / ".peers-venv").glob("lib/python3*/site-packages/torch-*.dist-info"))
    mpi = re.search(r"Open MPI\)?\s+(\S+)", output_of("mpirun", "--version"))
    return {
        "cpu": model.group(1) if model else platform.machine(),
        "architecture": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(int(memory.group(1)) / MIB) if memory else 0,
        "kernel": platform.release(),
        "tessera": output_of(str(options.build / "bin/tessera"), "--version"),
        "commit": output_of("git", "rev-parse", "--short", "HEAD"),
        "torch": torch[-1].name[len("torch-"):-len(".dist-info")] if torch else "?",
        "openmpi": mpi.group(1) if mpi else "?",
    }


def scheduling():
    """Returns a note if the script runs under chrt or nice, which all three libraries inherit."""
    policy = {os.SCHED_FIFO: "SCHED_FIFO", os.SCHED_RR: "SCHED_RR"}.get(os.sched_getscheduler(0))
    if policy:
        return f", all libraries under {policy}"
    nice = os.nice(0)
    return f", all libraries at nice {nice}" if nice else ""


def description(report):
    m = report["machine"]
    return (f"{report['date']}: {m['cpu']} ({m['architecture']}), {m['cores']} cores, "
            f"{m['memory_gib']} GiB, Linux {m['kernel']}. {m['tessera']}, commit {m['commit']}; "
            f"Gloo of torch {m['torch']}; Open MPI {m['openmpi']}. {report['rounds']} rounds"
            f"{report['scheduling']}; load average {report['load_before']} before and "
            f"{report['load_after']} after.")


def write_docs(report):
    page = ROOT / "docs/benchmarks.md"
    begin, end = "<!-- comm table: begin -->", "<!-- comm table: end -->"
    text = page.read_text()
    if begin not in text or end not in text:
        raise SystemExit(f"bench: {page} does not have the markers {begin} and {end}")
    before, after = text.split(begin)[0], text.split(end)[1]
    page.write_text(f"{before}{begin}\n{description(report)}\n\n{markdown(report['table'])}\n"
                    f"{end}{after}")


def main():
    options = arguments()
    for needed, how in ((options.build / "bin/tessera-torch", "make build"),
                        (options.build / "bin/peer_mpi", "install Open MPI (Debian: libopenmpi-dev openmpi-bin), then make build"),
                        (PEERS_PYTHON, "scripts/peers.sh")):
        if not needed.exists():
            raise SystemExit(f"bench: {needed} is missing; run: {how}")
    load = round(os.getloadavg()[0], 1)
    if load > 0.5:
        print(f"bench: the load average is {load}: other programs are running, and figures will "
              "be less certain", file=sys.stderr)
    rounds = all_rounds(options)
    report = {
        "date": datetime.date.today().isoformat(),
        "machine": machine(options),
        "rounds": options.rounds,
        "seconds_per_measurement": options.time,
        "scheduling": scheduling(),
        "load_before": load,
        "load_after": round(os.getloadavg()[0], 1),
        "table": table(summary(rounds)),
        "results": [figures for every in rounds.values() for figures in every],
    }
    target = options.build / "bench/comm.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(report, indent=1) + "\n")
    print(description(report))
    print(plain(report["table"]))
    print(f"Medians over rounds; all figures: {target}")
    if not options.no_docs:
        write_docs(report)
        print("Updated the table in docs/benchmarks.md.")


if __name__ == "__main__":
    main()
