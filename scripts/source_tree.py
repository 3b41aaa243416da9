"""Lists the files of a tree and reports problems, for the lint scripts."""

import argparse
import pathlib
import re
import subprocess
import sys

_INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def files(root):
    """Returns paths relative to root of all files that git tracks or would add; without git, all files."""
    try:
        listed = subprocess.run(
            ["git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
        names = [name for name in listed.decode().split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        names = [str(path.relative_to(root)) for path in pathlib.Path(root).rglob("*")]
    return sorted({name for name in names if (pathlib.Path(root) / name).is_file()})


def lines(root, name):
    return (pathlib.Path(root) / name).read_text(encoding="utf-8", errors="replace").splitlines()


def includes(root, name):
    """Returns (line number, is_quoted, path) of each #include in a file."""
    found = []
    for number, line in enumerate(lines(root, name), 1):
        match = _INCLUDE.match(line)
        if match:
            found.append((number, match.group(1) == '"', match.group(2)))
    return found


def main(description, check):
    """Runs check(root) -> list of problems and prints them. Returns 1 if there are any, otherwise 0."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("root", nargs="?", default=pathlib.Path(__file__).parent.parent,
                        type=pathlib.Path, help="top of the tree (default: this repository)")
    problems = check(parser.parse_args().root)
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0
