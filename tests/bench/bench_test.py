"""Tests tessera bench comm: bench_test.py <tessera> <peer_mpi>."""

import concurrent.futures
import json
import os
import shutil
import subprocess
import sys
import unittest

TESSERA = sys.argv[1]
PEER_MPI = sys.argv[2]
KEYS = ["op", "backend", "memory", "dtype", "ranks", "bytes", "ms", "min_ms", "gb_per_s"]


def call(*words, expect=0):
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "PMIX_"))}
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, env=environment)
    if done.returncode != expect:
        raise AssertionError(f"{words}: status is {done.returncode}, expected {expect}\n"
                             f"{done.stdout}\n{done.stderr}")
    return done


def bench(*words, expect=0):
    return call(TESSERA, "bench", "comm", "--time", "2ms", *words, expect=expect)


def mpirun(ranks, *words):
    as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return call("mpirun", "-n", str(ranks), "--oversubscribe", *as_root, *words)


class BenchComm(unittest.TestCase):
    def check(self, results):
        for result in results:
            self.assertEqual(list(result), KEYS)
            self.assertGreater(result["ms"], 0)
            self.assertLessEqual(result["min_ms"], result["ms"])
            rate = result["bytes"] / result["ms"] * 1e-6
            self.assertAlmostEqual(result["gb_per_s"], rate, delta=1e-4 * rate)

    def test_json_has_a_row_for_every_operation_size_and_memory(self):
        results = json.loads(bench("--ranks", "2", "--sizes", "4KiB,64KiB", "--json").stdout)
        self.check(results)
        self.assertEqual(
            [(r["op"], r["bytes"], r["memory"]) for r in results],
            [(op, size, memory) for op in ("all_reduce", "reduce_scatter", "all_gather")
             for size in (4096, 65536) for memory in ("symmetric", "ordinary")])
        self.assertEqual({(r["backend"], r["dtype"], r["ranks"]) for r in results},
                         {("shm", "f32", 2)})

    def test_every_operation_gives_correct_results_for_every_size(self):
        # The program aborts on a wrong result. With 1 element on 3 ranks, two have an empty shard.
        for dtype, sizes in (("bf16", "2,10006,600010"), ("u8", "1,37"), ("f64", "80,800008")):
            results = json.loads(bench("--ranks", "3", "--ops", "all", "--repeat", "3", "--sizes",
                                       sizes, "--dtype", dtype, "--json").stdout)
            self.check(results)
            self.assertEqual({r["dtype"] for r in results}, {dtype})
            self.assertEqual(len({r["op"] for r in results}), 8)

    def test_table(self):
        table = bench("--ranks", "2", "--sizes", "1MiB", "--ops", "all_reduce").stdout
        self.assertIn("shm, 2 ranks, f32", table)
        self.assertRegex(table, r"all_reduce +symmetric +1 MiB +[0-9.]+ +[0-9.]+ +[0-9.]+")
        self.assertRegex(table, r"all_reduce +ordinary +1 MiB +")

    def test_help_shows_examples(self):
        self.assertIn("tessera bench comm --ranks 2", bench("--help").stdout)

    def test_misspelled_words_are_reported_with_a_suggestion(self):
        for words, message in (
            (["--sizse", "4KiB"], "did you mean --sizes?"),
            (["--ops", "all_redcue"], "did you mean all_reduce?"),
            (["--memory", "symetric"], "did you mean symmetric?"),
            (["--sizes", "4M"], "--sizes"),
            (["--dtype", "f31"], "--dtype"),
            (["--dtype", "f32,bf16"], "--dtype"),  # not only the last one
            (["--dtype", "f31"], "Try: tessera bench comm --help"),
            (["--ranks", "1"], "must be 2 to"),
        ):
            self.assertIn(message, bench(*words, expect=2).stderr)

    def test_a_size_that_is_not_a_multiple_of_an_element_is_rejected(self):
        self.assertIn("must be a multiple of the 4 bytes",
                      bench("--ranks", "2", "--sizes", "6", expect=2).stderr)

    def test_an_error_of_all_ranks_is_reported_once(self):
        error = bench("--ranks", "2", "--sizes", "100TB", expect=1).stderr
        self.assertEqual(error.count("tessera bench"), 1, error)  # by the launcher
        self.assertIn("cannot reserve", error)

    def test_joins_the_ranks_of_a_launcher(self):
        results = json.loads(call(
            TESSERA, "run", "-n", "3", "--no-prefix", "--", TESSERA, "bench", "comm", "--time",
            "2ms", "--sizes", "64KiB", "--ops", "all_gather", "--memory", "ordinary",
            "--json").stdout)
        self.check(results)
        self.assertEqual([(r["op"], r["ranks"]) for r in results], [("all_gather", 3)])


@unittest.skipUnless(shutil.which("mpirun"), "there is no mpirun")
class BenchMpirun(unittest.TestCase):
    check = BenchComm.check

    def test_joins_the_ranks_of_mpirun(self):
        words = ["bench", "comm", "--sizes", "64KiB", "--time", "2ms", "--memory", "ordinary", "--json"]
        with concurrent.futures.ThreadPoolExecutor() as jobs:  # two at once, which must not meet
            runs = [jobs.submit(mpirun, ranks, TESSERA, *words) for ranks in (3, 2)]
        for run, ranks in zip(runs, (3, 2)):
            results = json.loads(run.result().stdout)
            self.check(results)
            self.assertEqual({(r["backend"], r["ranks"]) for r in results}, {("shm", ranks)})

    @unittest.skipUnless(os.path.exists(PEER_MPI), "built without libopenmpi-dev")
    def test_peer_prints_the_same_keys(self):
        results = json.loads(mpirun(2, PEER_MPI, "--sizes", "4096,65536", "--time", "0.002").stdout)
        self.check(results)
        self.assertEqual({r["backend"] for r in results}, {"openmpi"})


if __name__ == "__main__":
    del sys.argv[1:]
    unittest.main(verbosity=2)
