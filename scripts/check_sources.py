#!/usr/bin/env python3
"""Checks each source of the tree: length, markers of unfinished work, reads of the environment."""

import re
import sys

import source_tree

MAX_LINES = 500
_SOURCE = re.compile(
    r"(\.(h|hpp|cpp|cc|c|cu|cuh|py|sh|ts|tsx|js|css|html|cmake)|(^|/)(CMakeLists\.txt|Makefile|run))$")
# Written in two parts so that this file does not match itself.
_UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME)\b")
_ENVIRONMENT = re.compile(r"\b(getenv|secure_getenv|environ)\b")
# Only programs and the rendezvous read the environment. Everything else takes options.
_MAY_READ_ENVIRONMENT = re.compile(r"^tessera/(cli/|process/|comm/bootstrap|comm/launch\.cpp$)")


def check(root):
    problems = []
    for name in source_tree.files(root):
        if not _SOURCE.search(name):
            continue
        lines = source_tree.lines(root, name)
        if len(lines) > MAX_LINES:
            problems.append(f"{name}: {len(lines)} lines; the limit is {MAX_LINES}. Split the file")
        for number, line in enumerate(lines, 1):
            if _UNFINISHED.search(line):
                problems.append(f"{name}:{number}: marker of unfinished work: {line.strip()}")
            if (name.startswith("tessera/") and not _MAY_READ_ENVIRONMENT.match(name)
                    and _ENVIRONMENT.search(line.split("//")[0])):
                problems.append(f"{name}:{number}: reads the environment outside cli/, process/ and "
                                "comm's bootstrap; use an option instead")
    return problems


if __name__ == "__main__":
    sys.exit(source_tree.main(__doc__, check))
