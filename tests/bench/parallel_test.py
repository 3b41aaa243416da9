"""Tests the tables of compare_parallel.py, without running the programs."""

import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "benchmarks"))

import compare_parallel  # noqa: E402


def result(mode, ours, theirs, bubble=None):
    turns = [{"tokens_per_s": rate, "bubble": bubble, "planned": 0.111} for rate in ours]
    found = {"mode": mode, "width": 256, "tessera": turns,
             "torch": [{"tokens_per_s": rate} for rate in theirs]}
    compare_parallel.judge(found)
    return found


class Tables(unittest.TestCase):
    def test_ratios_are_of_medians_and_of_the_best(self):
        found = result("tp", [100, 300, 200], [100, 100, 150])
        self.assertEqual(found["ratio"], 2)
        self.assertEqual(found["best_ratio"], 2)
        self.assertTrue(found["met"])

    def test_a_missed_target_is_reported(self):
        missed = result("pp", [140], [100], bubble=0.2)
        self.assertFalse(missed["met"])
        row = compare_parallel.table([missed]).splitlines()[-1]
        self.assertIn("1.40 (1.40), want 1.5 | **missed**", row)
        self.assertIn("20.0%, by the schedule 11.1%: **off**", row)
        row = compare_parallel.table([result("pp", [150], [100], bubble=0.12)]).splitlines()[-1]
        self.assertIn("| met | 12.0%, by the schedule 11.1% |", row)

    def test_the_rest_of_the_page_does_not_change(self):
        with tempfile.TemporaryDirectory() as folder:
            page = pathlib.Path(folder) / "page.md"
            page.write_text("a\n<!-- parallel bf16: begin -->\nold\n<!-- parallel bf16: end -->\nb\n")
            compare_parallel.write_docs(page, "bf16", "new")
            self.assertEqual(page.read_text(), "a\n<!-- parallel bf16: begin -->\nnew\n"
                                               "<!-- parallel bf16: end -->\nb\n")
            with self.assertRaises(SystemExit):
                compare_parallel.write_docs(page, "fp32", "new")


if __name__ == "__main__":
    unittest.main()
