#!/usr/bin/env python3
"""Trains the same small model on several meshes, each rank a process, and compares the losses.

    meshes_agree.py build/bin/tessera [--device cuda [--backend nccl]]
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

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
]
COMMON = ("--layers 4 --hidden 64 --heads 4 --vocab 64 --seq 32 --global-batch 16 --steps 6 "
          "--warmup 0 --samples 0 --threads 1").split()


def losses(program, flags, folder):
    """Returns the losses of a run. Exits if it fails, or if it did not send what was predicted."""
    metrics = pathlib.Path(folder) / "metrics.jsonl"
    command = [program, "train", *COMMON, *flags, "--metrics", str(metrics)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired as late:
        said = (late.stderr or b"").decode(errors="replace")
        sys.exit(f"{' '.join(command)}\nstood still for {late.timeout} s; it had said:\n{said}")
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\nfailed with status {done.returncode}:\n{done.stderr}")
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    summary = lines[-1]["summary"]
    if summary["predicted"]["sent"] != summary["measured"]["sent"]:
        sys.exit(f"{' '.join(flags)}: sent {summary['measured']['sent']}, "
                 f"but {summary['predicted']['sent']} was predicted")
    return [line["loss"] for line in lines[:-1]]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--backend", default="auto")
    given = parser.parse_args()
    device = ["--device", given.device]
    runs = {"": MESHES}
    if given.device == "cuda":
        runs = {"": MESHES + ON_A_GPU, **{variant: VARIED for variant in VARIANTS}}
    with tempfile.TemporaryDirectory() as folder:
        for variant, meshes in runs.items():
            same = [*variant.split(), *device]
            want = losses(given.program, ["--dp", "1", "--micro-batch", "16", *same], folder)
            for mesh in meshes:
                backend = [] if mesh.startswith("--dp 1") or "--backend" in mesh else ["--backend", given.backend]
                got = losses(given.program, [*mesh.split(), "--micro-batch", "2", *same, *backend], folder)
                worst = max(abs(a - b) / a for a, b in zip(want, got))
                name = f"{variant} {mesh}".strip()
                print(f"{given.device}: {name:76} losses differ by at most {worst:.1e}", flush=True)
                if len(got) != len(want) or worst > 1e-4:
                    sys.exit(f"{name}: {got}, but one process has {want}")


if __name__ == "__main__":
    main()
