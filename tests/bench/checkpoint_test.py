"""Tests compare_checkpoint.py with stub programs, and the real programs at a tiny size:
checkpoint_test.py <checkpoint_bench> [<python with torch>]; with the latter only the peer.

Exits with 77, which ctest reports as skipped, if that Python is missing.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

BENCH = sys.argv[1]
PYTHON = sys.argv[2] if len(sys.argv) > 2 else None
BENCHMARKS = pathlib.Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import compare_checkpoint  # noqa: E402

TINY = ["--layers", "1", "--hidden", "32", "--vocab", "64", "--rounds", "2"]
# Stub of checkpoint_bench, torchrun and `tessera train`. The arguments determine which one it acts as.
STUB = """#!/usr/bin/env python3
import json, os, sys
words = sys.argv[1:]
if "train" in words:
    with open(words[words.index("--metrics") + 1], "w") as file:
        for step in range(1, 25):
            file.write(json.dumps({"step": step, "step_s": 1.2 if step % 4 == 1 else 1.0,
                                   "save_exposed_s": 0.04 if step % 4 == 0 else 0}) + "\\n")
        file.write(json.dumps({"summary": {}}) + "\\n")
elif "--version" in words:
    print("tessera 0")
else:
    torch = "torch.distributed.run" in words
    size = {"bytes": 1000000000, "ranks": 2, "tensors": 228}
    if torch:
        print("chatter\\n" + json.dumps(dict(size, torch="2.0", save=[4.0], load=[3.0],
                                            **{"async": [1.0]})))
    else:
        if words[words.index("--only") + 1] == "plain":
            figures = dict(write=[2.0], early=[1.0], write_direct=[0.9], read=[0.5],
                           read_direct=[0.4], read_cached=[0.2])
        else:
            figures = dict(save=[1.0], load=[float(os.environ["STUB_LOAD"])], load_cached=[0.25],
                           snapshot=[0.1])
        print(json.dumps(dict(size, **figures)))
"""


class Compare(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.build = pathlib.Path(folder.name)
        (self.build / "bin").mkdir()
        for name in ("tessera", "checkpoint_bench", "python"):
            (self.build / "bin" / name).write_text(STUB)
            (self.build / "bin" / name).chmod(0o755)

    def compare(self, *words, load=0.55, python="bin/python"):
        done = subprocess.run(
            [sys.executable, BENCHMARKS / "compare_checkpoint.py", "--build", self.build,
             "--python", self.build / python, "--no-docs", "--rounds", "2", *words],
            capture_output=True, text=True, timeout=60, env=dict(os.environ, STUB_LOAD=str(load)))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.output = done.stdout
        left = [path.name for path in self.build.iterdir()]
        self.assertEqual(sorted(left), ["bench", "bin"])  # no files are left
        return json.loads((self.build / "bench/checkpoint.json").read_text())

    def test_table(self):
        report = self.compare()
        save, load = report["table"][:2]
        self.assertAlmostEqual(save["of_plain"]["median"], 0.9)  # of the fastest plain write
        self.assertAlmostEqual(save["of_torch"]["median"], 4)
        self.assertTrue(save["met"] and load["met"])
        self.assertAlmostEqual(report["training"]["held"], 0.04)
        self.assertAlmostEqual(report["training"]["beside"], 0.2)
        self.assertTrue(report["training"]["met"])
        self.assertIn("| save | 1,000 (1,000) | 1,111 (1,111) | 250 (250) | 90% (90%), want 80% "
                      "| 4.0 (4.0), want 1.5 | met |", self.output)
        self.assertIn("4.0% of a step", self.output)

    def test_a_missed_target_is_reported(self):
        load = self.compare(load=0.7)["table"][1]
        self.assertFalse(load["met"])
        self.assertIn("71% (71%), want 80%", self.output)
        self.assertIn("**missed**", self.output)

    def test_without_torch(self):
        save = self.compare(python="bin/nothing")["table"][0]
        self.assertIsNone(save["torch"])
        self.assertTrue(save["met"])

    def test_docs(self):
        report = self.compare()
        page = self.build / "page.md"
        page.write_text("a\n<!-- checkpoint table: begin -->\noutdated\n<!-- checkpoint table: end -->\nb\n")
        compare_checkpoint.write_docs(page, report)
        text = page.read_text()
        self.assertTrue(text.startswith("a\n") and text.endswith("end -->\nb\n"))
        self.assertIn("| save | 1,000", text)
        self.assertNotIn("outdated", text)


def ours(folder):
    return json.loads(subprocess.run([BENCH, "--dir", folder, "--json", *TINY], check=True,
                                     capture_output=True, text=True, timeout=60).stdout)


class Ours(unittest.TestCase):
    def test_every_round_is_reported(self):
        with tempfile.TemporaryDirectory() as folder:
            result = ours(folder)
            self.assertEqual(os.listdir(folder), [])
            for what in ("write", "early", "write_direct", "save", "read", "read_direct", "load",
                         "read_cached", "load_cached", "snapshot"):
                self.assertEqual(len(result[what]), 2, what)
                self.assertTrue(all(seconds > 0 for seconds in result[what]))


class Peer(unittest.TestCase):
    def test_has_the_same_state(self):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                [PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
                 BENCHMARKS / "peer_checkpoint.py", "--dir", folder, *TINY],
                check=True, capture_output=True, text=True, timeout=120,
                env=dict(os.environ, OMP_NUM_THREADS="1"))
            theirs, result = json.loads(done.stdout.splitlines()[-1]), ours(folder)
            for what in ("bytes", "ranks", "tensors"):
                self.assertEqual(result[what], theirs[what], what)


if __name__ == "__main__":
    if PYTHON and not os.access(PYTHON, os.X_OK):
        print(f"{PYTHON} does not exist; scripts/peers.sh creates it")
        sys.exit(77)
    sys.argv[1:] = ["Peer"] if PYTHON else ["Compare", "Ours"]
    unittest.main(verbosity=2)
