#!/usr/bin/env python3
"""Writes the C++ blocks of the documents as one source, which the build compiles.

  code_blocks.py OUT GIVEN DOCUMENT...

A block marked `cpp` is the inside of a function, a member of a type that has the page's name (`-` is `_`) in
GIVEN, a header: there stand the names that a reader brings along (a model, a batch). Lines that include
something go to the top. So a block compiles with tessera/tessera.h and what it includes itself. Errors name
the line of the page. Blocks marked `cpp FILE` are taken from a source that is compiled anyway; run_blocks.py
compares them with it. Names such as `tessera::save` in the middle of a sentence must exist too.
"""

import pathlib
import re
import sys

from run_blocks import blocks

ROOT = pathlib.Path(__file__).resolve().parents[2]


# Targets of CMake, which look the same.
TARGETS = {"tessera::tessera", "tessera::planning"}


def names(document):
    """A function that mentions the names in a page's sentences, each at its line."""
    lines, block = [], False
    for number, line in enumerate(document.read_text().splitlines(), 1):
        if line.startswith("```"):
            block = not block
        found = [] if block else re.findall(r"`[^`]*?\b(tessera::(?:[a-z_]+::)*\w+)", line)
        for name in found:
            if name not in TARGETS:
                lines += [f'#line {number} "docs/{document.name}"', f"  using {name};"]
    return [f"void {document.stem.replace('-', '_')}_names() {{", *lines, "}"] if lines else []


def source_of(documents, given):
    """The text, and how many blocks it has."""
    known = set(re.findall(r"^struct (\w+)", given.read_text(), re.MULTILINE))
    includes, functions, count = [], [], 0
    for document in documents:
        page = document.stem.replace("-", "_")
        for begin, mark, lines in blocks(document.read_text()):
            if mark != ["cpp"]:
                continue
            if page not in known:
                sys.exit(f"{document}:{begin}: a block of C++, and {given} has no struct {page} with the names that it "
                         "may use: add one, or mark the block `text` if it is not C++")
            count += 1
            includes += [line for line in lines if line.startswith("#include ")]
            # An empty line in place of an include keeps the numbers of the lines.
            body = ["" if line.startswith("#include ") else line for line in lines]
            name = f"{page}_{begin}"
            functions += [f"struct {name} : {page} {{", "  void block();", "};", f"void {name}::block() {{",
                          f'#line {begin + 1} "docs/{document.name}"', *body, "}"]
        functions += names(document)
    head = ["// Written by tests/docs/code_blocks.py.", f'#include "{given.resolve().relative_to(ROOT)}"',
            *sorted(set(includes)), "namespace given {"]
    return "\n".join([*head, *functions, "}  // namespace given", ""]), count


def main():
    out, given = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    text, count = source_of([pathlib.Path(name) for name in sys.argv[3:]], given)
    if count < 10:
        sys.exit(f"only {count} blocks of C++ were found: too few to have tested anything")
    if not out.exists() or out.read_text() != text:
        out.write_text(text)


if __name__ == "__main__":
    main()
