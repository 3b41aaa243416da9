#!/usr/bin/env python3
"""Generates manual pages, or one Markdown page, from the program's --help texts.

  cli_reference.py man TESSERA FOLDER        writes tessera.1, tessera-plan.1, ... to FOLDER
  cli_reference.py markdown TESSERA FILE

Commands whose --help fails (those that need torch, in a build without it) are omitted and listed on
stderr.
"""

import pathlib
import re
import subprocess
import sys


def output_of(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return done.stdout if done.returncode == 0 else None


def commands(help_text):
    """Returns [(name, summary)] from the list of commands."""
    part = help_text.split("Commands:\n", 1)[1].split("\n\n", 1)[0]
    return [tuple(line.strip().split(None, 1)) for line in part.splitlines()]


def helps(tessera):
    """Returns [(words, summary, help)], the program itself first."""
    whole = output_of(tessera, "--help")
    if whole is None:
        sys.exit(f"{tessera} --help failed")
    pages = [([], whole.splitlines()[0], whole)]
    for name, summary in commands(whole):
        text = output_of(tessera, name, "--help")
        if text is None:
            print(f"omitted: {name}, because its --help failed", file=sys.stderr)
        else:
            pages.append(([name], summary, text))
    return pages


def roff(text):
    """Escapes text for roff."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join("\\&" + line if line[:1] in (".", "'") else line for line in text.splitlines())


def man_page(words, summary, text, version):
    name = "-".join(["tessera", *words])
    body, examples = text, ""
    if "\nExamples:\n" in text:
        body, examples = text.split("\nExamples:\n", 1)
    page = f'.TH {name.upper()} 1 "" "tessera {version}" "Tessera"\n'
    page += f".SH NAME\n{roff(name)} \\- {roff(summary)}\n"
    page += f".SH DESCRIPTION\n.nf\n{roff(body.strip())}\n.fi\n"
    if examples:
        page += f".SH EXAMPLES\n.nf\n{roff(examples.rstrip())}\n.fi\n"
    return name + ".1", page


def main():
    if len(sys.argv) != 4 or sys.argv[1] not in ("man", "markdown"):
        sys.exit(__doc__)
    kind, tessera, out = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
    version = re.search(r"\d+\.\d+\.\d+", output_of(tessera, "--version") or "") or ["?"]
    pages = helps(tessera)
    if kind == "man":
        out.mkdir(parents=True, exist_ok=True)
        for page in pages:
            name, text = man_page(*page, version[0])
            (out / name).write_text(text)
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    text = f"# The commands of tessera {version[0]}\n"
    for words, summary, help_text in pages:
        text += f"\n## {' '.join(['tessera', *words])}\n{summary}\n\n```\n{help_text.strip()}\n```\n"
    out.write_text(text)


if __name__ == "__main__":
    main()
