#!/usr/bin/env python3
"""Kills random ranks of training runs that restart by themselves, and compares each end with a run
that was left alone: the parameters must have the same bits, and nothing may stay behind.

    kills.py build/bin/tessera --kills 100 [--seed 1]
"""
import argparse
import collections
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
MESHES = ["--dp 2 --zero 2", "--dp 2 --zero 3 --layout bf16", "--tp 2", "--pp 2 --zero 1",
          "--dp 2 --zero 2 --experts 5 --ep 2 --balance-bias-rate 0.001"]
STEPS = 120
COMMON = ("--layers 2 --hidden 64 --heads 4 --vocab 64 --seq 32 --global-batch 8 --micro-batch 2 "
          f"--samples 0 --threads 1 --steps {STEPS}").split()
KILLS = 4  # of one run
HANG = 60  # seconds without a step


def processes(folder):
    """Returns ids and parents of all processes that have this folder in their arguments."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if any(folder in word for word in words):
            found.append((int(entry.name), parent_of(entry.name)))
    return found


def parent_of(pid):
    try:
        return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except (OSError, IndexError, ValueError):
        return -1


def is_rank(pid):
    """Returns False for the launcher's helper process."""
    try:
        return b"\0RANK=" in b"\0" + pathlib.Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def forgotten_memory(before):
    """Returns names of new shared memory that no process has mapped."""
    names = set(os.listdir("/dev/shm")) - before
    for entry in pathlib.Path("/proc").iterdir():
        if names and entry.name.isdigit():
            try:
                maps = (entry / "maps").read_text(errors="replace")
            except OSError:
                continue
            names = {name for name in names if f"/dev/shm/{name}" not in maps}
    return names


class Run:
    def __init__(self, program, mesh, folder):
        self.folder, self.mesh = folder, mesh
        self.metrics = pathlib.Path(folder) / "metrics.jsonl"
        self.save = pathlib.Path(folder) / "save"
        command = [program, "train", *COMMON, *mesh.split(), "--metrics", str(self.metrics),
                   "--save", str(self.save), "--save-every", "8", "--max-restarts", "1000"]
        self.log = open(pathlib.Path(folder) / "log", "w+")
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        self.seen = 0  # bytes of the metrics before this attempt
        self.stale = {}  # drafts that were there before it

    def fail(self, problem):
        self.process.kill()
        self.log.seek(0)
        sys.exit(f"{self.mesh}: {problem}:\n{self.log.read()[-4000:]}")

    def size(self):
        return self.metrics.stat().st_size if self.metrics.exists() else 0

    def step(self):
        """Returns the last step of this attempt; 0 while it starts."""
        if self.size() <= self.seen:
            return 0
        with open(self.metrics, "rb") as file:
            file.seek(self.seen)
            whole = file.read().split(b"\n")[:-1]  # the last line may be half written
        if not whole or not whole[-1].startswith(b"{"):  # a rest of what was there before
            return 0
        return json.loads(whole[-1]).get("step", STEPS)

    def drafts(self):
        """Returns unpublished checkpoints, by the number of the folder."""
        try:
            return {entry.inode(): entry.name for entry in os.scandir(self.save)
                    if entry.name.startswith(".") and entry.name != ".lock"}
        except FileNotFoundError:
            return {}

    def saving(self):
        return self.drafts().keys() - self.stale.keys()

    def phase(self):
        if self.saving():
            return "saving"
        step = self.step()
        return "start" if step == 0 else "steps" if step < STEPS else "end"

    def ranks(self):
        return [pid for pid, parent in processes(self.folder)
                if parent == self.process.pid and is_rank(pid)]

    def until(self, condition, pause=0.001):
        """Returns False if the run ended before."""
        deadline = time.monotonic() + HANG
        while not condition():
            if self.process.poll() is not None:
                return False
            if time.monotonic() > deadline:
                self.fail("hangs")
            time.sleep(pause)
        return True

    def kill_one(self, aim, start, rng):
        """Waits for the phase to aim at and kills a rank; the phase that it fell into, or nothing
        if the run ended before."""
        ranks = []

        def started():
            ranks[:] = self.ranks()
            return len(ranks) == 2

        if not self.until(started, 0.02):  # all processes are looked at
            return None
        self.seen, self.stale = self.size(), self.drafts()
        at = time.monotonic() + rng.uniform(0, start)
        if aim == "start":
            ready = self.until(lambda: time.monotonic() >= at)
        else:
            first = self.until(lambda: self.step() > 0) and self.step()
            # Not far, because more kills follow.
            wanted = rng.uniform(first, first + 0.8 * STEPS / KILLS)
            ready = self.until(lambda: self.step() >= min(wanted, STEPS - 8))
            if aim == "saving":
                ready = ready and self.until(self.saving)
            time.sleep(rng.uniform(0, 0.01))  # anywhere in a step
        victim = rng.choice(ranks)
        if not ready or parent_of(victim) != self.process.pid:
            return None
        phase = self.phase()
        os.kill(victim, signal.SIGKILL)
        self.until(lambda: parent_of(victim) != self.process.pid)
        return phase

    def end(self, before):
        try:
            self.process.wait(10 * HANG)
        except subprocess.TimeoutExpired:
            self.fail("does not end")
        if self.process.returncode != 0:
            self.fail(f"status {self.process.returncode}")
        time.sleep(0.2)
        if left := processes(self.folder):
            self.fail(f"processes are left: {left}")
        if left := self.drafts():
            self.fail(f"files are left: {left}")
        if left := forgotten_memory(before):
            self.fail(f"shared memory is left: {left}")
        return json.loads(self.metrics.read_text().splitlines()[-1])["summary"]["params_hash"]


def left_alone(program, mesh):
    """Returns the hash of the parameters, and the seconds from ranks' start to the first step."""
    with tempfile.TemporaryDirectory(prefix="tessera-kills-") as folder:
        before = set(os.listdir("/dev/shm"))
        run = Run(program, mesh, folder)
        run.until(lambda: len(run.ranks()) == 2, 0.02)
        began = time.monotonic()
        run.until(lambda: run.step() > 0)
        start = time.monotonic() - began
        return run.end(before), start


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("--kills", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    rng = random.Random(given.seed)
    alone, turn, phases = {}, 0, collections.Counter()
    while (total := phases.total()) < given.kills:
        mesh = MESHES[turn % len(MESHES)]
        turn += 1
        if mesh not in alone:
            alone[mesh] = left_alone(given.program, mesh)
        wanted, start = alone[mesh]
        with tempfile.TemporaryDirectory(prefix="tessera-kills-") as folder:
            before = set(os.listdir("/dev/shm"))
            run = Run(given.program, mesh, folder)
            aims = ["start", "steps", "steps", "saving"]
            rng.shuffle(aims)
            mine = collections.Counter()
            for aim in aims[:given.kills - total]:
                if phase := run.kill_one(aim, start, rng):
                    mine[phase] += 1
            result = run.end(before)
        if result != wanted:
            sys.exit(f"{mesh}: parameters {result} after {dict(mine)} kills, expected {wanted}")
        phases += mine
        print(f"{phases.total()} of {given.kills} kills; {mesh}: the same bits after {dict(mine)}",
              flush=True)
    print(f"{phases.total()} kills: " + ", ".join(f"{count} in {phase}"
                                                  for phase, count in sorted(phases.items())))


if __name__ == "__main__":
    main()
