#!/usr/bin/env python3
"""Writes the library reference with Doxygen, from the installed headers only.

  library_reference.py OUT       writes OUT/index.html; fails if a public type or function has no comment

Data members (`int steps`) and accessors without parameters (`int steps() const`) need no comment.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import header_comments

ROOT = pathlib.Path(__file__).resolve().parent.parent
PUBLIC_HEADERS = ("tessera/planning.h", "tessera/tessera.h")
INCLUDE = re.compile(r'^#include "(tessera/[^"]+)"', re.MULTILINE)
# Data members and accessors.
PLAIN = re.compile(r" \(variable\) |Member \w+\(\) const")
# Destructors, copies and moves, default constructors, equality: a comment would only repeat the name.
SPECIAL = re.compile(r"Member (\w+)\((?:(?:const )?\1 ?&{1,2} ?\w*)?\).* of \w+ (?:.*::)?\1 is not|"
                     r"Member (?:~|operator(?:=|==|!=)\()")
# Doxygen lists the members of a namespace only if the namespace has a comment.
NAMESPACES = {
    "tessera": "Names of the public headers, and types that all modules share.",
    "tessera::comm": "Groups of ranks, the mesh, and collectives over any backend.",
    "tessera::context_parallel": "Attention over sequences whose tokens are cut over ranks.",
    "tessera::experts": "Mixture of experts, on ranks that share the experts of a layer.",
    "tessera::memory": "Memory use of a rank by category, and its limit.",
    "tessera::nn": "Units of a model, and recomputation of activations.",
    "tessera::planner": "Memory, traffic and time of a run before it is started. No torch.",
    "tessera::rules": "Optimizers as plain rules for one element or one matrix. No torch.",
    "tessera::schedule": "Pipeline schedules as values. No torch.",
    "tessera::simulator": "Discrete-event simulation of a step. No torch.",
    "tessera::tensor_parallel": "Layers whose matrices are sharded over ranks.",
    "tessera::zero": "The engine: data parallelism and ZeRO for any module.",
}
SETTINGS = """
PROJECT_NAME = Tessera
PROJECT_NUMBER = {version}
PROJECT_BRIEF = "The library, from its public headers"
OUTPUT_DIRECTORY = "{out}"
HTML_OUTPUT = .
INPUT = {headers}
STRIP_FROM_PATH = "{root}"
STRIP_FROM_INC_PATH = "{root}"
FILTER_PATTERNS = "*.h={filter}"
FILTER_SOURCE_FILES = NO
EXTENSION_MAPPING = h=C++
GENERATE_LATEX = NO
QUIET = YES
WARNINGS = YES
WARN_IF_UNDOCUMENTED = YES
WARN_IF_DOC_ERROR = YES
WARN_NO_PARAMDOC = NO
WARN_FORMAT = "$file:$line: $text"
JAVADOC_AUTOBRIEF = YES
MULTILINE_CPP_IS_BRIEF = NO
AUTOLINK_SUPPORT = YES
HIDE_UNDOC_MEMBERS = NO
EXTRACT_PRIVATE = NO
EXTRACT_STATIC = YES
EXTRACT_LOCAL_CLASSES = YES
SHOW_USED_FILES = NO
VERBATIM_HEADERS = NO
SORT_MEMBER_DOCS = NO
SORT_BRIEF_DOCS = NO
INLINE_SIMPLE_STRUCTS = NO
ENABLE_PREPROCESSING = YES
MACRO_EXPANSION = YES
EXPAND_ONLY_PREDEF = YES
SEARCH_INCLUDES = NO
PREDEFINED = "TORCH_MODULE(x)="
HTML_TIMESTAMP = NO
HTML_COLORSTYLE_SAT = 40
GENERATE_TREEVIEW = YES
DISABLE_INDEX = NO
HAVE_DOT = NO
"""


def public_headers(root):
    """Returns the installed headers, found as in cmake/InstallHeaders.cmake."""
    found, left = [], list(PUBLIC_HEADERS)
    while left:
        name = left.pop()
        if name not in found and (root / name).exists():
            found.append(name)
            left += INCLUDE.findall((root / name).read_text())
    return sorted(found)


def doxygen_warnings(root, headers, out):
    out.mkdir(parents=True, exist_ok=True)
    pages = out / "namespaces.dox"
    pages.write_text("".join(f"/** \\namespace {name}\n{text} */\n" for name, text in NAMESPACES.items()))
    version = re.search(r"^project\(tessera VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text(), re.MULTILINE)[1]
    settings = SETTINGS.format(
        version=version, out=out, root=root, filter=f"{sys.executable} {ROOT}/scripts/header_comments.py",
        headers=" ".join(f'"{path}"' for path in [pages, *(root / name for name in headers)]))
    done = subprocess.run(["doxygen", "-"], input=settings, capture_output=True, text=True,
                          env=dict(os.environ, LC_ALL="C.UTF-8"))
    pages.unlink()
    if done.returncode != 0:
        sys.exit(f"doxygen: status {done.returncode}\n{done.stderr[-4000:]}")
    return [line for line in done.stderr.splitlines() if line.strip()]


def without_comment(root, headers, out):
    """Writes the reference. Returns the names without a comment, with file and line."""
    origins = {name: header_comments.converted((root / name).read_text()) for name in headers}
    problems = set()
    for line in doxygen_warnings(root, headers, out):
        if "is not documented" in line and (PLAIN.search(line) or SPECIAL.search(line)):
            continue
        place = re.match(rf"{re.escape(str(root))}/(\S+?):(\d+): warning: (.*)", line)
        if place:
            number = origins[place[1]][int(place[2]) - 1][1]
            line = f"{place[1]}:{number}: {place[3]}"
        problems.add(line)
    return sorted(problems)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    if not shutil.which("doxygen"):
        sys.exit("library_reference.py: doxygen is not installed (Debian: doxygen)")
    headers = public_headers(ROOT)
    problems = without_comment(ROOT, headers, pathlib.Path(sys.argv[1]).resolve())
    if problems:
        sys.exit("\n".join(problems) + f"\n{len(problems)} problems: add a comment above each, one line if "
                 "possible: its purpose, or anything that its name does not say")
    print(f"{len(headers)} headers")


if __name__ == "__main__":
    main()
