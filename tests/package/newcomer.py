#!/usr/bin/env python3
"""Does what a new user does with the installed package: runs an edited example on 4 ranks, then makes it fail
in three ways. Each time the message must explain what to do.

  newcomer.py TESSERA FIRST_STEP SAVE_AND_LOAD
"""

import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile


def check(good, problem):
    if not good:
        sys.exit(problem)


def run(*command, status):
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True,
                          stderr=subprocess.STDOUT, timeout=120)
    check(done.returncode in status, f"{command}: status is {done.returncode}, expected {status}\n{done.stdout}")
    return done.stdout


def learns(tessera, program):
    losses = {}
    for stage in "03":
        printed = run(tessera, "run", "-n", "4", "--no-prefix", "--", program, stage, status=[0])
        losses[stage] = re.findall(r"^step \d+  loss (\S+)$", printed, re.MULTILINE)
    check(losses["0"] == losses["3"], f"stages differ: {losses}")
    check(len(losses["0"]) == 10 and float(losses["0"][-1]) < float(losses["0"][0]), f"{losses}")


def wrong_flags(tessera, program):
    for words, texts in ((["run", "--rank", "4", "--", program], ["did you mean --ranks?", "tessera run --help"]),
                          (["run", "-n", "none", "--", program], ['got "none"', "must be an integer"]),
                          (["train", "--zero", "4"], ['got "4"', "must be 0 to 3", "tessera train --help"]),
                          (["trian"], ["did you mean train?"])):
        printed = run(tessera, *words, status=[2])
        check(all(text in printed for text in texts), f"{words} must print {texts}, but prints\n{printed}")
    printed = run(tessera, "run", "-n", "4", "--", program, "7", status=[1])
    check("stage 7 does not exist; must be 0" in printed and "tessera run: rank" in printed, printed)
    check("terminate called" not in printed, printed)


def killed_rank(tessera, program):
    job = subprocess.Popen([tessera, "run", "-n", "4", "--", program, "2"], stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True)
    for line in job.stdout:  # of 1000 steps, so there is time to kill a rank
        if "step 100 " in line:
            break
    ranks = pathlib.Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
    victim = next(pid for pid in ranks
                  if b"\0RANK=2\0" in b"\0" + pathlib.Path(f"/proc/{pid}/environ").read_bytes())
    os.kill(int(victim), signal.SIGKILL)
    printed = job.communicate(timeout=60)[0]
    check(job.returncode == 137, f"status is {job.returncode}, expected 137\n{printed}")
    check(f"rank 2 (pid {victim}) was killed by SIGKILL" in printed, printed)
    check(re.search(r"\[[013]\].*rank 2 died \(its connection closed\)", printed), f"no other rank names rank 2:\n{printed}")


def full_disk(tessera, program):
    """Fills a file system of 64 KiB in its own mount namespace. Returns a description."""
    with tempfile.TemporaryDirectory() as folder:
        inside = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"]), "sh", "-c",
                  f'mount -t tmpfs -o size=64k tmpfs "{folder}" && exec "$@"', "sh"]
        if subprocess.run([*inside, "true"], capture_output=True).returncode != 0:
            return "no full disk, because a small file system cannot be mounted here"
        printed = run(*inside, tessera, "run", "-n", "4", "--", program, folder, "50", "2", status=range(1, 256))
        check("No space left on device; free some space there, or write elsewhere" in printed
              and "tessera run: rank" in printed, printed)
        return "a full disk"


def main():
    tessera, first_step, save_and_load = sys.argv[1:]
    learns(tessera, first_step)
    wrong_flags(tessera, first_step)
    killed_rank(tessera, first_step)
    print(f"an edited example on 4 ranks, wrong flags, a killed rank, {full_disk(tessera, save_and_load)}")


if __name__ == "__main__":
    main()
