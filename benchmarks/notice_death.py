#!/usr/bin/env python3
"""Measures the time until the other ranks of a run exit after one rank is killed.

    python3 benchmarks/notice_death.py [--program build/bin/tessera] [--ranks 4] [--rounds 10]

Each round starts a training run, waits for its first steps, kills a rank with SIGKILL and waits until the
others have reported it and exited. Prints the time from the kill to the exit of the last rank.
"""
import argparse
import os
import pathlib
import select
import signal
import statistics
import subprocess
import tempfile
import time

DEADLINE_S = 120  # generous, for slow machines


def ranks_of(launcher):
    """Returns the process IDs of a launcher's ranks by rank."""
    children = pathlib.Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    ranks = {}
    for child in children:
        try:
            environment = pathlib.Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        rank = next((int(e[5:]) for e in environment if e.startswith(b"RANK=")), None)
        if rank is not None:
            ranks[rank] = int(child)
    return ranks


def await_steps(metrics, run):
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end and run.poll() is None:
        if metrics.exists() and len(metrics.read_text().splitlines()) >= 3:
            return
        time.sleep(0.02)
    raise SystemExit("the run did not complete any steps")


def one_round(options, victim):
    with tempfile.TemporaryDirectory() as folder:
        metrics = pathlib.Path(folder) / "metrics.jsonl"
        run = subprocess.Popen(
            [options.program, "train", "--ranks", str(options.ranks), "--steps", "1000000",
             "--layers", "2", "--hidden", "64", "--heads", "2", "--threads", "1",
             "--metrics", str(metrics)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            await_steps(metrics, run)
            ranks = ranks_of(run.pid)
            if sorted(ranks) != list(range(options.ranks)):
                raise SystemExit(f"found ranks {sorted(ranks)}, expected {options.ranks}")
            others = {os.pidfd_open(pid) for rank, pid in ranks.items() if rank != victim}
            began = time.monotonic()
            os.kill(ranks[victim], signal.SIGKILL)
            while others:
                ended, _, _ = select.select(others, [], [], DEADLINE_S)
                if not ended:
                    raise SystemExit(f"{len(others)} ranks still run {DEADLINE_S} s after the kill")
                for fd in ended:
                    others.remove(fd)
                    os.close(fd)
            return time.monotonic() - began
        finally:
            run.terminate()
            run.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default="build/bin/tessera")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    times = [one_round(options, i % options.ranks) * 1e3 for i in range(options.rounds)]
    print(f"{options.ranks} ranks, {options.rounds} kills: the others had ended after "
          f"{statistics.median(times):.0f} ms (median), {min(times):.0f} to {max(times):.0f}")


if __name__ == "__main__":
    main()
