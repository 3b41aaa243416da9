#!/usr/bin/env python3
"""Compares tokenizers of Tessera and of the Python package `tokenizers`, one thread each, in turns.

Trains a tokenizer of each kind on texts of this machine (the sources of Python's library, and generated
sentences in many scripts), then encodes the same documents with both. Prints MB/s: the median and the best
of all rounds.

    .interop-venv/bin/python benchmarks/compare_tokenizers.py [--rounds N] [--megabytes N]
"""
import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/data"))

import tokenizer_peer as peer  # noqa: E402
import tokenizer_texts  # noqa: E402
from tokenizers import Tokenizer, normalizers, pre_tokenizers  # noqa: E402


def documents(megabytes):
    """Returns texts in English and code, and a quarter as many in other scripts."""
    english, size = [], 0
    for path in sorted(pathlib.Path(os.__file__).parent.rglob("*.py")):
        if size >= megabytes * 1e6:
            break
        text = path.read_text(encoding="utf-8", errors="ignore").replace("\0", "")
        if text:
            english.append(text)
            size += len(text.encode())
    other, size = [], 0
    for text in tokenizer_texts.corpus(10**9, seed=2):
        if size >= megabytes * 0.25e6:
            break
        if not other or len(other[-1]) > 4000:
            other.append("")
        other[-1] += text + "\n"
        size += len(text.encode()) + 1
    return {"english and code": english, "many scripts": other}


def kinds(texts):
    everything = [text for group in texts.values() for text in group]
    tokenizer_texts.corpus = lambda lines, seed=1: everything[:: max(1, len(everything) // 4000)]
    return {
        "gpt2": lambda: peer.with_end(peer.byte_level(
            pre_tokenizers.ByteLevel(add_prefix_space=False), vocabulary=16000)),
        "llama3": lambda: peer.byte_level(peer.split(peer.LLAMA3), vocabulary=16000, ignore_merges=True),
        "qwen2": lambda: peer.byte_level(peer.split(peer.QWEN2), normalizers.NFC(), vocabulary=16000),
        "o200k": lambda: peer.byte_level(peer.split(peer.O200K), vocabulary=16000),
        "llama2": lambda: peer.llama2(vocabulary=16000),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--megabytes", type=float, default=4, help="size of the English text and code")
    parser.add_argument("--program", default=str(ROOT / "build/bin/tokenizer_bench"))
    options = parser.parse_args()
    texts = documents(options.megabytes)
    slower = []
    print(f"{'tokenizer':10} {'text':18} {'MB':>5}  {'tessera MB/s':>18}  {'tokenizers MB/s':>18}  ratio")
    print(f"{'':10} {'':18} {'':5}  {'median':>9}{'best':>9}  {'median':>9}{'best':>9}")
    with tempfile.TemporaryDirectory() as folder:
        for name, make in kinds(texts).items():
            path = os.path.join(folder, "tokenizer.json")
            make().save(path)
            tokenizer = Tokenizer.from_file(path)
            for title, group in texts.items():
                data = os.path.join(folder, "documents")
                size = 0
                with open(data, "wb") as file:
                    for text in group:
                        size += file.write(text.encode() + b"\0")
                program = subprocess.Popen([options.program, path, data], stdin=subprocess.PIPE,
                                           stdout=subprocess.PIPE, text=True)
                program.stdout.readline()
                ours, theirs = [], []
                for _ in range(options.rounds):
                    program.stdin.write("\n")
                    program.stdin.flush()
                    seconds, tokens = program.stdout.readline().split()
                    ours.append(size / 1e6 / float(seconds))
                    begin = time.perf_counter()
                    encoded = tokenizer.encode_batch_fast(group, add_special_tokens=False)
                    theirs.append(size / 1e6 / (time.perf_counter() - begin))
                    if sum(len(each) for each in encoded) != int(tokens):
                        sys.exit(f"{name}: {tokens} tokens, but {sum(len(e) for e in encoded)} of the package")
                program.stdin.close()
                program.wait()
                ratio = statistics.median(ours) / statistics.median(theirs)
                slower += [name] if ratio < 1 else []
                print(f"{name:10} {title:18} {size / 1e6:5.1f}  {statistics.median(ours):9.1f}{max(ours):9.1f}"
                      f"  {statistics.median(theirs):9.1f}{max(theirs):9.1f}  {ratio:5.1f}", flush=True)
    if slower:
        sys.exit(f"slower than the package tokenizers: {', '.join(slower)}")


if __name__ == "__main__":
    main()
