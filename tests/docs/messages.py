#!/usr/bin/env python3
"""Every message that docs/troubleshooting.md quotes stands in the sources: the parts of it that are
not left open by an ellipsis."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def sources():
    text = ""
    for path in sorted((ROOT / "tessera").rglob("*")):
        if path.suffix in (".cpp", ".h"):
            text += path.read_text(errors="replace") + "\n"
    # Neighbouring literals are one text, and what str() puts between two is left open anyway.
    return re.sub(r'"\s*"', "", text)


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
                    problems.append(f"no source says {part!r}, of {message!r}")
    # Where users meet errors; a room whose messages are not on the page at all has been forgotten.
    for heading in ("Flags", "Starting ranks", "fail or hang", "Memory", "Checkpoints", "Data", "Models", "NCCL",
                    "dashboard"):
        if not any(row.startswith("## ") and heading in row for row in rows):
            problems.append(f"no heading has {heading!r}")
    if looked_up < 70:
        problems.append(f"only {looked_up} texts were found to look up")
    if problems:
        sys.exit("\n".join(problems))
    print(f"{looked_up} texts of messages are in the sources")


if __name__ == "__main__":
    main()
