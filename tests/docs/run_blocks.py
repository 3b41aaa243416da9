#!/usr/bin/env python3
"""Runs what the documents show.

  run_blocks.py TESSERA TORCH DOCUMENT...

A block marked `sh run` is run by sh -e in a folder of its document's own, with TESSERA on the path;
`sh run torch` only where TORCH is 1; `sh run torch short` trains two small steps wherever it trains. A line
`# prints: TEXT` in it means one line that it must print: TEXT is part of that line and of no other, so that
a figure does not pass because another line has it too. Spaces count as one, and … stands for anything. What
the commands find in the folder is made by given/DOCUMENT.sh, where there is one. A block marked `sh not run: WHY` is not run; commands.py looks its
commands and flags up, and those of every line of text. A block marked `cpp FILE` must stand in that file of
the tree as it is; one marked `cpp` is compiled with the build (code_blocks.py). Pictures and links to files
must lead somewhere, and a picture that a block writes is the one of that name in docs/.

README.md is for people who stand in the tree after `make build`: all its blocks but those of two kinds are
run, in a folder whose build/bin is that of TESSERA and whose book.txt is a text. Those of `make` and of
`cmake`, and the page, are run by other tests (its list ELSEWHERE says by which); trainings of hundreds
of steps are cut to five. Its program is compared with its example by tests/examples/examples_test.py.
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


def matching_lines(text, printed):
    """The different lines of `printed` that TEXT of `# prints: TEXT` is part of, not within a word or number."""
    parts = [r"\s+".join(map(re.escape, part.split())) for part in text.split("…")]
    pattern = re.compile(r"(?<![\w.,])" + ".*".join(parts) + r"(?![\w]|[.,]\w)")
    return sorted({line for line in printed.splitlines() if pattern.search(line)})


def check_printed(text, printed):
    found = matching_lines(text, printed)
    if not found:
        return f"does not print {text!r}"
    if len(found) > 1:
        return f"{len(found)} lines have {text!r}; give more of the one that is meant: {found}"
    return None


def run(document, begin, lines, folder, environment):
    script = "\n".join(lines)
    done = subprocess.run(["/bin/sh", "-e", "-c", script], cwd=folder, text=True,
                          env=dict(environment, HOME=str(folder)), stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, timeout=240)
    where = f"{document}:{begin}"
    if done.returncode != 0:
        return [f"{where}: status {done.returncode}\n{script}\n{done.stdout}{done.stderr}"]
    wanted = [line.split("prints:", 1)[1].strip() for line in lines
              if line.strip().startswith("# prints:")]
    problems = [check_printed(text, done.stdout) for text in wanted]
    return [f"{where}: {problem}:\n{script}\n{done.stdout}" for problem in problems if problem]


# For blocks that are to be short: the same command, of two small steps.
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
    """A folder whose `tessera` trains two steps."""
    folder.mkdir()
    (folder / "tessera").write_text(SHORT.format(tessera=str(pathlib.Path(tessera).resolve())))
    (folder / "tessera").chmod(0o755)
    return folder


# What a command of README.md begins with, and the test that runs it.
ELSEWHERE = {
    "make ": ".ci/run runs make test; docs.site looks the goals up; tests/cli trains what make train does",
    "cmake --install": "package.consumer", "cmake -B": "package.consumer",
    "build/bin/tessera dashboard": "dashboard_program_test",
    "scripts/bench.sh gpu": "nobody here: it takes a GPU and ten minutes",
}


def readme_script(lines):
    """The commands of a block as they are run here, and the lines that they are said to print."""
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
                # Processors differ in the last digits; lines that are equal there are equal everywhere.
                wanted = ["# prints: " + re.sub(r"(\.\d\d)\d+$", r"\1…", line) for line in printed]
                if len(set(printed)) < len(printed):
                    commands = ["{", *commands, "} > shown", "cat shown",
                                f'test "$(sort -u shown | wc -l)" = {len(set(printed))}']
                problems += run(document, begin, commands + wanted, folder, environment)
                ran += 1
        for command in re.findall(r"`(build/bin/tessera \w+ --help)`", text):
            problems += run(document, 0, [command], folder, environment)
            ran += 1
    if ran < 5:
        problems.append(f"{document}: only {ran} blocks were found to run")
    return problems, ran


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


def check_pictures(document, folder):
    """Those that its blocks wrote, by the names that the page shows."""
    problems = []
    for written in folder.glob("*.svg"):
        shown = document.parent / written.name
        if shown.exists() and shown.read_text() != written.read_text():
            problems.append(f"{document}: {shown.name} is not what its command writes any more; copy it to docs/")
    return problems


class Documents:
    def __init__(self, tessera, torch, root, scratch):
        self.torch, self.root, self.help = torch, root, Help(tessera)
        path = str(pathlib.Path(tessera).resolve().parent) + ":" + os.environ["PATH"]
        self.environment = dict(os.environ, ROOT=str(root), LC_ALL="C.UTF-8", PATH=path, OMPI_ALLOW_RUN_AS_ROOT="1",
                                OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_rmaps_base_oversubscribe="1")
        self.short = dict(self.environment, PATH=f"{short_path(scratch / 'short', tessera)}:{path}")
        self.ran = self.passed_over = 0

    def prepare(self, document, folder):
        """Makes what the blocks of a document need; once."""
        script = self.root / "tests" / "docs" / "given" / f"{document.stem}.sh"
        if script.exists() and not list(folder.iterdir()):
            return run(script, 1, script.read_text().splitlines(), folder, self.environment)
        return []

    def block(self, document, begin, mark, lines, folder):
        kind = mark[:1]
        if mark[:2] == ["sh", "run"]:
            if "torch" in mark and not self.torch:
                self.passed_over += 1
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
        return [f"{document}:{begin}: is marked {' '.join(mark)!r}; wanted sh run, sh not run: WHY, text, cpp, "
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
    """Of this program itself: a figure in another line than the one that is meant is no answer."""
    printed = "state      = 52.5 GB\nOften told wrong: 105 GB each\ntotal  105 GB\n"
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
    print(f"{documents.ran} blocks run, {documents.passed_over} passed over without torch, "
          f"{documents.help.looked_up} flags looked up, {len(problems)} problems")
    if problems:
        sys.exit("\n\n".join(problems))
    if len(names) > 1 and documents.ran < 10:
        sys.exit("too few blocks were found to have tested anything")


if __name__ == "__main__":
    main()
