#!/usr/bin/env python3
"""Checks that every message quoted in docs/troubleshooting.md is in the sources. An ellipsis in a quote
matches anything."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def sources():
    text = ""
    for path in sorted((ROOT / "tessera").rglob("*")):
        if path.suffix in (".cpp", ".h"):
            text += path.read_text(errors="replace") + "\n"
    # Adjacent literals are one text. Values that str() inserts are an ellipsis in the quote.
    text = re.sub(r'"\s*"', "", text)
    # UsageError(Flag("x"), "problem") is "--x: problem".
    return re.sub(r'Flag\("([a-z-]+)"\),\s*(?:str\(\s*)?"', r'"--\1: ', text)


def main():
    text, problems, looked_up = sources(), [], 0
    rows = (ROOT / "docs" / "troubleshooting.md").read_text().splitlines()
    for row in rows:
        if not row.startswith("| ") or row.startswith("| message"):
            continue
        for message in re.findall(r"`([^`]+)`", row.split("|")[1]):
            parts = [part.strip(" .,/:×;") for part in re.split(r"…| / ", message)]
            for part in parts:
                if len(part) < 6:
                    continue
                looked_up += 1
                if part not in text:
                    problems.append(f"no source has {part!r} of {message!r}")
    # Each area where users meet errors must have a section.
    for heading in ("Flags", "Starting ranks", "fail or hang", "Memory", "Checkpoints", "Data", "Models", "NCCL",
                    "dashboard"):
        if not any(row.startswith("## ") and heading in row for row in rows):
            problems.append(f"no heading has {heading!r}")
    if looked_up < 70:
        problems.append(f"only {looked_up} quoted texts were found; expected at least 70")
    if problems:
        sys.exit("\n".join(problems))
    print(f"{looked_up} quoted texts are in the sources")


if __name__ == "__main__":
    main()
