#!/usr/bin/env python3
"""Runs what the documents show.

  run_blocks.py TESSERA TORCH DOCUMENT...

A block marked `sh run` is run by sh -e in a folder of its document's own, with TESSERA on the path;
`sh run torch` only where TORCH is 1. Lines `# prints: TEXT` in it are texts that it must print. A
block marked `cpp FILE` must stand in that file of the tree as it is. Pictures and links to files must lead
somewhere.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

FENCE = re.compile(r"^```(.*)$")


def blocks(text):
    """(line, words behind the fence, lines of the block)"""
    mark, begin, inside = None, 0, []
    for number, line in enumerate(text.splitlines(), 1):
        fence = FENCE.match(line)
        if fence and mark is None:
            mark, begin, inside = fence[1].split(), number, []
        elif fence:
            yield begin, mark, inside
            mark = None
        elif mark is not None:
            inside.append(line)


def run(document, begin, lines, folder, environment):
    script = "\n".join(lines)
    done = subprocess.run(["/bin/sh", "-e", "-c", script], cwd=folder, env=environment, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120)
    where = f"{document}:{begin}"
    if done.returncode != 0:
        return [f"{where}: status {done.returncode}\n{script}\n{done.stdout}{done.stderr}"]
    wanted = [line.split("prints:", 1)[1].strip() for line in lines
              if line.strip().startswith("# prints:")]
    return [f"{where}: does not print {text!r}:\n{script}\n{done.stdout}"
            for text in wanted if text not in done.stdout]


def check_code(document, begin, name, lines, root):
    source = (root / name).read_text().splitlines()
    for at in range(len(source) - len(lines) + 1):
        if source[at:at + len(lines)] == lines:
            return []
    return [f"{document}:{begin}: is not in {name} as it stands:\n" + "\n".join(lines)]


def check_links(document, text):
    problems = []
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        if target.startswith("pictures/"):  # photographs, which the page's own test takes
            continue
        if "://" not in target and not (document.parent / target).exists():
            problems.append(f"{document}: links to {target}, which is not there")
    return problems


def main():
    tessera, torch, names = sys.argv[1], sys.argv[2] in ("1", "ON", "TRUE"), sys.argv[3:]
    root = pathlib.Path(__file__).resolve().parents[2]
    environment = dict(os.environ, LC_ALL="C.UTF-8",
                       PATH=str(pathlib.Path(tessera).resolve().parent) + ":" + os.environ["PATH"])
    problems, ran, passed_over = [], 0, 0
    for name in names:
        document = pathlib.Path(name)
        text = document.read_text()
        problems += check_links(document, text)
        with tempfile.TemporaryDirectory() as folder:
            for begin, mark, lines in blocks(text):
                if mark[:2] == ["sh", "run"]:
                    if "torch" in mark and not torch:
                        passed_over += 1
                        continue
                    problems += run(document, begin, lines, folder, environment)
                    ran += 1
                elif mark[:1] == ["cpp"] and len(mark) > 1:
                    problems += check_code(document, begin, mark[1], lines, root)
    print(f"{ran} blocks run, {passed_over} passed over without torch, {len(problems)} problems")
    if problems:
        sys.exit("\n\n".join(problems))
    if len(names) > 1 and ran < 10:
        sys.exit("too few blocks were found to have tested anything")


if __name__ == "__main__":
    main()
