#!/usr/bin/env python3
"""Sends signals to training runs and their ranks, and limits their resources. Checks saved files,
exit status and output, and that resumed runs match an undisturbed run.

    signals.py build/bin/tessera [names of cases]
"""
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from training_run import ENDLESS, HANG, TrainingRun

COMMON = ("--layers 2 --hidden 64 --heads 4 --vocab 64 --seq 32 --global-batch 8 --micro-batch 2 "
          "--samples 0 --threads 1 --zero 2").split()
STEPS = 300


class Run(TrainingRun):
    def __init__(self, folder, *words, steps=STEPS, limits=()):
        save = [] if "--no-save" in words else ["--save", str(pathlib.Path(folder) / "save")]
        given = [word for word in words if word != "--no-save"]
        super().__init__("run", folder, [PROGRAM, "train", *COMMON, "--steps", str(steps), *given, *save], limits)

    def expect(self, *patterns):
        """Fails unless the output matches these patterns, in this order."""
        text, at = self.text(), 0
        for pattern in patterns:
            found = re.search(pattern, text[at:], re.MULTILINE)
            if not found:
                self.fail(f"expected {pattern!r} in the output")
            at += found.end()
        return self

    def wait_for_step(self, step):
        return self.wait_for(lambda: self.last_step() >= step, f"at step {step}")

    def end(self, status):
        found = self.wait()
        if found != status:
            self.fail(f"status {found}, expected {status}")
        return self

    def signal(self, number):
        self.process.send_signal(number)
        return self

    def rank(self, number):
        """Returns the process id of one of its ranks."""
        ranks = self.ranks()
        return ranks[number] if number in ranks else self.fail(f"there is no rank {number}")

    def losses(self):
        """Returns the losses by step; the last one if a step was repeated after a failure."""
        return {line["step"]: line["loss"] for line in self.lines() if "step" in line}

    def hash(self):
        return self.lines()[-1]["summary"]["params_hash"]

    def saved(self):
        return sorted(int(name.split("-")[1]) for name in os.listdir(self.save)
                      if name.startswith("step-")) if self.save.exists() else []


def same_bits(run, alone):
    if run.hash() != alone.hash():
        run.fail(f"parameters {run.hash()}, but {alone.hash()} in a run left alone")


def terminate(folder, alone):
    """SIGTERM saves and exits with 0, and the resumed run is bitwise equal."""
    run = Run(folder).wait_for_step(10).signal(signal.SIGTERM).end(0)
    run.expect(r"^saved: .*step-", r"^stopped after step \d+; --resume auto continues from there")
    step = max(run.losses())
    if run.saved() != [step] or not 10 <= step < STEPS:
        run.fail(f"saved {run.saved()} after step {step}")
    if not run.lines()[-1]["summary"]["interrupted"]:
        run.fail("the summary does not say that it was interrupted")
    again = Run(folder, "--resume", "auto").end(0)
    again.expect(rf"^resumed after step {step}: ")
    same_bits(again, alone)
    if again.losses() != alone.losses():
        again.fail("the losses differ from those of a run left alone")


def hang_up(folder, alone):
    """SIGHUP and SIGQUIT save as SIGTERM does, unless the run was started to ignore them."""
    for number in signal.SIGHUP, signal.SIGQUIT:
        with tempfile.TemporaryDirectory(prefix="tessera-signals-") as own:
            run = Run(own, steps=ENDLESS).wait_for_step(5).signal(number).end(0)
            run.expect(r"^saved: .*step-", r"^stopped after step \d+; --resume auto")
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        run = Run(folder, "--no-save").wait_for_step(5).signal(signal.SIGHUP).end(0)
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    same_bits(run, alone)


def save_by_time(folder, alone):
    """Without --save-every, all ranks save at times that rank 0 decides."""
    run = Run(folder, "--save-minutes", "0.0005", "--keep-last", "0").end(0)
    if len(run.saved()) < 2 or run.saved()[-1] != STEPS:
        run.fail(f"saved {run.saved()}, expected some on the way and {STEPS}")
    same_bits(run, alone)


def removed_folder(folder, alone):
    """A --save folder that is removed during the run is made and locked again."""
    run = Run(folder, steps=ENDLESS).wait_for_step(5)
    shutil.rmtree(run.save)
    run.signal(signal.SIGUSR1).wait_for(lambda: run.saved(), "saved again")
    run.wait_for(lambda: "It was made and locked again" in run.text(), "warned")
    other = subprocess.run([PROGRAM, "train", *COMMON, "--steps", str(ENDLESS), "--save", str(run.save),
                            "--resume", "auto"],
                           capture_output=True, text=True, timeout=HANG)
    if other.returncode != 2 or "is being written to by tessera train" not in other.stderr:
        run.fail(f"a second run was let in: {other.returncode} {other.stderr}")
    run.signal(signal.SIGTERM).end(0)


def resume_while_pruning(folder, alone):
    """--resume finds a checkpoint while the run in that folder removes old ones."""
    run = Run(folder, "--save-every", "1", "--keep-last", "1", steps=ENDLESS)
    run.wait_for(run.saved, "saved")
    for _ in range(10):  # refused for another reason, after the checkpoint was read
        other = subprocess.run([PROGRAM, "train", *COMMON, "--steps", str(ENDLESS), "--resume",
                                str(run.save), "--optimizer", "sgd"],
                               capture_output=True, text=True, timeout=HANG)
        if "was saved with --optimizer adamw" not in other.stderr:
            run.fail(f"output of the other run: {other.stderr}")
    run.signal(signal.SIGTERM).end(0)


def terminate_without_save(folder, alone):
    run = Run(folder, "--no-save", steps=ENDLESS).wait_for_step(5).signal(signal.SIGTERM).end(143)
    run.expect(r"^  loss .* parameters ", r"^stopped after step \d+; nothing was saved",
               r"^tessera train: stopped by a signal, with status 143")


def save_now(folder, alone):
    """SIGUSR1 saves and changes nothing else."""
    run = Run(folder).wait_for_step(10).signal(signal.SIGUSR1)
    run.wait_for(lambda: run.saved(), "saved")
    run.end(0)
    if len(run.saved()) != 2 or run.saved()[-1] != STEPS:
        run.fail(f"saved {run.saved()}, expected one on the way and {STEPS}")
    same_bits(run, alone)


def damaged(folder, alone):
    """A resumed run skips a damaged newest checkpoint, and reports it."""
    run = Run(folder, "--save-every", "10", steps=30).end(0)
    shard = run.save / "step-00000030" / "rank-00001.safetensors"
    content = bytearray(shard.read_bytes())
    content[-100] ^= 1
    shard.write_bytes(content)
    again = Run(folder, "--resume", "auto", steps=30).end(0)
    again.expect(r"^passed over: .*step-00000030: .*rank-00001", r"^resumed after step 20: ")
    if again.hash() != run.hash():
        again.fail(f"parameters {again.hash()}, but {run.hash()} before the damage")


REPORT = [r"^tessera train: rank 1 \(pid \d+\) was killed by SIGKILL after ",
          r"^  rank 0: rank 1 died .* in #\d+ \w+\(.*\) of group ",
          r"^  last step: \d+$",
          r"^  last good checkpoint: .*step-\d+$"]


def elastic(folder, alone):
    """After a rank is killed, there is one report, and the others continue on the same samples."""
    run = Run(folder, "--save-every", "10", "--elastic", "1:2", "--max-restarts", "3")
    run.wait_for_step(30)
    run.wait_for(lambda: run.saved(), "saved")
    os.kill(run.rank(1), signal.SIGKILL)
    run.end(0)
    run.expect(*REPORT, r"^tessera train: restart 1 of 3 on 1 rank, from .*step-\d+$",
               r"^resumed after step \d+: ")
    told = re.findall(r"rank 0: rank 1 died", run.text())
    if len(told) != 1:
        run.fail("the failure is told of more than once")
    for step, loss in alone.losses().items():
        if abs(run.losses()[step] - loss) > 1e-4 * abs(loss):
            run.fail(f"step {step}: loss {run.losses()[step]}, but {loss} on both ranks")


def too_few(folder, alone):
    run = Run(folder, "--save-every", "10", "--elastic", "2:2", "--max-restarts", "3",
              steps=ENDLESS)
    run.wait_for_step(20)
    run.wait_for(lambda: run.saved(), "saved")
    os.kill(run.rank(1), signal.SIGKILL)
    run.end(137)
    run.expect(*REPORT, r"^tessera train: too few ranks are left to continue")


def hang(folder, alone):
    """If a rank is stopped, the other reports its call and its stack, and continues later."""
    run = Run(folder, steps=ENDLESS).wait_for_step(20)
    stopped = run.rank(1)
    os.kill(stopped, signal.SIGSTOP)
    try:
        said = re.compile(r"^tessera train: rank 0: step \d+ has taken .* × the median of .*; "
                          r"last calls: .*dp: #\d+ \w+\(.*\)\n(    \S+\+0x[0-9a-f]+.*\n){3,20}",
                          re.MULTILINE)
        run.wait_for(lambda: said.search(run.text()), "told of the hang")
        step = max(run.losses())
    finally:
        os.kill(stopped, signal.SIGCONT)
    run.wait_for_step(step + 5).signal(signal.SIGTERM).end(0)


def pause(folder, alone):
    """A rank that is stopped for some seconds does not change the results."""
    run = Run(folder, "--no-save").wait_for_step(30)
    stopped = run.rank(1)
    os.kill(stopped, signal.SIGSTOP)
    time.sleep(3)  # the pause itself
    before = run.last_step()
    os.kill(stopped, signal.SIGCONT)
    run.end(0)
    if before >= STEPS:
        run.fail("the run was over before the pause")
    same_bits(run, alone)
    if run.losses() != alone.losses():
        run.fail("the losses differ from those of a run left alone")


def is_gone(pid):
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z"  # its new parent will collect it


def launcher_killed(folder, alone):
    """No rank outlives its launcher."""
    run = Run(folder, "--no-save", steps=ENDLESS).wait_for_step(5)
    ranks = [run.rank(0), run.rank(1)]
    if any(is_gone(rank) for rank in ranks):
        run.fail("the ranks are missing")
    run.signal(signal.SIGKILL).end(-signal.SIGKILL)
    deadline = time.monotonic() + HANG
    while not all(is_gone(rank) for rank in ranks):
        if time.monotonic() > deadline:
            run.fail("a rank still runs")
        time.sleep(0.01)


def few_files(folder, alone):
    """64 open files suffice for a small run, and a lower limit is reported before the start."""
    run = Run(folder, "--no-save", limits=[(resource.RLIMIT_NOFILE, (64, 64))]).end(0)
    same_bits(run, alone)
    for ranks, files in (2, 8), (64, 64):
        run = Run(folder, "--no-save", "--ranks", str(ranks), "--global-batch", "128",
                  steps=2, limits=[(resource.RLIMIT_NOFILE, (files, files))]).end(1)
        run.expect(rf"{ranks} ranks need about \d+ open files .* the limit is {files}\. .*ulimit -n")


def small_files(folder, alone):
    """A limit of file sizes causes an error, not a signal: shared memory counts as a file."""
    run = Run(folder, "--no-save", limits=[(resource.RLIMIT_FSIZE, (20_000, 20_000))]).end(1)
    run.expect(r"ulimit -f")


def small_metrics(folder, alone):
    """Metrics that cannot be written, here because of a limit of file sizes, do not end the run."""
    run = Run(folder, "--ranks", "1", "--no-save", limits=[(resource.RLIMIT_FSIZE, (20_000, 20_000))]).end(0)
    run.expect(r"warning: --metrics: .*ulimit -f.*\. Training continues",
               r"^--metrics: \d+ records could not be written$")
    if len(re.findall("warning: --metrics", run.text())) != 1:
        run.fail("the warning is repeated")


def crowd(folder, alone):
    """16 ranks run on any number of cores."""
    words = "--no-save", "--global-batch", "16", "--micro-batch", "1"
    many = Run(folder, "--ranks", "16", *words, steps=5).end(0).losses()
    few = Run(folder, "--ranks", "2", *words, steps=5).end(0)
    for step, loss in few.losses().items():
        if abs(many[step] - loss) > 1e-4 * abs(loss):
            few.fail(f"step {step}: loss {loss}, but {many[step]} on 16 ranks")


CASES = [terminate, hang_up, resume_while_pruning, terminate_without_save, save_by_time,
         removed_folder, save_now, damaged, elastic, too_few, hang, pause, launcher_killed, few_files,
         small_files, small_metrics, crowd]


def main():
    cases = [case for case in CASES if case.__name__ in sys.argv[2:] or len(sys.argv) == 2]
    with tempfile.TemporaryDirectory(prefix="tessera-signals-") as folder:
        alone = Run(folder, "--no-save").end(0)
        for case in cases:
            began = time.monotonic()
            with tempfile.TemporaryDirectory(prefix="tessera-signals-") as own:
                case(own, alone)
            print(f"{case.__name__}: passed ({time.monotonic() - began:.1f} s)", flush=True)


if __name__ == "__main__":
    PROGRAM = sys.argv[1]
    main()
