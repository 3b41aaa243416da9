#!/usr/bin/env python3
"""Checks RUNPATH and hardening of programs:  binaries_test.py FOLDER...

Every ELF program and shared library below the folders must
 - have only absolute folders and $ORIGIN/... in RUNPATH. The loader resolves an empty or relative entry
   in the current folder, so a libzstd.so.1 in a downloaded checkpoint would be executed;
 - be position independent, use full RELRO, and have no executable stack.
The tessera programs must also be compiled with the stack protector and FORTIFY. Small tests may contain
no code that these affect.
"""
import pathlib
import re
import subprocess
import sys


def readelf(*arguments):
    return subprocess.run(["readelf", "-W", *map(str, arguments)], check=True, text=True,
                          stdout=subprocess.PIPE).stdout


def programs_below(folders):
    for folder in folders:
        for path in sorted(pathlib.Path(folder).rglob("*")):
            if not path.is_file() or path.is_symlink() or path.suffix in (".o", ".a"):
                continue
            with open(path, "rb") as file:
                head = file.read(18)
            if head[:4] == b"\x7fELF" and head[16] in (2, 3):  # ET_EXEC, ET_DYN
                yield path


def problems_of(path):
    """Yields the problems of one program."""
    text = readelf("-h", "-l", "-d", path)
    for entries in re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.*)\]", text):
        for entry in set(entries.split(":")):
            if not re.match(r"(/|\$ORIGIN(/|$))", entry):
                yield f"RUNPATH [{entries}] has the entry {entry!r}, which the loader resolves in the current folder"
    if not re.search(r"Type:\s+DYN", text):
        yield "is not position independent"
    if "GNU_RELRO" not in text:
        yield "has no RELRO"
    if not re.search(r"BIND_NOW|Flags:.*\bNOW\b", text):
        yield "binds symbols lazily, so RELRO is not full"
    stack = re.search(r"GNU_STACK.*", text)
    if not stack or re.search(r"RWE", stack.group()):
        yield "has an executable stack"
    if path.name.startswith("tessera"):
        symbols = readelf("--dyn-syms", path)
        if "__stack_chk_fail" not in symbols:
            yield "was compiled without -fstack-protector-strong"
        if not re.search(r"UND __\w+_chk\b", symbols):
            yield "was compiled without _FORTIFY_SOURCE"


def main(folders):
    programs = list(programs_below(folders))
    if not programs:
        sys.exit(f"no programs in {', '.join(folders)}")
    problems = [f"{path}: {problem}" for path in programs for problem in problems_of(path)]
    print(f"{len(programs)} programs, {len(problems)} problems")
    sys.exit("\n".join(problems) if problems else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
