#!/usr/bin/env python3
"""Runs the commands in the documentation.

  run_blocks.py TESSERA TORCH DOCUMENT...

| mark of a block | check |
| `sh run` | run by sh -e in a folder per document, with TESSERA on the path |
| `sh run torch` | the same, if TORCH is 1 |
| `sh run torch short` | the same, but every training has two small steps |
| `sh not run: WHY` | not run; commands.py looks up its commands and flags |
| `cpp FILE` | must be part of that file of the tree |
| `cpp` | compiled with the build (code_blocks.py) |

A line `# prints: TEXT` requires that exactly one printed line contains TEXT, so that a number on another line
does not count. Any white space matches any other, and … matches anything. given/DOCUMENT.sh, if it exists,
creates the files that the commands need. commands.py also checks commands in sentences. Links to files must
exist, and a picture written by a block must equal the one of that name in docs/.

The blocks of README.md are run in a folder with the build/bin of TESSERA and a text book.txt, except commands
that other tests run (ELSEWHERE). Trainings are cut to five steps. tests/examples/examples_test.py compares its
program with the example.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

from commands import Help, check_inline, check_script

FENCE = re.compile(r"^```(.*)$")


def blocks(text):
    """Yields (line, words after the fence, lines of the block)."""
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


def matching_lines(text, printed):
    """Returns the distinct lines of `printed` that contain `text`, not within a word or number."""
    parts = [r"\s+".join(map(re.escape, part.split())) for part in text.split("…")]
    pattern = re.compile(r"(?<![\w.,])" + ".*".join(parts) + r"(?![\w]|[.,]\w)")
    return sorted({line for line in printed.splitlines() if pattern.search(line)})


def check_printed(text, printed):
    found = matching_lines(text, printed)
    if not found:
        return f"does not print {text!r}"
    if len(found) > 1:
        return f"{len(found)} lines have {text!r}; use a longer text that matches one of them: {found}"
    return None


def run(document, begin, lines, folder, environment):
    script = "\n".join(lines)
    done = subprocess.run(["/bin/sh", "-e", "-c", script], cwd=folder, text=True,
                          env=dict(environment, HOME=str(folder)), stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, timeout=240)
    where = f"{document}:{begin}"
    if done.returncode != 0:
        return [f"{where}: status {done.returncode}\n{script}\n{done.stdout}{done.stderr}"]
    expected = [line.split("prints:", 1)[1].strip() for line in lines
                if line.strip().startswith("# prints:")]
    problems = [check_printed(text, done.stdout) for text in expected]
    return [f"{where}: {problem}:\n{script}\n{done.stdout}" for problem in problems if problem]


# Replaces `tessera` in blocks marked `short`: trains two small steps.
SHORT = """#!/usr/bin/env python3
import os, sys
words = sys.argv[1:]
if words[:1] == ["train"] and "--print-config" not in words:
    for flag in ("--steps", "--epochs"):
        while flag in words:
            at = words.index(flag)
            del words[at:at + 2]
    words += ["--steps", "2", "--samples", "0"]
    if not {{"--micro-batch", "--global-batch", "--config"}} & set(words):
        words += ["--micro-batch", "1"]
os.execv({tessera!r}, ["tessera", *words])
"""


def short_path(folder, tessera):
    """Creates a folder whose `tessera` trains two steps."""
    folder.mkdir()
    (folder / "tessera").write_text(SHORT.format(tessera=str(pathlib.Path(tessera).resolve())))
    (folder / "tessera").chmod(0o755)
    return folder


# Start of a command of README.md, and the test that runs it.
ELSEWHERE = {
    "make ": ".ci/run runs make test; docs.site checks the goals; tests/cli runs the training of make train",
    "cmake --install": "package.consumer", "cmake -B": "package.consumer",
    "build/bin/tessera dashboard": "dashboard_program_test",
    "scripts/bench.sh gpu": "no test: it takes a GPU and ten minutes",
}


def readme_script(lines):
    """Returns the commands of a block as this test runs them, and the output that the block shows."""
    commands, printed = [], []
    shown = any(line.startswith("$ ") for line in lines)
    for line in lines:
        if shown and not line.startswith("$ "):
            printed.append(line)
            continue
        line = line.removeprefix("$ ")
        if line and not any(line.startswith(word) for word in ELSEWHERE):
            commands.append(re.sub(r"--steps \d+", "--steps 5", line))
    return commands, printed


def run_readme(document, text, tessera, environment):
    problems, ran = [], 0
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "build").mkdir()
        (folder / "build" / "bin").symlink_to(pathlib.Path(tessera).resolve().parent)
        (folder / "book.txt").write_text(text * 4)
        for begin, mark, lines in blocks(text):
            if mark:
                continue  # code
            commands, printed = readme_script(lines)
            if commands:
                # The last digits depend on the processor, but equal lines are equal on every processor.
                expected = ["# prints: " + re.sub(r"(\.\d\d)\d+$", r"\1…", line) for line in printed]
                if len(set(printed)) < len(printed):
                    commands = ["{", *commands, "} > shown", "cat shown",
                                f'test "$(sort -u shown | wc -l)" = {len(set(printed))}']
                problems += run(document, begin, commands + expected, folder, environment)
                ran += 1
        for command in re.findall(r"`(build/bin/tessera \w+ --help)`", text):
            problems += run(document, 0, [command], folder, environment)
            ran += 1
    if ran < 5:
        problems.append(f"{document}: only {ran} blocks were found; expected at least 5")
    return problems, ran


def check_code(document, begin, name, lines, root):
    source = (root / name).read_text().splitlines()
    for at in range(len(source) - len(lines) + 1):
        if source[at:at + len(lines)] == lines:
            return []
    return [f"{document}:{begin}: the block is not in {name}:\n" + "\n".join(lines)]


def check_links(document, text):
    problems = []
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        if target.startswith("pictures/"):  # screenshots, taken by tests/web
            continue
        if "://" not in target and not (document.parent / target).exists():
            problems.append(f"{document}: links to {target}, which does not exist")
    return problems


def check_pictures(document, folder):
    """Compares pictures written by the blocks with those of the same name in docs/."""
    problems = []
    for written in folder.glob("*.svg"):
        shown = document.parent / written.name
        if shown.exists() and shown.read_text() != written.read_text():
            problems.append(f"{document}: {shown.name} differs from the output of its command; copy the new one to docs/")
    return problems


class Documents:
    def __init__(self, tessera, torch, root, scratch):
        self.torch, self.root, self.help = torch, root, Help(tessera)
        path = str(pathlib.Path(tessera).resolve().parent) + ":" + os.environ["PATH"]
        self.environment = dict(os.environ, ROOT=str(root), LC_ALL="C.UTF-8", PATH=path, OMPI_ALLOW_RUN_AS_ROOT="1",
                                OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_rmaps_base_oversubscribe="1")
        self.short = dict(self.environment, PATH=f"{short_path(scratch / 'short', tessera)}:{path}")
        self.ran = self.skipped = 0

    def prepare(self, document, folder):
        """Creates the files that the blocks of a document need, once."""
        script = self.root / "tests" / "docs" / "given" / f"{document.stem}.sh"
        if script.exists() and not list(folder.iterdir()):
            return run(script, 1, script.read_text().splitlines(), folder, self.environment)
        return []

    def block(self, document, begin, mark, lines, folder):
        kind = mark[:1]
        if mark[:2] == ["sh", "run"]:
            if "torch" in mark and not self.torch:
                self.skipped += 1
                return []
            self.ran += 1
            environment = self.short if "short" in mark else self.environment
            return (self.prepare(document, folder)
                    + run(document, begin, lines, folder, environment))
        if mark[:3] == ["sh", "not", "run:"] and len(mark) > 3:
            return [f"{document}:{begin}: {problem}" for problem in check_script(lines, self.help, self.root)]
        if kind == ["cpp"]:
            return check_code(document, begin, mark[1], lines, self.root) if len(mark) > 1 else []
        if kind in (["text"], ["json"], ["cmake"], ["toml"]):
            return []
        return [f"{document}:{begin}: the mark is {' '.join(mark)!r}; must be sh run, sh not run: WHY, text, cpp, "
                "json, cmake or toml"]

    def check(self, document):
        text = document.read_text()
        problems = check_links(document, text)
        problems += [f"{document}: {problem}" for problem in check_inline(text, self.help)]
        with tempfile.TemporaryDirectory() as folder:
            for begin, mark, lines in blocks(text):
                problems += self.block(document, begin, mark, lines, pathlib.Path(folder))
            problems += check_pictures(document, pathlib.Path(folder))
        return problems


def check_matching():
    """Tests matching_lines."""
    printed = "state      = 52.5 GB\ncommon mistake: 105 GB each\ntotal  105 GB\n"
    cases = {"state = 105 GB": 0, "105 GB": 2, "state … 52.5 GB": 1, "5 GB": 0, "52": 0, "total 105 GB": 1, "GB ea": 0}
    return [f"{text!r} matches {matching_lines(text, printed)}" for text, count in cases.items()
            if len(matching_lines(text, printed)) != count]


def main():
    tessera, torch, names = sys.argv[1], sys.argv[2] in ("1", "ON", "TRUE"), sys.argv[3:]
    root = pathlib.Path(__file__).resolve().parents[2]
    problems = check_matching()
    with tempfile.TemporaryDirectory() as scratch:
        documents = Documents(tessera, torch, root, pathlib.Path(scratch))
        for document in (pathlib.Path(name).resolve() for name in names):
            if document.parent == root:
                problems += check_links(document, document.read_text())
                if torch:
                    more, count = run_readme(document, document.read_text(), tessera, documents.environment)
                    problems += more
                    documents.ran += count
            else:
                problems += documents.check(document)
    print(f"{documents.ran} blocks run, {documents.skipped} skipped without torch, "
          f"{documents.help.looked_up} flags looked up, {len(problems)} problems")
    if problems:
        sys.exit("\n\n".join(problems))
    if len(names) > 1 and documents.ran < 10:
        sys.exit("fewer than 10 blocks were found")


if __name__ == "__main__":
    main()
