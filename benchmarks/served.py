"""Runs programs that execute repetitions on demand, so that many can take turns on one machine.

compare_train.py describes the protocol. Needs only Python's standard library.
"""

import json
import os
import pathlib
import select
import signal
import subprocess
import time


class ProgramFailed(Exception):
    """A program exited or did not respond in time. The text is for the user."""


class Served:
    """A started program with its ranks."""

    def __init__(self, name, words, environment, log, cores=None, start_timeout=600):
        self.name, self.log = name, pathlib.Path(log)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._buffer = b""
        confine = (lambda: os.sched_setaffinity(0, cores)) if cores else None
        with open(self.log, "wb") as errors:
            # Its own session, so that its ranks can be killed with it and Ctrl-C reaches only this script.
            self.process = subprocess.Popen(
                [str(word) for word in words], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=errors, env=environment, start_new_session=True, preexec_fn=confine)
        try:
            self.ready = self._answer("ready", start_timeout)
        except BaseException:
            self.stop(grace=0)
            raise

    def go(self, steps, timeout=1800):
        """Runs one repetition and returns the program's result."""
        try:
            self.process.stdin.write(f"go {steps}\n".encode())
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it has exited; reading reports the status
        answer = self._answer("ms", timeout)
        if answer.get("steps") != steps or not answer["ms"] > 0:
            raise ProgramFailed(f"answered {answer} to go {steps}")
        return answer

    def quit(self):
        """Requests the exit and returns immediately."""
        try:
            self.process.stdin.write(b"quit\n")
            self.process.stdin.close()
        except (BrokenPipeError, ValueError):
            pass  # it has exited, or the exit was requested before

    def stop(self, grace=60, patience=20):
        """Requests the exit, then kills the program. Returns its status."""
        self.quit()
        for seconds, number in ((grace, signal.SIGTERM), (patience, signal.SIGKILL),
                                (patience, None)):
            try:
                status = self.process.wait(seconds)
                self.process.stdout.close()
                return status
            except subprocess.TimeoutExpired:
                if number is not None:
                    os.killpg(self.process.pid, number)
        return None

    def _answer(self, key, timeout):
        """Returns the next line that is a JSON object with this key. Ignores other output of libraries."""
        deadline = time.monotonic() + timeout
        while True:
            while b"\n" in self._buffer:
                line, self._buffer = self._buffer.split(b"\n", 1)
                if line.startswith(b"{"):
                    try:
                        answer = json.loads(line)
                    except ValueError:
                        continue
                    if key in answer:
                        return answer
            out = self.process.stdout.fileno()
            if not select.select([out], [], [], max(deadline - time.monotonic(), 0))[0]:
                raise ProgramFailed(f"no answer within {timeout:g} s; {self._last_words()}")
            piece = os.read(out, 1 << 16)
            if not piece:
                try:
                    status = self.process.wait(30)
                except subprocess.TimeoutExpired:
                    status = "(closed its output, but still runs)"
                raise ProgramFailed(f"ended with status {status}; {self._last_words()}")
            self._buffer += piece

    def _last_words(self):
        """Returns the line of its standard error that most likely has the reason."""
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines()]
        telling = [line for line in lines if "Error" in line or "cannot" in line
                   or line.startswith(("tessera", "train_bench"))]
        reason = telling[:1] or [line for line in lines if line][-1:]
        return f"its error is: {reason[0][:300]} (full log: {self.log})" if reason else "it printed no error"


def physical_cores(count):
    """Returns up to `count` of the allowed processors on different physical cores, because two hardware
    threads of one core share its arithmetic units."""
    chosen, taken = [], set()
    for cpu in sorted(os.sched_getaffinity(0)):
        path = pathlib.Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            siblings = path.read_text().strip()
        except OSError:
            siblings = str(cpu)
        if siblings not in taken:
            taken.add(siblings)
            chosen.append(cpu)
    return chosen[:count]
