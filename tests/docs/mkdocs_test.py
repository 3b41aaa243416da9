#!/usr/bin/env python3
"""Checks that mkdocs builds the site without warnings and with every page.

ctest treats a line "skipped: REASON" as a skipped test.
"""

import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]


def main():
    mkdocs = ROOT / ".docs-venv" / "bin" / "mkdocs"
    if not mkdocs.exists():
        print("skipped: .docs-venv is missing; scripts/docs.sh tools creates it")
        return
    with tempfile.TemporaryDirectory() as name:
        done = subprocess.run([mkdocs, "build", "--strict", "--quiet", "-f", ROOT / "mkdocs.yml", "-d", name],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0 or done.stdout.strip():
            sys.exit(f"mkdocs build --strict: status {done.returncode}\n{done.stdout}")
        site = pathlib.Path(name)
        for page in (ROOT / "docs").glob("*.md"):
            made = site / ("" if page.stem == "README" else page.stem) / "index.html"
            if not made.exists() or "reference/index.html" not in made.read_text():
                sys.exit(f"{page.name}: the page is missing or does not link to the library reference")
            if "```" in made.read_text():
                sys.exit(f"{page.name}: a code block is not shown as one")
    print("no warnings")


if __name__ == "__main__":
    main()
