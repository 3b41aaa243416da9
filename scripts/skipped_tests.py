#!/usr/bin/env python3
"""Prints each skipped test with its reason, from a file written by ctest --output-junit.

usage: skipped_tests.py LABEL FILE
"""

import re
import sys
import xml.etree.ElementTree

_NOTE = re.compile(r"^\S+:\d+: Skipped$")
_VERDICT = re.compile(r"^\[  SKIPPED \] (\S+) \(\d+ ms\)")


def gtest_skips(lines):
    """Yields (case, reason). GoogleTest prints "file:line: Skipped", the reason, then the verdict."""
    reason, reading = [], False
    for line in lines:
        verdict = _VERDICT.match(line)
        if _NOTE.match(line):
            reason, reading = [], True
        elif verdict:
            yield verdict.group(1), " ".join(reason) or "no reason given"
            reason, reading = [], False
        elif reading and line.strip():
            reason.append(line.strip())


def skips(path):
    """Yields (test, reason) of a run."""
    for test in xml.etree.ElementTree.parse(path).iter("testcase"):
        name = test.get("name")
        lines = (test.findtext("system-out") or "").splitlines()
        cases = list(gtest_skips(lines))
        for case, reason in cases:
            yield (name if name.endswith(case) else f"{name}: {case}"), reason
        if not cases and test.find("skipped") is not None:
            printed = [line.strip() for line in lines if line.strip()]
            yield name, printed[-1] if printed else test.find("skipped").get("message", "no reason given")


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    for test, reason in skips(sys.argv[2]):
        print(f"   [{sys.argv[1]}] {test}: {reason}")


if __name__ == "__main__":
    main()
