#!/usr/bin/env python3
"""Checks the questions of docs/tutorial.md: each chapter has some, each has a command, and the numbers in the
answer are in the `# prints:` lines of the command, which docs.blocks checks."""

import pathlib
import re
import sys

TUTORIAL = pathlib.Path(__file__).resolve().parents[2] / "docs" / "tutorial.md"
QUESTION = re.compile(r"^\*\*([^*]+\?)\*\*([^\n]*)\n```sh run\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FIGURE = re.compile(r"\d[\d,.]*\d(?: ?(?:[GM]B|ms|%|×))?|\b\d(?: ?(?:[GM]B|ms|%|×))")


def check_chapter(title, text):
    problems = []
    questions = QUESTION.findall(text)
    total = len(re.findall(r"^\*\*[^*]+\?\*\*", text, re.MULTILINE))
    if not questions or len(questions) != total:
        problems.append(f"{title}: {total} questions, but {len(questions)} have a command")
    for question, answer, script in questions:
        printed = re.findall(r"^# prints: (.*)$", script, re.MULTILINE)
        if not re.search(r"^tessera ", script, re.MULTILINE) or not printed or not answer.strip():
            problems.append(f"{question}: must have an answer, a tessera command and a `# prints:` line")
        for figure in FIGURE.findall(re.sub(r"\[[^]]*\]\([^)]*\)", "", answer)):
            if not any(figure in line for line in printed):
                problems.append(f"{question}: the answer has {figure}, which is not in {printed}")
    return problems, len(questions)


def main():
    chapters = re.split(r"^## (\d+\. .*)$", TUTORIAL.read_text(), flags=re.MULTILINE)[1:]
    problems, count = [], 0
    for title, text in zip(chapters[::2], chapters[1::2]):
        more, found = check_chapter(title, text.split("\n## ")[0])
        problems, count = problems + more, count + found
    if len(chapters) < 12:
        problems.append(f"only {len(chapters) // 2} chapters were found")
    if problems:
        sys.exit("\n".join(problems))
    print(f"{count} questions in {len(chapters) // 2} chapters")


if __name__ == "__main__":
    main()
