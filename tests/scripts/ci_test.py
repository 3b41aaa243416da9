#!/usr/bin/env python3
"""Checks the workflows of .github: the scripts and Makefile goals that they run exist and accept their arguments,
and jobs have minimal permissions. Then checks that workflows with one error each are rejected."""

import pathlib
import re
import shlex
import unittest

import small_yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORKFLOWS = ROOT / ".github" / "workflows"
CONTEXT = {"github.ref", "github.sha", "github.run_attempt", "github.event_name"}


def goals():
    """Returns the goals of the Makefile with their prerequisites and commands."""
    found, recipes = {}, None
    for line in (ROOT / "Makefile").read_text().splitlines():
        rule = re.match(r"([a-z][\w-]*):([^=]*)$", line)
        if rule:
            recipes = found[rule[1]] = {"first": rule[2].split(), "runs": []}
        elif line.startswith("\t") and recipes is not None:
            recipes["runs"].append(line.strip().lstrip("@"))
    return found


def check_command(line, seen):
    """Returns the problems of a shell line, which must run a make goal or a script of the tree."""
    words = shlex.split(line, comments=True)
    if words[:1] == ["exec"]:
        words = words[1:]
    if not words or tuple(words) in seen:
        return []
    seen.add(tuple(words))
    if words[0] == "make":
        return [problem for goal in words[1:] or ["help"] for problem in check_goal(goal, seen)]
    path = ROOT / words[0]
    if "/" not in words[0] or not path.is_file():
        return [f"{line!r}: must be make and a goal, or a script of the tree"]
    if not path.stat().st_mode & 0o100:
        return [f"{words[0]} is not executable"]
    text = path.read_text()
    problems = []
    for argument in words[1:]:
        # Scripts select by their argument with `case`.
        if not re.search(rf"^ *(?:[\w-]+ \| )*{re.escape(argument)}(?: \| [\w-]+)*\)", text, re.MULTILINE):
            problems.append(f"{words[0]} does not accept {argument!r}")
    for call in re.findall(r"^ *(?:exec )?((?:make|scripts/[\w.]+\.sh)(?: [a-z]+)*)$", text, re.MULTILINE):
        problems += check_command(call, seen)
    return problems


def check_goal(goal, seen):
    known = goals()
    if goal not in known:
        return [f"the Makefile has no goal {goal!r}"]
    problems = []
    for first in known[goal]["first"]:
        problems += check_goal(first, seen)
    for line in known[goal]["runs"]:
        if line.startswith("scripts/"):
            problems += check_command(line, seen)
    return problems


def check_expressions(text, matrix):
    problems = []
    for expression in re.findall(r"\$\{\{(.*?)\}\}", text):
        for name in re.findall(r"\b(?:[a-z_]+\.)+[a-z_]+", re.sub(r"'[^']*'", "", expression)):
            kind, _, key = name.partition(".")
            if not (key in matrix if kind == "matrix" else name in CONTEXT):
                problems.append(f"{name} does not exist")
    return problems


def check_caches(steps):
    problems, keys = [], {}
    for step in steps:
        action = step.get("uses", "").split("@")[0]
        if not action.startswith("actions/cache"):
            continue
        given = step.get("with") or {}
        keys[action.split("/")[-1]] = (given.get("path"), given.get("key"))
        if given.get("path") != "~/.cache/ccache":
            problems.append(f"{action} saves {given.get('path')}; must be ccache's folder ~/.cache/ccache")
        if "restore-keys" in given and not given["key"].startswith(given["restore-keys"]):
            problems.append(f"{action}: no key begins with {given['restore-keys']}")
        if "matrix.runner" not in str(given.get("key")) or "github.sha" not in str(given.get("key")):
            problems.append(f"{action}: the key {given.get('key')} is the same for several runners or commits")
    if len(set(keys.values())) > 1:
        problems.append(f"the saved and restored caches differ: {keys}")
    return problems


def check_workflow(text):
    """Returns the problems of a workflow."""
    try:
        workflow = small_yaml.read(text)
    except small_yaml.Unreadable as error:
        return [f"cannot be read: {error}"]
    problems, ran = [], 0
    if workflow.get("permissions") != {"contents": "read"}:
        problems.append(f"permissions are {workflow.get('permissions')}; must be contents: read")
    for line in re.findall(r"uses: (.*)$", text, re.MULTILINE):
        if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v[\d.]+", line):
            problems.append(f"{line}: must have a commit of 40 digits, followed by its version")
    for name, job in workflow["jobs"].items():
        matrix = job.get("strategy", {}).get("matrix", {})
        if "permissions" in job or "secrets" in text:
            problems.append(f"{name}: has more permissions than the workflow")
        if not isinstance(job.get("timeout-minutes"), int):
            problems.append(f"{name}: no timeout-minutes; the default of GitHub is six hours")
        problems += check_expressions(text, matrix)
        for step in job["steps"]:
            if step.get("uses", "").startswith("actions/checkout@") and \
                    (step.get("with") or {}).get("persist-credentials") is not False:
                problems.append("checkout leaves its credentials where tests can read them")
            for line in step.get("run", "").splitlines():
                ran += 1
                problems += check_command(line, set())
        problems += check_caches(job["steps"])
    return problems if ran else [*problems, "nothing is run"]


class Workflows(unittest.TestCase):
    def test_ours(self):
        files = sorted(WORKFLOWS.glob("*.y*ml"))
        self.assertTrue(files)
        for file in files:
            self.assertEqual(check_workflow(file.read_text()), [], file.name)

    def test_what_is_run_is_followed_to_the_end(self):
        seen = set()
        self.assertEqual(check_command(".ci/run", seen), [])
        for words in (("make", "test", "programs", "sanitize"), ("scripts/setup.sh",), ("scripts/docs.sh", "tools"),
                      ("scripts/test.sh",), ("scripts/test.sh", "sanitize")):
            self.assertIn(words, seen)

    def test_errors_are_reported(self):
        good = (WORKFLOWS / "ci.yml").read_text()
        for old, new, named in (
                ("run: .ci/run", "run: make tset", "no goal 'tset'"),
                ("run: .ci/run", "run: scripts/tests.sh", "a script of the tree"),
                ("run: .ci/run", "run: scripts/test.sh sook", "does not accept 'sook'"),
                ("run: .ci/run", "run: |\n          make lint\n          make bulid", "no goal 'bulid'"),
                ("run: .ci/run", "run: curl example.com", "a script of the tree"),
                ("contents: read", "contents: write", "must be contents: read"),
                ("11bd71901bbe5b1630ceea73d27597364c9af683 # v4.2.2", "v4", "a commit of 40 digits"),
                ("persist-credentials: false", "persist-credentials: true", "credentials"),
                ("matrix.runner }}\n", "matrix.runer }}\n", "matrix.runer does not exist"),
                ("github.sha", "github.shah", "github.shah does not exist"),
                ("    timeout-minutes: 120\n", "", "timeout-minutes"),
                ("path: ~/.cache/ccache", "path: ~/.ccache", "ccache's folder"),
                ("restore-keys: ccache-", "restore-keys: cache-", "no key begins"),
                ("        run: .ci/run\n", "", "nothing is run"),
                ("jobs:", "jobs: {", "cannot be read"),
        ):
            with self.subTest(new=new):
                self.assertIn(old, good)
                problems = check_workflow(good.replace(old, new))
                self.assertTrue(any(named in problem for problem in problems), problems)

    def test_reader_agrees_with_another(self):
        try:
            import yaml
        except ImportError:
            self.skipTest("no PyYAML here")
        text = (WORKFLOWS / "ci.yml").read_text() + "more:\n  - run: |\n      make a\n\n      make b\n  - 7\n"
        theirs = yaml.safe_load(text)
        theirs["on"] = theirs.pop(True)  # YAML 1.1 reads it as a boolean
        theirs["more"][0]["run"] = theirs["more"][0]["run"].rstrip("\n")
        self.assertEqual(small_yaml.read(text), theirs)


if __name__ == "__main__":
    unittest.main()
