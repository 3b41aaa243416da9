#!/usr/bin/env python3
"""Trains the same small model on several meshes, each rank a process, and compares the losses.

    meshes_agree.py build/bin/tessera [--device cuda [--backend nccl]] [--jobs N] [--only TEXT] [--report FILE]
"""
import argparse
import concurrent.futures
import json
import pathlib
import subprocess
import sys
import tempfile
import time

MESHES = [
    "--dp 2 --zero 3",
    "--tp 2",
    "--tp 2 --sequence-parallel --zero 1 --dp 2",
    "--tp 2 --sequence-parallel --overlap-tp",
    "--pp 2 --zero 1 --split 3,1",
    "--pp 2 --schedule zb-h1",
    "--pp 2 --schedule interleaved --chunks 2 --zero 2 --dp 2",
    "--tp 2 --pp 2 --zero 1 --recompute full",
    "--dp 4 --dp-replicate 2 --zero 3",
    "--dp 4 --dp-replicate 2 --zero 1 --backend tcp",
    "--dp 4 --dp-replicate 2 --zero 2 --tp 2 --backend tcp",
    "--cp 2 --dp 2 --zero 3 --cp-kind ring",
    "--cp 4 --cp-kind ulysses --recompute selective",
]
# On a GPU also with one rank, where a step is a graph, and with all features of graphs.
ON_A_GPU = [
    "--dp 1 --cuda-graph on",
    "--dp 1 --cuda-graph off",
    "--dp 1 --zero 3 --cuda-graph on",
    "--dp 1 --recompute selective --cuda-graph on",
    "--dp 1 --recompute full --cuda-graph on",
    "--dp 2 --zero 1 --recompute selective",
    "--dp 2 --zero 2",
    "--dp 2 --dp-replicate 2 --zero 2",
    "--pp 2 --recompute selective",
    "--cp 4 --cp-kind ring --recompute selective",
    "--cp 2 --tp 2 --sequence-parallel --cp-kind ring --recompute full --zero 1",
]
# Only over NCCL, whose transfers can be part of a graph.
ON_NCCL = [
    "--cp 2 --cp-kind ring --cuda-graph on",
    "--cp 2 --cp-kind ulysses --cuda-graph on",
]
# Other models and settings, on a GPU on every tensor-parallel mesh: their operations are fused there.
VARIANTS = [
    "--model llama-tiny",
    "--model qwen3-0.6b --kv-heads 2 --ffn 96",
    "--model gemma2-2b --kv-heads 2 --ffn 96",
    "--lora-rank 4 --lora-targets all",
    "--dropout 0.1",
]
VARIED = [
    "--tp 2",
    "--tp 4 --recompute selective",
    "--tp 2 --sequence-parallel --recompute full",
    "--tp 2 --sequence-parallel --zero 2 --dp 2",
    "--cp 2 --cp-kind ulysses",
]
# Rings have no capped scores.
RINGS = ["--model llama-tiny", "--model qwen3-0.6b --kv-heads 2 --ffn 96", "--lora-rank 4 --lora-targets all"]
COMMON = ("--layers 4 --hidden 64 --heads 4 --vocab 64 --seq 32 --global-batch 16 --steps 6 "
          "--warmup 0 --samples 0 --threads 1").split()


class Failed(Exception):
    """A run that failed, or whose result is wrong."""


def losses(program, flags, folder):
    """Trains and returns the loss of each step. `folder` gets the metrics."""
    metrics = folder / "metrics.jsonl"
    command = [program, "train", *COMMON, *flags, "--metrics", str(metrics)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired as late:
        printed = (late.stderr or b"").decode(errors="replace")
        raise Failed(f"{' '.join(command)}\ndid not end within {late.timeout} s; it printed:\n{printed}")
    if done.returncode != 0:
        raise Failed(f"{' '.join(command)}\nfailed with status {done.returncode}:\n{done.stderr}")
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    summary = lines[-1]["summary"]
    if summary["predicted"]["sent"] != summary["measured"]["sent"]:
        raise Failed(f"{' '.join(flags)}: sent {summary['measured']['sent']}, "
                     f"but {summary['predicted']['sent']} was predicted")
    return [line["loss"] for line in lines[:-1]]


def compare(program, mesh, flags, want):
    """Trains on a mesh. Returns a row of the report."""
    began = time.monotonic()
    try:
        with tempfile.TemporaryDirectory() as folder:
            got = losses(program, flags, pathlib.Path(folder))
        worst = max(abs(a - b) / a for a, b in zip(want, got))
        if len(got) != len(want) or worst > 1e-4:
            raise Failed(f"{mesh}: {got}, but one process has {want}")
        problem, result = "", f"losses differ by at most {worst:.1e}"
    except Failed as failed:
        problem, result = str(failed), "FAILED"
    return {"name": mesh, "result": result, "problem": problem, "seconds": time.monotonic() - began}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--backend", default="auto", help="nccl: only meshes that use a backend")
    parser.add_argument("--jobs", type=int, default=1, help="meshes at the same time (1)")
    parser.add_argument("--only", default="", help="meshes whose flags contain this text")
    parser.add_argument("--report", type=pathlib.Path, help="write the rows as JSON")
    given = parser.parse_args()
    device = ["--device", given.device]
    runs = [("", mesh) for mesh in MESHES]
    if given.device == "cuda":
        runs += [("", mesh) for mesh in ON_A_GPU]
        runs += [(variant, mesh) for variant in VARIANTS for mesh in VARIED]
        runs += [(variant, "--cp 4 --cp-kind ring") for variant in RINGS]
    if given.backend == "nccl":
        runs += [("", mesh) for mesh in ON_NCCL]
        runs = [(variant, mesh) for variant, mesh in runs if not has_own_backend(mesh)]
    runs = [(variant, mesh) for variant, mesh in runs if given.only in mesh]
    want = {}  # by variant
    try:
        for variant in dict(runs):
            with tempfile.TemporaryDirectory() as folder:
                want[variant] = losses(given.program, ["--dp", "1", "--micro-batch", "16",
                                                       *variant.split(), *device], pathlib.Path(folder))
    except Failed as failed:
        sys.exit(str(failed))

    def run(case):
        variant, mesh = case
        name = f"{variant} {mesh}".strip()
        backend = [] if has_own_backend(mesh) else ["--backend", given.backend]
        flags = [*name.split(), "--micro-batch", "2", *device, *backend]
        row = compare(given.program, name, flags, want[variant])
        print(f"{given.device}: {name:76} {row['result']}; {row['seconds']:.0f} s", flush=True)
        return row

    with concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
        rows = list(pool.map(run, runs))
    if given.report:
        given.report.write_text(json.dumps(rows))
    problems = [row["problem"] for row in rows if row["problem"]]
    if problems:
        sys.exit("\n".join(problems))


def has_own_backend(mesh):
    """Returns true if --backend does not apply: the mesh has one rank, or names its backend."""
    return mesh.startswith("--dp 1 ") or "--backend" in mesh


if __name__ == "__main__":
    main()
