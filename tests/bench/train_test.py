"""Tests compare_train.py with stub programs that implement only its protocol."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
BENCHMARKS = HERE.parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import served  # noqa: E402
import train_table  # noqa: E402


class CompareTrain(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.build = pathlib.Path(folder.name)
        (self.build / "bin").mkdir()
        for name in ("tessera", "train_bench", "python"):
            shutil.copy(HERE / "stub_program.py", self.build / "bin" / name)
            (self.build / "bin" / name).chmod(0o755)

    def compare(self, *words, expect=0, trouble="", bf16=100):
        variables = dict(os.environ, STUB_TROUBLE=trouble, STUB_BF16=str(bf16))
        done = subprocess.run(
            [sys.executable, BENCHMARKS / "compare_train.py", "--build", self.build, "--python",
             self.build / "bin/python", "--no-docs", *words],
            capture_output=True, text=True, timeout=120, env=variables)
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        self.output = done.stdout + done.stderr
        report = self.build / "bench/train.json"
        return json.loads(report.read_text()) if report.exists() else None

    def turns(self):
        """Returns (dtype, program, steps) in the order of the turns."""
        lines = (self.build / "bin/turns.txt").read_text().splitlines()
        return [tuple(line.split()) for line in lines]

    def test_every_program_runs_in_every_round_and_the_order_rotates(self):
        self.compare("--stages", "3", "--rounds", "4", "--steps", "5", "--dtype", "fp32",
                     "--only", "tessera-own-3,fsdp2,deepspeed-3,none")
        names = [name for _, name, _ in self.turns()]
        start = ["tessera-own-3", "none", "fsdp2", "deepspeed-3"]
        self.assertEqual(names, [*start, *start[1:], *start[:1], *start[2:], *start[:2],
                                 *start[3:], *start[:3]])
        self.assertEqual({steps for _, _, steps in self.turns()}, {"5"})

    def test_each_stage_has_its_peers(self):
        report = self.compare("--rounds", "1")
        met = {(r["dtype"], r["stage"]): set(r["programs"]) for r in report["results"]}
        peers = {0: {"ddp"}, 1: {"zero1", "deepspeed-1"}, 2: {"fsdp2-keep", "deepspeed-2"},
                 3: {"fsdp2", "deepspeed-3"}}
        self.assertEqual(met, {
            (dtype, stage): {"none", *peers[stage],
                             *(f"tessera-{model}-{stage}{silent}" for model in ("own", "plain")
                               for silent in ("", "-nocomm"))}
            for dtype in ("fp32", "bf16") for stage in range(4)})

    def test_table(self):
        report = self.compare("--stages", "0,3", "--rounds", "3")
        rows = {(dtype, row["name"]): row for dtype, table in report["table"].items()
                for row in table}
        own = rows["fp32", "tessera-own-0"]
        self.assertEqual(own["ratios"]["DDP"]["target"], 1.15)
        for kind in ("median", "best", "paired"):
            self.assertAlmostEqual(own["ratios"]["DDP"][kind], 1.6)
            self.assertAlmostEqual(own["ratios"]["silent"][kind], 0.98)
        self.assertTrue(own["met"])
        self.assertFalse(rows["bf16", "tessera-own-3"]["met"])  # 1.6 times FSDP2, target 1.8
        self.assertTrue(rows["bf16", "tessera-plain-3"]["met"])
        self.assertAlmostEqual(rows["fp32", "ddp"]["ratios"]["silent"]["median"], 0.75)
        self.assertIsNone(rows["fp32", "ddp"]["met"])
        self.assertIn("| 0 | Tessera, own GPT | 20,480 (20,480) | 0.98 (0.98), want 0.95 | "
                      "1.60 (1.60), want 1.15 |  |  | met |", self.output)
        self.assertIn("| 3 | Tessera, own GPT | 20,480 (20,480) | 0.98 (0.98), want 0.95 |  | "
                      "1.60 (1.60), want 1.8 | 1.60 (1.60), want 1.8 | **missed** |", self.output)

    def test_slow_bf16_is_reported_and_not_run(self):
        report = self.compare("--stages", "0", "--rounds", "1", bf16=0.1)
        self.assertEqual({dtype for dtype, _, _ in self.turns()}, {"fp32"})
        self.assertIn("0.1 GFLOP/s", report["left_out"]["bf16"])
        self.assertIn("bf16 is not measured: a bf16 matmul runs at 0.1 GFLOP/s", self.output)

    def test_continues_without_programs_that_fail(self):
        for how, said in (("start", "cannot start"), ("middle", "Error in the middle")):
            report = self.compare("--stages", "2", "--rounds", "3", "--dtype", "fp32",
                                  trouble=f"deepspeed-2:{how}")
            self.assertIn(said, report["left_out"]["deepspeed-2 at stage 2, fp32"])
            programs = report["results"][0]["programs"]
            self.assertNotIn("deepspeed-2", programs)
            self.assertEqual(len(programs["fsdp2-keep"]["turns"]), 3)
            self.assertIn("omitted: deepspeed-2", self.output)
        # A failure of Tessera's program is an error.
        self.compare("--stages", "2", "--rounds", "3", trouble="tessera-own-2:middle", expect=1)

    def test_without_tessera_or_without_peers(self):
        (self.build / "bin/train_bench").unlink()
        report = self.compare("--stages", "0", "--rounds", "1", "--dtype", "fp32")
        self.assertEqual(set(report["results"][0]["programs"]), {"none", "ddp"})
        self.assertIn("train_bench is not built", self.output)
        shutil.copy(HERE / "stub_program.py", self.build / "bin/train_bench")
        (self.build / "bin/python").unlink()
        report = self.compare("--stages", "0", "--rounds", "1", "--dtype", "fp32")
        self.assertEqual(len(report["results"][0]["programs"]), 4)
        self.assertIn("scripts/peers.sh", self.output)

    def test_peers_with_different_losses_are_reported(self):
        report = self.compare("--stages", "1", "--rounds", "1", "--dtype", "fp32",
                              trouble="zero1:loss")
        self.assertIn("zero1 9.0000", report["results"][0]["disagreement"])
        self.assertIn("do not train alike", self.output)

    def test_invalid_arguments_are_reported(self):
        for words, message in ((["--rounds", "0"], "--rounds 0: must be"), (["--stages", "4"], "--stages"),
                              (["--stages", "x"], "--stages"), (["--dtype", "fp8"], "--dtype")):
            self.compare(*words, expect=2)
            self.assertIn(message, self.output)

    def test_docs_get_only_the_measured_tables(self):
        report = self.compare("--stages", "0", "--rounds", "1", "--dtype", "bf16")
        page = self.build / "page.md"
        page.write_text("a\n<!-- train fp32: begin -->\nold\n<!-- train fp32: end -->\nb\n"
                        "<!-- train bf16: begin -->\nold\n<!-- train bf16: end -->\nc\n")
        tables = {"bf16": train_table.rows(report, "bf16", {0: ["ddp"]}, "none")}
        train_table.write_docs(page, report, tables)
        text = page.read_text()
        self.assertTrue(text.startswith("a\n<!-- train fp32: begin -->\nold\n"))
        self.assertIn("| 0 | PyTorch DDP | 12,800 (12,800) |", text.split("b\n")[1])
        self.assertTrue(text.endswith("<!-- train bf16: end -->\nc\n"))
        self.assertEqual(text.count("old"), 1)


class Served(unittest.TestCase):
    def start(self, code, **more):
        with tempfile.TemporaryDirectory() as folder:
            return served.Served("it", [sys.executable, "-c", code], None,
                                 pathlib.Path(folder) / "log", **more)

    def test_reports_a_program_that_is_never_ready(self):
        with self.assertRaisesRegex(served.ProgramFailed, "no answer within 0.2 s"):
            self.start("import time; time.sleep(100)", start_timeout=0.2)

    def test_reports_a_wrong_response(self):
        program = self.start("print('{\"ready\": true}', flush=True); input();"
                             "print('{\"ms\": 5, \"steps\": 1}', flush=True); input()")
        with self.assertRaisesRegex(served.ProgramFailed, "to go 2"):
            program.go(2)
        self.assertEqual(program.stop(), 0)

    def test_kills_a_program_that_does_not_exit_and_its_children(self):
        program = self.start(
            "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
            "child = os.fork();"
            "child and print('{\"ready\": true, \"child\": %d}' % child, flush=True);"
            "time.sleep(100)")
        self.assertEqual(program.stop(grace=0.1, patience=0.5), -9)
        for _ in range(100):  # until it has ended or is a zombie
            try:
                state = pathlib.Path(f"/proc/{program.ready['child']}/stat").read_text()
            except FileNotFoundError:
                return
            if state.split(")")[1].split()[0] == "Z":
                return
            time.sleep(0.1)
        self.fail(state)

    def test_physical_cores_are_distinct(self):
        cores = served.physical_cores(2)
        self.assertTrue(cores and set(cores) <= os.sched_getaffinity(0))
        self.assertLessEqual(len(cores), 2)


if __name__ == "__main__":
    unittest.main(verbosity=2)
