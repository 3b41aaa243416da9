#!/usr/bin/env python3
"""The questions of docs/tutorial.md: each chapter ends with some, a command stands under each, and whatever
figures the answer on the page has are among the texts that docs.blocks wants that command to print."""

import pathlib
import re
import sys

TUTORIAL = pathlib.Path(__file__).resolve().parents[2] / "docs" / "tutorial.md"
QUESTION = re.compile(r"^\*\*([^*]+\?)\*\*([^\n]*)\n```sh run\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FIGURE = re.compile(r"\d[\d,.]*\d(?: ?(?:[GM]B|ms|%|×))?|\b\d(?: ?(?:[GM]B|ms|%|×))")


def check_chapter(title, text):
    problems = []
    questions = QUESTION.findall(text)
    asked = len(re.findall(r"^\*\*[^*]+\?\*\*", text, re.MULTILINE))
    if not questions or len(questions) != asked:
        problems.append(f"{title}: {asked} questions, {len(questions)} with a command under them")
    for question, answer, script in questions:
        printed = re.findall(r"^# prints: (.*)$", script, re.MULTILINE)
        if not re.search(r"^tessera ", script, re.MULTILINE) or not printed or not answer.strip():
            problems.append(f"{question}: wanted an answer, a command of tessera and what it prints")
        for figure in FIGURE.findall(re.sub(r"\[[^]]*\]\([^)]*\)", "", answer)):
            if not any(figure in line for line in printed):
                problems.append(f"{question}: the page says {figure}, the command is to print {printed}")
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
