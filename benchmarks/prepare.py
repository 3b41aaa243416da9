#!/usr/bin/env python3
"""Compares `tessera data prepare` with plain reading of the same file and with the package `tokenizers`.

Bytes as tokens: MB/s of text converted to a folder of tokens (two bytes per byte of text), compared with one
thread that only reads the file, and with one that reads it, sums it and writes it twice, synced, through the
page cache and past it; with the file in memory and after its pages were dropped. Besides MB/s of wall time it
prints MB/s per core by processor time, which other load affects less. BPE: compared with `tokenizers` with
the same number of threads, which reads the same JSON lines and keeps the tokens, but writes nothing. All run
in turns; prints the median and the best of all rounds.

    .interop-venv/bin/python benchmarks/prepare.py [--rounds N] [--megabytes N] [--dir DIR]
"""
import argparse
import json
import mmap
import os
import pathlib
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
CORES = len(os.sched_getaffinity(0))
sys.path.insert(0, str(ROOT / "tests/data"))


def text_of(megabytes):
    """Returns the sources of Python's library, repeated."""
    files = sorted(pathlib.Path(os.__file__).parent.rglob("*.py"))
    texts = [path.read_text(encoding="utf-8", errors="ignore").replace("\0", "") for path in files]
    texts = [text for text in texts if text]
    size, all_of_them = 0, []
    while size < megabytes * 1e6:
        for text in texts:
            all_of_them.append(text)
            size += len(text.encode())
            if size >= megabytes * 1e6:
                break
    return all_of_them, size


def drop(path):
    """Drops the pages of a file from memory."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def read(path):
    begin = time.perf_counter()
    fd = os.open(path, os.O_RDONLY)
    buffer = bytearray(1 << 20)
    view = memoryview(buffer)
    while os.readv(fd, [view]):
        pass
    os.close(fd)
    return time.perf_counter() - begin


def copy(path, out, flags):
    """Reads a file, sums it and writes every byte twice, as much as tokens of two bytes."""
    begin = time.perf_counter()
    source, target = os.open(path, os.O_RDONLY), os.open(out, os.O_RDWR | os.O_CREAT | os.O_TRUNC | flags)
    buffer = mmap.mmap(-1, 1 << 20)  # page-aligned
    sum_of_all = 0
    while got := os.readv(source, [buffer]):
        view = memoryview(buffer)[:got if not flags else (got + 4095) // 4096 * 4096]
        sum_of_all = zlib.crc32(view, sum_of_all)
        os.write(target, view)
        os.write(target, view)
        view.release()
    os.fdatasync(target)
    os.close(target)
    os.close(source)
    seconds = time.perf_counter() - begin
    os.unlink(out)
    return seconds


def processor_time():
    return sum(usage.ru_utime + usage.ru_stime for usage in map(
        resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))


def prepare(options, path, out, *flags):
    shutil.rmtree(out, ignore_errors=True)
    begin = time.perf_counter()
    subprocess.run([options.program, "data", "prepare", path, "--out", out, "--threads",
                    str(options.threads), *flags], check=True, capture_output=True)
    return time.perf_counter() - begin


def shown(label, size, times, busy=None):
    rates = [size / 1e6 / each for each in times]
    core = f"{size / 1e6 / statistics.median(busy):9.1f}" if busy else ""
    print(f"{label:44} {statistics.median(rates):9.1f} {max(rates):9.1f} {core}", flush=True)
    return statistics.median(rates)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--megabytes", type=float, default=400, help="size of the text for bytes; a tenth for BPE")
    parser.add_argument("--threads", type=int, default=CORES)
    parser.add_argument("--dir", help="folder for the files; its disk is measured")
    parser.add_argument("--program", default=str(ROOT / "build/bin/tessera"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        path, out = os.path.join(folder, "text.txt"), os.path.join(folder, "tokens")
        texts, size = text_of(options.megabytes)
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(texts)
        print(f"{size / 1e6:.0f} MB of text, {options.threads} threads{'':16} median      best  per core  MB/s")
        runs = {"reading, one thread": lambda: read(path),
                "reading, summing, writing, one thread": lambda: copy(path, out + ".copy", 0),
                "the same, past the page cache": lambda: copy(path, out + ".copy", os.O_DIRECT),
                "prepare, bytes": lambda: prepare(options, path, out)}
        for state in ("in memory", "from the disk"):
            times = {name: [] for name in runs}
            busy = {name: [] for name in runs}
            for _ in range(options.rounds):
                for name in list(runs):
                    drop(path) if state == "from the disk" else read(path)
                    before = processor_time()
                    try:
                        times[name].append(runs[name]())
                    except OSError:  # a file system without direct writes
                        del runs[name]
                        continue
                    busy[name].append(processor_time() - before)
            print(state)
            rates = {name: shown("  " + name, size, times[name], busy[name]) for name in runs}
            share = rates["prepare, bytes"] / rates["reading, one thread"] / options.threads
            print(f"  that is {share:.2f} x reading x threads")

        try:
            os.environ["RAYON_NUM_THREADS"] = str(options.threads)
            os.environ["TOKENIZERS_PARALLELISM"] = "true"
            import tokenizer_peer as peer
            from tokenizers import Tokenizer, pre_tokenizers
        except ImportError as error:
            print(f"skipped BPE: {error}")
            return
        texts, size = text_of(options.megabytes / 10)
        lines = os.path.join(folder, "text.jsonl")
        with open(lines, "w", encoding="utf-8") as file:
            file.writelines(json.dumps({"text": text}) + "\n" for text in texts)
        import tokenizer_texts
        tokenizer_texts.corpus = lambda count, seed=1: texts[:: max(1, len(texts) // 4000)]
        for name, splitter in (("gpt2", pre_tokenizers.ByteLevel(add_prefix_space=False)),
                               ("llama3", peer.split(peer.LLAMA3))):
            file = os.path.join(folder, "tokenizer.json")
            peer.with_end(peer.byte_level(splitter, vocabulary=16000)).save(file)
            tokenizer = Tokenizer.from_file(file)

            def package():
                begin = time.perf_counter()
                with open(lines, encoding="utf-8") as source:
                    encoded = tokenizer.encode_batch_fast([json.loads(line)["text"] for line in source],
                                                          add_special_tokens=False)
                return time.perf_counter() - begin, sum(len(each) for each in encoded) + len(encoded)

            ours, theirs = [], []
            for _ in range(options.rounds):
                ours.append(prepare(options, lines, out, "--tokenizer", file, "--end-token", "<|endoftext|>"))
                seconds, count = package()
                theirs.append(seconds)
            have = json.loads(subprocess.run([options.program, "data", "inspect", out, "--json"],
                                             check=True, capture_output=True).stdout)["tokens"]
            if have != count:
                sys.exit(f"{name}: {have} tokens, but {count} of the package")
            print(f"{size / 1e6:.0f} MB in JSON lines, {name}")
            theirs_rate = shown("  tokenizers, no files written", size, theirs)
            print(f"  that is {shown('  prepare', size, ours) / theirs_rate:.2f} x tokenizers")


if __name__ == "__main__":
    main()
