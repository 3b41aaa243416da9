"""Tests the peers of the training benchmark at a tiny size: peers_test.py <python with torch>.

Exits with 77, which ctest reports as skipped, if that Python or its torch is missing.
"""

import json
import os
import pathlib
import subprocess
import sys
import unittest

PYTHON = sys.argv[1]
SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "benchmarks/peer_train.py"
TINY = ["--layers", "2", "--hidden", "32", "--heads", "2", "--vocab", "128", "--seq", "16",
        "--micro-batch", "2", "--lr", "5e-3"]


def has(module):
    if not os.access(PYTHON, os.X_OK):
        return False
    code = f"import importlib.util as u, sys; sys.exit(u.find_spec({module!r}) is None)"
    return subprocess.run([PYTHON, "-c", code]).returncode == 0


def call(peer, *words, send="", ranks=2, expect=0):
    """Returns the JSON lines of a run."""
    variables = dict(os.environ, OMP_NUM_THREADS="1", PYTHONWARNINGS="ignore")
    done = subprocess.run(
        [PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks),
         SCRIPT, "--peer", peer, *TINY, *words],
        capture_output=True, text=True, input=send, timeout=300, env=variables)
    if done.returncode != expect:
        raise AssertionError(f"{peer} {words}: status is {done.returncode}, expected {expect}\n"
                             f"{done.stdout}\n{done.stderr[-4000:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


class Peers(unittest.TestCase):
    def learns(self, peers):
        """Checks that the peers, which train the same model on the same data, have equal fp32 losses."""
        ended = {}
        for peer in peers:
            line, = call(peer, "--self-check")
            self.assertEqual((line["peer"], line["dtype"]), (peer, "fp32"))
            self.assertTrue(line["fell"], line)
            ended[peer] = line["loss"]
        for peer, loss in ended.items():
            self.assertAlmostEqual(loss, ended[peers[0]], delta=1e-3, msg=str(ended))

    def test_pytorch(self):
        self.learns(["ddp", "zero1", "fsdp2-keep", "fsdp2"])

    @unittest.skipUnless(has("deepspeed"), "DeepSpeed is not installed")
    def test_deepspeed(self):
        self.learns(["ddp", "deepspeed-1", "deepspeed-2", "deepspeed-3"])

    def test_ranks_without_communication_learn(self):
        silent, = call("none", "--self-check")
        self.assertTrue(silent["fell"], silent)

    def test_served(self):
        ready, first, second = call("ddp", "--serve", send="go 3\ngo 1\nquit\n")
        self.assertTrue(ready["ready"])
        self.assertEqual(ready["ranks"], 2)
        for rep, steps, line in ((0, 3, first), (1, 1, second)):
            self.assertEqual((line["rep"], line["steps"]), (rep, steps))
            self.assertGreater(line["ms"], 0)
            rate = 2 * 2 * 16 / line["ms"] * 1e3
            self.assertAlmostEqual(line["tokens_per_s"], rate, delta=1e-6 * rate)

    def test_served_exits_at_the_end_of_input(self):
        self.assertEqual(len(call("fsdp2", "--serve", "--dtype", "bf16", "--warmup", "1",
                                  send="go 1\n")), 2)


if __name__ == "__main__":
    if not has("torch"):
        print(f"{PYTHON} has no torch; scripts/peers.sh installs one")
        sys.exit(77)
    del sys.argv[1:]
    unittest.main(verbosity=2)
