#!/usr/bin/env python3
"""Kills random ranks of a training run that restarts by itself, and compares the end with a run that
was left alone: the parameters must have the same bits, and nothing may stay behind.

    kills.py build/bin/tessera --kills 100 [--seed 1]
"""
import argparse
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

# A run on each of these meshes in turn.
MESHES = ["--dp 2 --zero 2", "--dp 2 --zero 3 --layout bf16", "--tp 2", "--pp 2 --zero 1"]
COMMON = ("--layers 2 --hidden 64 --heads 4 --vocab 64 --seq 32 --global-batch 8 --micro-batch 2 "
          "--samples 0 --threads 1 --steps 120").split()


def processes(folder):
    """Ids of all processes that were told of this folder, launchers before ranks."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except (OSError, ValueError, IndexError):
            continue
        if any(folder in word for word in words):
            found.append((int(entry.name), parent))
    return found


def is_rank(pid):
    """Not the launcher's own helper."""
    try:
        return b"\0RANK=" in b"\0" + pathlib.Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def train(program, mesh, folder, kills, rng):
    """One run to its end with so many kills on the way; (hash of the parameters, kills done)."""
    metrics = pathlib.Path(folder) / "metrics.jsonl"
    command = [program, "train", *COMMON, *mesh.split(), "--metrics", str(metrics),
               "--save", str(pathlib.Path(folder) / "save"), "--save-every", "8",
               "--max-restarts", "1000"]
    log = open(pathlib.Path(folder) / "log", "w+")
    run = subprocess.Popen(command, stdout=log, stderr=log)
    done = 0
    deadline = time.monotonic() + 240 + 60 * kills
    next_kill = time.monotonic() + rng.uniform(0.5, 4)
    while run.poll() is None:
        if time.monotonic() > deadline:
            run.kill()
            log.seek(0)
            sys.exit(f"{mesh}: not done in time after {done} kills:\n{log.read()[-4000:]}")
        if done < kills and time.monotonic() >= next_kill:
            ranks = [pid for pid, parent in processes(folder)
                     if parent == run.pid and is_rank(pid)]
            if ranks:
                try:
                    os.kill(rng.choice(ranks), signal.SIGKILL)
                    done += 1
                except ProcessLookupError:
                    pass
            next_kill = time.monotonic() + rng.uniform(0.5, 4)
        time.sleep(0.005)
    log.seek(0)
    text = log.read()
    if run.returncode != 0:
        sys.exit(f"{mesh}: status {run.returncode} after {done} kills:\n{text[-4000:]}")
    time.sleep(0.2)
    if left := processes(folder):
        sys.exit(f"{mesh}: processes are left: {left}")
    if left := [name for name in os.listdir(pathlib.Path(folder) / "save") if name.startswith(".")]:
        sys.exit(f"{mesh}: files are left: {left}")
    summary = json.loads(metrics.read_text().splitlines()[-1])["summary"]
    return summary["params_hash"], done


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("--kills", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    rng = random.Random(given.seed)
    alone, total, turn = {}, 0, 0
    while total < given.kills:
        mesh = MESHES[turn % len(MESHES)]
        turn += 1
        if mesh not in alone:
            with tempfile.TemporaryDirectory(prefix="tessera-kills-") as folder:
                alone[mesh], _ = train(given.program, mesh, folder, 0, rng)
        with tempfile.TemporaryDirectory(prefix="tessera-kills-") as folder:
            wanted = min(4, given.kills - total)
            result, done = train(given.program, mesh, folder, wanted, rng)
        total += done
        if result != alone[mesh]:
            sys.exit(f"{mesh}: parameters {result} after {done} kills, wanted {alone[mesh]}")
        print(f"{total} of {given.kills} kills; {mesh}: the same bits after {done}", flush=True)


if __name__ == "__main__":
    main()
