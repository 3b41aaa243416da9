#!/usr/bin/env python3
"""Runs a build, writes its output to a log, and shows one line of progress.

    progress.py NAME LOG COMMAND…

On a terminal the line is redrawn; otherwise a line is printed every 30 seconds. If the command fails,
the compiler's output is printed. Warnings are counted and the first ones printed.
"""
import re
import subprocess
import sys
import time

STEP = re.compile(r"^\[(\d+)/(\d+)\] ")
BETWEEN_LINES_S = 30
SHOWN_LINES = 80


def clock(seconds):
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


class Line:
    """Progress line: redrawn on a terminal, otherwise printed every 30 seconds."""

    def __init__(self, name):
        self.name = name
        self.terminal = sys.stdout.isatty()
        self.began = self.printed = time.monotonic()

    def show(self, done, total):
        now = time.monotonic()
        text = f"   {self.name}: {done} of {total} steps, {clock(now - self.began)}"
        if self.terminal:
            print(f"\r{text}\x1b[K", end="", flush=True)
        elif now - self.printed >= BETWEEN_LINES_S:
            print(text, flush=True)
            self.printed = now

    def end(self, text):
        took = clock(time.monotonic() - self.began)
        print(f"{chr(13) if self.terminal else ''}   {self.name}: {text}, {took}"
              f"{chr(27) + '[K' if self.terminal else ''}", flush=True)


def main():
    name, log_path, command = sys.argv[1], sys.argv[2], sys.argv[3:]
    line = Line(name)
    total = 0
    warnings = []
    with open(log_path, "w", encoding="utf-8", errors="replace") as log:
        build = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                 text=True, errors="replace")
        for text in build.stdout:
            log.write(text)
            log.flush()
            if "warning:" in text:
                warnings.append(text.rstrip())
            step = STEP.match(text)
            if step:
                total = int(step.group(2))
                line.show(int(step.group(1)), total)
        status = build.wait()
    if warnings:
        line.end(f"{len(warnings)} compiler warnings, all in {log_path}")
        print("\n".join(warnings[:5]))
    if status != 0:
        line.end(f"FAILED; the full log is {log_path}")
        with open(log_path, encoding="utf-8", errors="replace") as log:
            lines = log.read().splitlines()
        first = next((i for i, text in enumerate(lines) if text.startswith("FAILED:")),
                     max(0, len(lines) - SHOWN_LINES))
        print("\n".join(lines[first:first + SHOWN_LINES]), file=sys.stderr)
        return 1
    line.end(f"{total} steps" if total else "nothing to do")
    return 0


if __name__ == "__main__":
    sys.exit(main())
