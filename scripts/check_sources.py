#!/usr/bin/env python3
"""Checks each first-party source: its length, no marks of unfinished work, no stray environment reads."""

import re
import sys

import source_tree

MAX_LINES = 500
_SOURCE = re.compile(
    r"(\.(h|hpp|cpp|cc|c|cu|cuh|py|sh|ts|tsx|js|css|html|cmake)|(^|/)(CMakeLists\.txt|Makefile|run))$")
# Written in two parts, or this file would find itself.
_UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME)\b")
_ENVIRONMENT = re.compile(r"\b(getenv|secure_getenv|environ)\b")
# Where programs and the rendezvous learn of the outside; everything else is told by its caller.
_MAY_READ_ENVIRONMENT = re.compile(r"^tessera/(cli/|process/|comm/bootstrap|comm/launch\.cpp$)")


def check(root):
    problems = []
    for name in source_tree.files(root):
        if not _SOURCE.search(name):
            continue
        lines = source_tree.lines(root, name)
        if len(lines) > MAX_LINES:
            problems.append(f"{name}: {len(lines)} lines, at most {MAX_LINES}: split it")
        for number, line in enumerate(lines, 1):
            if _UNFINISHED.search(line):
                problems.append(f"{name}:{number}: unfinished: {line.strip()}")
            if (name.startswith("tessera/") and not _MAY_READ_ENVIRONMENT.match(name)
                    and _ENVIRONMENT.search(line.split("//")[0])):
                problems.append(f"{name}:{number}: reads the environment outside cli/, process/ and "
                                "comm's bootstrap; take an option instead")
    return problems


if __name__ == "__main__":
    sys.exit(source_tree.main(__doc__, check))
