#!/usr/bin/env python3
"""mkdocs builds the site without a warning, and every page of it is there.

A line "skipped: why" is for ctest.
"""

import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]


def main():
    mkdocs = ROOT / ".docs-venv" / "bin" / "mkdocs"
    if not mkdocs.exists():
        print("skipped: no .docs-venv; scripts/docs.sh tools makes it")
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
                sys.exit(f"{page.name}: no page, or none that leads to the reference of the library")
    print("no warnings")


if __name__ == "__main__":
    main()
