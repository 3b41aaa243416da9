#!/usr/bin/env python3
"""Tests scripts/cli_reference.py: every command has a page with every option of its --help.

  reference_test.py TESSERA TORCH
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
TORCH = {"train", "evaluate", "generate", "bench", "calibrate", "doctor"}


def main():
    tessera, torch = sys.argv[1], sys.argv[2] in ("1", "ON", "TRUE")
    script = ROOT / "scripts" / "cli_reference.py"
    overview = subprocess.run([tessera, "--help"], capture_output=True, text=True, check=True).stdout
    listed = re.findall(r"^  ([a-z]+) {2,}", overview.split("Options:")[0], re.MULTILINE)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for kind, out in (("man", folder), ("markdown", folder / "cli.md")):
            subprocess.run([sys.executable, script, kind, tessera, out], check=True)
        markdown = (folder / "cli.md").read_text()
        for command in listed:
            page = folder / f"tessera-{command}.1"
            done = subprocess.run([tessera, command, "--help"], capture_output=True, text=True)
            if done.returncode != 0:  # its program is not built
                if page.exists() or (torch and command in TORCH):
                    sys.exit(f"{command} --help: {done.stderr}")
                continue
            if not page.exists():
                sys.exit(f"{command} has no page")
            text = page.read_text().replace("\\-", "-")
            for option in re.findall(r"--[a-z][a-z0-9-]+", done.stdout):
                if option not in text or option not in markdown:
                    sys.exit(f"{option} of {command} is missing from its pages")
            if shutil.which("man"):
                shown = subprocess.run(["man", "--warnings", "-l", page], capture_output=True,
                                       text=True)
                if shown.returncode != 0:
                    sys.exit(f"man rejects {page.name}: {shown.stderr}")
        if not (folder / "tessera.1").exists() or len(listed) < 10:
            sys.exit(f"expected tessera.1 and at least 10 commands; the commands are {listed}")
    print(f"{len(listed)} commands")


if __name__ == "__main__":
    main()
