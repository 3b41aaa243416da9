"""Checks that commands in the documentation that are not run exist, and their flags."""

import re
import shlex
import subprocess


class Help:
    """Output of `tessera COMMAND --help`, cached."""

    def __init__(self, tessera):
        self.tessera, self.texts, self.absent, self.looked_up = tessera, {}, set(), 0

    def of(self, words):
        key = tuple(words)
        if key not in self.texts:
            done = subprocess.run([self.tessera, *words, "--help"], capture_output=True, text=True)
            self.texts[key] = done.stdout if done.returncode == 0 else None
            if "cannot be started" in done.stderr:
                self.absent.add(key)
        return self.texts[key]

    def command(self, words):
        """Returns the help of the command at the start of `words`, or of its subcommand if it has one."""
        plain = self.plain(words)
        return (self.of(plain) if len(plain) == 2 else None) or self.of(plain[:1])

    def not_built(self, words):
        """Returns True if the command's program is not built, such as `explain sync` without torch."""
        self.command(words)
        plain = self.plain(words)
        return bool({tuple(plain), tuple(plain[:1])} & self.absent)

    @staticmethod
    def plain(words):
        return [word for word in words[:2] if re.fullmatch(r"[a-z][a-z0-9-]*", word)]


def words_of(line):
    """Splits a line like a shell, without its comment."""
    try:
        return shlex.split(line.split(" # ")[0].split("  #")[0], comments=True)
    except ValueError:
        return line.split()


def check_command(words, help_of):
    """Checks the words after `tessera`."""
    if not words or not re.fullmatch(r"[a-z]+", words[0]):
        return []
    if help_of.not_built(words):
        return []
    text = help_of.command(words)
    if text is None:
        return [f"the command {words[0]!r} does not exist"]
    problems = []
    for word in words[1:]:
        if word in ("|", "&&", ";", ">", "--"):
            break
        flag = re.match(r"--[a-z][a-z0-9-]*", word)
        if flag:
            help_of.looked_up += 1
            if not re.search(rf"{re.escape(flag[0])}(?![a-z0-9-])", text):
                problems.append(f"tessera {words[0]} has no flag {flag[0]}")
    return problems


def check_script(lines, help_of, root):
    problems = []
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        for part in re.split(r"&&|\||;", line):
            words = words_of(part)
            for at, word in enumerate(words):
                if word in ("tessera", "build/bin/tessera"):
                    problems += check_command(words[at + 1:], help_of)
                elif re.match(r"(scripts|benchmarks|tests)/", word) and not (root / word).exists():
                    problems.append(f"{word} does not exist")
    return problems


def check_inline(text, help_of):
    """Checks commands in sentences."""
    problems = []
    outside = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    for code in re.findall(r"`tessera ([^`]+)`", outside):
        problems += [f"`tessera {code}`: {problem}" for problem in check_command(words_of(code), help_of)]
    return problems
