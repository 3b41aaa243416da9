"""tessera bench comm as a user calls it: bench_test.py <tessera> [<peer_mpi>]."""

import json
import os
import shutil
import subprocess
import sys
import unittest

TESSERA = sys.argv[1]
PEER_MPI = sys.argv[2] if len(sys.argv) > 2 else ""
KEYS = ["op", "backend", "memory", "dtype", "ranks", "bytes", "ms", "min_ms", "gb_per_s"]


def call(*words, expect=0):
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "PMIX_"))}
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, env=environment)
    if done.returncode != expect:
        raise AssertionError(f"{words} gave {done.returncode}, wanted {expect}\n"
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

    def test_every_operation_gives_right_results_whatever_the_size(self):
        # A wrong result would end the program. 1 element on 3 ranks leaves two of them no shard.
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

    def test_mistakes_are_named_with_the_near_word(self):
        for words, wanted in (
            (["--sizse", "4KiB"], "did you mean --sizes?"),
            (["--ops", "all_redcue"], "did you mean all_reduce?"),
            (["--memory", "symetric"], "did you mean symmetric?"),
            (["--sizes", "4M"], "--sizes"),
            (["--dtype", "f31"], "--dtype"),
            (["--dtype", "f32,bf16"], "--dtype"),  # not the last of them alone
            (["--dtype", "f31"], "Try: tessera bench comm --help"),
            (["--ranks", "1"], "must be 2 to"),
        ):
            self.assertIn(wanted, bench(*words, expect=2).stderr)

    def test_a_size_that_does_not_hold_whole_elements_is_refused(self):
        self.assertIn("must be a multiple of the 4 bytes",
                      bench("--ranks", "2", "--sizes", "6", expect=2).stderr)

    def test_what_all_ranks_fail_with_is_told_once(self):
        told = bench("--ranks", "2", "--sizes", "100TB", expect=1).stderr
        self.assertEqual(told.count("tessera bench"), 1, told)  # by who started the ranks
        self.assertIn("cannot reserve", told)

    def test_joins_the_ranks_of_a_launcher(self):
        results = json.loads(call(
            TESSERA, "run", "-n", "3", "--no-prefix", "--", TESSERA, "bench", "comm", "--time",
            "2ms", "--sizes", "64KiB", "--ops", "all_gather", "--memory", "ordinary",
            "--json").stdout)
        self.check(results)
        self.assertEqual([(r["op"], r["ranks"]) for r in results], [("all_gather", 3)])


@unittest.skipUnless(PEER_MPI and shutil.which("mpirun"), "built without MPI")
class BenchMpi(unittest.TestCase):
    check = BenchComm.check

    def test_mpi_backend_alone_and_under_mpirun(self):
        words = ["--backend", "mpi", "--sizes", "64KiB", "--time", "2ms", "--json"]
        for done in (call(TESSERA, "bench", "comm", "--ranks", "2", *words),
                     mpirun(2, TESSERA, "bench", "comm", *words)):
            results = json.loads(done.stdout)
            self.check(results)
            self.assertEqual({(r["backend"], r["memory"]) for r in results}, {("mpi", "ordinary")})

    def test_peer_prints_the_same_keys(self):
        results = json.loads(mpirun(2, PEER_MPI, "--sizes", "4096,65536", "--time", "0.002").stdout)
        self.check(results)
        self.assertEqual({r["backend"] for r in results}, {"openmpi"})


if __name__ == "__main__":
    del sys.argv[1:]
    unittest.main(verbosity=2)
