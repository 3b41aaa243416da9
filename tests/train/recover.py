#!/usr/bin/env python3
"""Kills and stops random ranks of runs with --recover, and compares each with a replay: the same
numbers of replicas at the same steps, with a checkpoint at each change. All losses and the parameters
must have the same bits, and every step must be in the metrics once.

    recover.py build/bin/tessera --kills 100 [--seed 1] [--mesh WORDS]
"""
import argparse
import collections
import os
import pathlib
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from training_run import ENDLESS, TrainingRun, lines_of

# Words of a mesh, its replicas, and ranks of each. The data-parallel flags follow from these.
MESHES = [("--zero 0", 3, 1), ("--zero 2", 2, 2), ("--zero 3 --layout bf16", 2, 2),
          ("--zero 0 --tp 2", 2, 2), ("--zero 0 --pp 2", 2, 2)]
COMMON = ("--layers 2 --hidden 64 --heads 4 --vocab 64 --seq 32 --global-batch 24 --micro-batch 2 "
          "--lr-schedule constant --warmup 0 --lr 0.001 --dropout 0.1 --samples 0 --threads 1").split()
TIMEOUT = 8  # of ranks for each other, in seconds
KILLS = 4  # of one run
GENERATION = re.compile(r"^generation (\d+): (\d+) replicas? on \d+ ranks? \(processes ([\d ]+)\); continues "
                        r"after step (\d+)(?:, ([\d.]+) s after its end)?", re.MULTILINE)


def flags(mesh, replicas):
    words, _, each = mesh
    if "--zero 0" in words:
        return [*words.split(), "--dp", str(replicas)]
    shards = ["--dp", str(replicas * each)]
    return [*words.split(), *shards, "--dp-replicate", str(replicas)]


class Run(TrainingRun):
    def __init__(self, program, mesh, folder, words):
        self.mesh = mesh
        super().__init__(mesh, folder, [program, "train", *COMMON, *flags(mesh, mesh[1]), "--steps", str(ENDLESS),
                                        "--recover", "1000", "--peer-timeout", str(TIMEOUT), *words])

    def fail(self, problem):
        for pid in self.ranks().values():
            os.system(f"cat /proc/{pid}/wchan >&2; echo >&2")
        super().fail(problem)

    def generations(self):
        """Returns (number, replicas, processes, step, seconds) of each generation after the first."""
        found = [(int(n), int(r), tuple(map(int, p.split())), int(s), float(t) if t else None)
                 for n, r, p, s, t in GENERATION.findall(self.text())]
        return found

    def replicas_at_start(self):
        """Returns the replicas of the generation that began with step 1: not all after a loss before it."""
        words, _, each = self.mesh
        ranks = int(re.findall(r"tokens = (\d+) data-parallel rank", self.text())[-1])
        return ranks if "--zero 0" in words else ranks // each

    def handles_stop(self):
        """Returns True if no process is so new that SIGINT would kill it."""
        try:
            for pid in self.ranks().values():
                caught = re.search(r"^SigCgt:\s*(\w+)", pathlib.Path(f"/proc/{pid}/status").read_text(),
                                   re.MULTILINE)
                if not int(caught[1], 16) >> (signal.SIGINT - 1) & 1:
                    return False
        except OSError:
            return False
        return True

    def whole(self):
        generations = self.generations()
        return not generations or generations[-1][1] == self.mesh[1]

    def kill_one(self, aim, rng):
        """Kills or stops a rank."""
        if aim == "start":
            self.wait_for(lambda: len(self.ranks()) >= self.mesh[1] * self.mesh[2], "started")
            time.sleep(rng.uniform(0, 2))
        elif aim == "recovery":  # of the loss before it
            time.sleep(rng.uniform(0, 0.5))
        else:
            self.wait_for(self.whole, "whole")
            wanted = self.last_step() + rng.randint(2, 30)
            self.wait_for(lambda: self.last_step() >= wanted, "training")
            if aim == "save":
                self.wait_for(lambda: self.save.exists() and any(
                    entry.name.startswith(".tmp") for entry in os.scandir(self.save)), "saving")
            time.sleep(rng.uniform(0, 0.01))
        ranks = self.ranks()
        victims = sorted(ranks)
        if aim == "recovery" and (generations := self.generations()) and generations[-1][1] == 1:
            # Another loss of the only whole replica ends the run.
            victims = [each for each in victims if each not in generations[-1][2]] or victims[:0]
        if not victims:
            return False
        victim = rng.choice(victims)
        os.kill(ranks[victim], signal.SIGSTOP if aim == "stop" else signal.SIGKILL)
        return True

    def end(self):
        self.wait_for(self.whole, "whole")
        wanted = self.last_step() + 5
        self.wait_for(lambda: self.last_step() >= wanted, "training after the last loss")
        self.wait_for(self.handles_stop, "ready to stop")
        self.process.send_signal(signal.SIGINT)
        status = self.wait()
        if status not in (0, 130):
            self.fail(f"status {status}")
        if "resumed after" in self.text():
            self.fail("a checkpoint was read")
        lines = self.lines()
        steps = [line["step"] for line in lines if "step" in line]
        if steps != list(range(1, len(steps) + 1)):
            self.fail(f"steps {steps}")
        losses = {line["step"]: line["loss"] for line in lines if "step" in line}
        return losses, lines[-1]["summary"]["params_hash"]


def replay(program, run, last, folder):
    """Returns losses and the hash of the parameters."""
    metrics, save = pathlib.Path(folder) / "metrics.jsonl", pathlib.Path(folder) / "save"
    changes = [(0, run.replicas_at_start())] + [(step, replicas) for _, replicas, _, step, _ in run.generations()]
    segments = [(replicas, end) for (step, replicas), (end, _) in zip(changes, changes[1:] + [(last, 0)])
                if end > step]
    for replicas, end in segments:
        done = subprocess.run(
            [program, "train", *COMMON, *flags(run.mesh, replicas), "--steps", str(end), "--metrics",
             str(metrics), "--save", str(save), "--resume", "auto", "--no-async-save"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            sys.exit(f"replay of {replicas} replicas to step {end}: {done.stdout[-3000:]}")
    lines = lines_of(metrics)
    losses = {line["step"]: line["loss"] for line in lines if "step" in line}
    return losses, lines[-1]["summary"]["params_hash"], segments


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("--kills", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mesh", type=int, default=-1)
    given = parser.parse_args()
    rng = random.Random(given.seed)
    meshes = MESHES if given.mesh < 0 else [MESHES[given.mesh]]
    turn, kills, pauses = 0, collections.Counter(), []
    while kills.total() < given.kills:
        mesh = meshes[turn % len(meshes)]
        turn += 1
        with tempfile.TemporaryDirectory(prefix="tessera-recover-") as folder:
            saves = turn % 2 == 0
            words = ["--spares", "1"] if turn % 3 == 0 else []
            if saves:
                words += ["--save", str(pathlib.Path(folder) / "save"), "--save-every", "7"]
            run = Run(given.program, mesh, folder, words)
            aims = ["step", "recovery", "stop", "save" if saves else "step", "start"]
            first = rng.choice(aims[1:])
            for aim in ([first] if first == "start" else []) + aims[:min(KILLS, given.kills - kills.total())]:
                if run.kill_one(aim, rng):
                    kills[aim] += 1
            losses, wanted = run.end()
            pauses += [pause for *_, pause in run.generations() if pause is not None]
            with tempfile.TemporaryDirectory(prefix="tessera-recover-") as other:
                again, result, segments = replay(given.program, run, len(losses), other)
            if again != losses or result != wanted:
                different = [step for step in losses if losses[step] != again.get(step)]
                run.fail(f"parameters {wanted}, replay {result}; segments {segments}; steps that differ: "
                         f"{different[:5]}")
            print(f"{kills.total()} of {given.kills} losses; {' '.join(flags(mesh, mesh[1]))}: the same bits "
                  f"as the replay of {segments}", flush=True)
    print(f"{kills.total()} losses ({dict(kills)}), {len(pauses)} changes of members: median "
          f"{statistics.median(pauses):.2f} s, longest {max(pauses):.2f} s without a step")


if __name__ == "__main__":
    main()
