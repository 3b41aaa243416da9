#!/usr/bin/env python3
"""Runs commands with random flags and values, and checks how they exit: with 0, or with 1 or 2 and a
message, never by a signal, an exception or a hang.

    command_lines.py build/bin/tessera [--lines 150] [--seed 1]
"""
import argparse
import random
import re
import subprocess
import sys
import tempfile

HANG = 120  # seconds; only tells a hang from slowness
LONGEST = 20_000  # bytes of a message
VALUES = ["", "0", "-1", "1", "2", "3", "7", "64", "1e300", "-1e300", "1e-300", "nan", "inf", "-0",
          "9223372036854775807", "9223372036854775808", "18446744073709551616", "0x10", "1.5",
          "2GiB", "20us", "1GB/s", "13B", "1,2,3", "auto", "all", "none", "true", "h100", "gpt2-xl",
          "llama3-70b", "bf16", "fp32", "nonsense", "%s%n", "\x1b[31mred", "é", "\udcff", "a" * 5000,
          "--help", "-", ".", "/dev/null", "/no/such/file"]
# Additional words of each line, and flags to omit because they write, serve or search.
COMMANDS = {
    "plan": [],
    "simulate": [],
    "explain": ["zero"],
    "train": ["--print-config"],
}
LEFT_OUT = {"--help", "--out", "--search", "--sweep", "--questions", "--score", "--dashboard",
            "--svg", "--trace", "--metrics", "--tensorboard", "--save"}


def flags_of(program, command):
    shown = subprocess.run([program, command, "--help"], capture_output=True, text=True, check=True,
                           timeout=HANG)
    return sorted(set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", shown.stdout)) - LEFT_OUT)


def problem_of(program, line, folder):
    try:
        ended = subprocess.run([program, *line], capture_output=True, timeout=HANG, cwd=folder,
                               stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return "hangs"
    said = ended.stderr.decode(errors="replace")
    if ended.returncode not in (0, 1, 2):
        return f"ended with {ended.returncode}: {said[-2000:]}"
    if ended.returncode != 0 and not said.strip():
        return f"ended with {ended.returncode} and wrote nothing to stderr"
    if len(said) > LONGEST:
        return f"wrote {len(said)} bytes to stderr: {said[:500]}"
    if re.search(r"terminate called|what\(\):|Sanitizer|frame #\d", said):
        return said[-2000:]
    return ""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--lines", type=int, default=150)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    draw = random.Random(given.seed)
    flags = {command: flags_of(given.program, command) for command in COMMANDS}
    ends = 0
    with tempfile.TemporaryDirectory(prefix="tessera-lines-") as folder:
        for number in range(given.lines):
            command = list(COMMANDS)[number % len(COMMANDS)]
            line = [command, *COMMANDS[command]]
            for flag in draw.sample(flags[command], draw.randint(1, 4)):
                line.append(flag)
                if draw.random() < 0.9:
                    line.append(draw.choice(VALUES))
            problem = problem_of(given.program, line, folder)
            if problem:
                sys.exit(f"{line}: {problem}")
            ends += 1
    print(f"{ends} command lines ended as they should")


if __name__ == "__main__":
    main()
