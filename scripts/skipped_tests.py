#!/usr/bin/env python3
"""Prints each test that skipped itself, with its reason, from ctest's LastTest.log.

usage: skipped_tests.py LABEL LOG
"""

import re
import sys

_START = re.compile(r"^\d+/\d+ Test(?:ing)?: (.*)$")
_SKIPPED = re.compile(r"^\[  SKIPPED \] (\S+) \(\d+ ms\)")
_NOTE = re.compile(r"^\S+:\d+: Skipped$")


def skips(lines):
    """(test, reason) pairs. GoogleTest prints "file:line: Skipped", the reason, then the verdict."""
    test, reason, reading = "", [], False
    for line in lines:
        started, verdict = _START.match(line), _SKIPPED.match(line)
        if started:
            test, reason, reading = started.group(1), [], False
        elif _NOTE.match(line):
            reason, reading = [], True
        elif verdict:
            case = verdict.group(1)
            name = test if test.endswith(case) else f"{test}: {case}"
            yield name, " ".join(reason) or "no reason given"
            reason, reading = [], False
        elif reading and line.strip():
            reason.append(line.strip())


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    with open(sys.argv[2], encoding="utf-8", errors="replace") as log:
        for test, reason in skips(log.read().splitlines()):
            print(f"   [{sys.argv[1]}] {test}: {reason}")


if __name__ == "__main__":
    main()
