#!/usr/bin/env python3
"""Hybrid sharding on two hosts, a replica on each: fp32 parameters have the bits of plain sharding.

    hybrid_hosts.py build/bin/tessera

The hosts are network namespaces (tests/comm/two_hosts.sh). Exits with 77 (skipped) without them.
"""
import pathlib
import re
import subprocess
import sys

TWO_HOSTS = pathlib.Path(__file__).resolve().parent.parent / "comm" / "two_hosts.sh"
COMMON = ("train --layers 2 --hidden 64 --heads 4 --vocab 64 --seq 32 "
          "--micro-batch 2 --steps 4 --threads 1 --samples 0").split()


def parameters(program, *flags):
    """Returns the hash of the final parameters of a run."""
    done = subprocess.run([TWO_HOSTS, "--as", "torchrun", "2", "--", program, *COMMON, *flags], capture_output=True,
                          text=True, timeout=200)
    if done.returncode == 77:
        print(done.stdout.strip())
        sys.exit(77)
    text = done.stdout + done.stderr
    found = re.search(r"parameters ([0-9a-f]{16})", text)
    if done.returncode != 0 or not found:
        sys.exit(f"{' '.join(flags)}: status {done.returncode}:\n{text}")
    return found[1]


def main():
    for stage in ("1", "2", "3"):
        plain = parameters(sys.argv[1], "--zero", stage)
        hybrid = parameters(sys.argv[1], "--zero", stage, "--dp-replicate", "2")
        print(f"stage {stage}: {plain} without replicas, {hybrid} with two")
        if plain != hybrid:
            sys.exit("the parameters differ")


if __name__ == "__main__":
    main()
