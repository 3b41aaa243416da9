#!/usr/bin/env python3
"""Stub of `tessera run`, train_bench and a Python with torch, for testing compare_train.py. Implements the
protocol, does no work, and appends each turn to turns.txt next to it. STUB_TROUBLE=name:how makes one program
fail."""

import json
import os
import pathlib
import sys

words = sys.argv[1:]
if "--probe" in words:
    print(json.dumps({"fp32_gflops": 30.0, "bf16_gflops": float(os.environ["STUB_BF16"]),
                      "torch": "0.0", "deepspeed": None}))
    sys.exit(0)


def option(name):
    return words[words.index(name) + 1]


if "--model" in words:
    name = f"tessera-{option('--model')}-{option('--stage')}"
    name += "-nocomm" if option("--comm") == "off" else ""
    dtype = option("--layout")
else:
    name, dtype = option("--peer"), option("--dtype")
assert "--serve" in words and option("--vocab") == "8192", words
# Milliseconds per step: Tessera 100, without communication 98; every peer 160, without 120.
if name.startswith("tessera"):
    ms = 98.0 if name.endswith("nocomm") else 100.0
else:
    ms = 120.0 if name == "none" else 160.0
trouble = dict([os.environ["STUB_TROUBLE"].split(":")] if os.environ.get("STUB_TROUBLE") else [])
how = trouble.get(name)
if how == "start":
    sys.exit("stub: cannot start")
print("chatter\n{not json\n" + json.dumps({"ready": True, "peer": name}), flush=True)
rep = 0
for line in sys.stdin:
    order = line.split()
    if order[0] != "go":
        break
    if how == "middle" and rep == 1:
        sys.exit("stub: Error in the middle")
    steps = int(order[1])
    with open(pathlib.Path(__file__).with_name("turns.txt"), "a") as turns:
        turns.write(f"{dtype} {name} {steps}\n")
    print(json.dumps({"peer": name, "dtype": dtype, "rep": rep, "steps": steps, "ms": ms,
                      "tokens_per_s": 2048 / ms * 1e3,
                      "loss": 9.0 if how == "loss" else 5.0}), flush=True)
    rep += 1
