#!/usr/bin/env python3
"""Converts the // comments of a header to the /// comments that Doxygen reads.

  header_comments.py FILE      prints the converted file (Doxygen's INPUT_FILTER)

- A comment directly above a declaration, or at the end of its line, documents the declaration.
- A comment followed by an empty line, such as a [Note: …], documents the file.
- Comment lines indented by two or more spaces are code, unless they continue a list.
"""

import pathlib
import re
import sys

LINE = re.compile(r"^(\s*)//(?!/)(.*)$")
TRAILING = re.compile(r'^((?:[^"/]|"(?:[^"\\]|\\.)*"|/(?!/))*?\S)(\s+)//(?!/)\s?(.*)$')
NOT_DECLARED = re.compile(r"^\s*(#|\})|[{(]\s*$|^\s*(public|private|protected):$")


def escaped(text):
    return re.sub(r"([\\@<>#%])", r"\\\1", text)


def block(lines, indent, of_file):
    """Returns the lines of one comment in Doxygen's syntax, with code marked."""
    out, code, listed = [], False, False
    if of_file:
        out.append(r"\file")
    for text in lines:
        text = text[1:] if text.startswith(" ") else text
        listed = bool(re.match(r"\s*(-|\d+\.) ", text)) or (listed and text.startswith("  "))
        is_code = text.startswith("  ") and not listed
        if is_code != code:
            out.append(r"\code{.cpp}" if is_code else r"\endcode")
            code = is_code
        out.append(text if code else escaped(text))
    if code:
        out.append(r"\endcode")
    return [f"{indent}/// {text}".rstrip() for text in out]


def converted(text):
    """Returns the converted lines, each with its line number in `text`."""
    lines, out, at = text.splitlines(), [], 0
    while at < len(lines):
        line, number = lines[at], at + 1
        if LINE.match(line):
            first = at
            while at < len(lines) and LINE.match(lines[at]):
                at += 1
            below = lines[at].strip() if at < len(lines) else ""
            made = block([LINE.match(each)[2] for each in lines[first:at]], LINE.match(line)[1],
                         of_file=below in ("", "#pragma once"))
            out += [(each, number) for each in made]
            continue
        at += 1
        trailing = TRAILING.match(line)
        if not trailing or NOT_DECLARED.search(trailing[1]):
            out.append((line, number))
            continue
        column = len(trailing[1]) + len(trailing[2])
        out.append((f"{trailing[1]}{trailing[2]}///< {escaped(trailing[3])}", number))
        while at < len(lines) and (more := LINE.match(lines[at])) and len(more[1]) == column:
            at += 1
            out.append((f"{more[1]}///< {escaped(more[2].strip())}", at))
    return out


if __name__ == "__main__":
    for made, _ in converted(pathlib.Path(sys.argv[1]).read_text()):
        print(made)
