"""A run of `tessera train`, for tests that disturb it: its process, output, ranks and metrics."""
import json
import pathlib
import resource
import subprocess
import sys
import time

ENDLESS = 1000000  # steps
HANG = 120  # seconds; only tells a hang from slowness


def lines_of(metrics):
    """Returns the records of a file of metrics; the last line may be half written."""
    try:
        return [json.loads(line) for line in metrics.read_text().split("\n")[:-1]]
    except FileNotFoundError:
        return []


class TrainingRun:
    def __init__(self, name, folder, command, limits=()):
        """Starts a command that has `metrics` and may have `save`. `limits`: arguments of setrlimit."""
        self.name, self.folder = name, pathlib.Path(folder)
        self.metrics, self.save = self.folder / "metrics.jsonl", self.folder / "save"
        with open(self.folder / "log", "w") as log:
            self.process = subprocess.Popen([*command, "--metrics", str(self.metrics)], stdout=log, stderr=log,
                                            preexec_fn=lambda: [resource.setrlimit(*limit) for limit in limits])

    def text(self):
        """Returns its output so far."""
        return (self.folder / "log").read_text(errors="replace").replace("\r", "\n")

    def fail(self, problem):
        if self.process.poll() is None:
            self.process.kill()
        sys.exit(f"{self.name}: {problem}. Its output:\n{self.text()[-6000:]}")

    def wait_for(self, condition, what):
        deadline = time.monotonic() + HANG
        while not condition():
            if self.process.poll() is not None:
                self.fail(f"ended with status {self.process.returncode} before {what}")
            if time.monotonic() > deadline:
                self.fail(f"not {what} within {HANG} s")
            time.sleep(0.005)
        return self

    def wait(self):
        """Waits for its end, and returns the exit status."""
        try:
            return self.process.wait(HANG)
        except subprocess.TimeoutExpired:
            return self.fail("does not end")

    def ranks(self):
        """Returns the process ids of its ranks by their numbers."""
        found = {}
        for entry in pathlib.Path("/proc").iterdir():
            try:
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                if parent != self.process.pid:
                    continue
                for word in (entry / "environ").read_bytes().split(b"\0"):
                    if word.startswith(b"RANK="):
                        found[int(word[5:])] = int(entry.name)
            except (OSError, ValueError, IndexError):
                continue
        return found

    def lines(self):
        return lines_of(self.metrics)

    def last_step(self):
        """Returns the last step in the metrics; ENDLESS if they are complete."""
        lines = self.lines()
        return lines[-1].get("step", ENDLESS) if lines else 0
