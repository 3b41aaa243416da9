#!/usr/bin/env python3
"""Compares training steps of Tessera and PyTorch on the GPU of this machine.

AdamW with fp32 masters (layout bf16):
  rows    xl15, xl1 (gpt2-xl, T 1024, batch 15 and 1), s4, s32 (gpt2-124m, T 1024, batch 4 and 32)
          wide6 (GPT of 24 layers, width 1536, 12 heads of 128, 32,000 tokens; T 2048, batch 6)
          l1b4, l1b1 (llama3.2-1b, T 2048, batch 4, and T 8192, batch 1), l3b2 (llama3.2-3b, T 2048, batch 2)
          s4fp32 (gpt2-124m, T 1024, batch 4, all in fp32 with products in TF32)
          xl15fp8, l1b4fp8 (as xl15 and l1b4, with the linears of the blocks in fp8)
  peers   PyTorch eager and torch.compile with modes default and max-autotune-no-cudagraphs
          (benchmarks/peer_gpu.py), which take turns in one process; --autocast adds variants with fp32
          parameters under torch.autocast
For each row all programs take turns, --turns times; a turn is a warm-up and --reps repetitions of
--steps steps. Peers release unused memory after their turn. Prints a table of the median and minimum
step time and of the allocator's peak, writes build/bench/gpu.json and, with --write, the table in
docs/benchmarks.md.

--curves trains gpt2-124m for 200 steps from the same parameters on the same data with Tessera and with
PyTorch's autocast, and compares the losses. For reference it also trains with another seed.

Needs a GPU and a Python with torch (--python); without a GPU it prints a note and exits with status 0.

Protocol of peer_gpu.py --serve: it prints {"ready": true, …}; on "go KIND STEPS REPS" it trains and
prints {"ms": [of each repetition], "peak": bytes, "loss": x, …}; on "quit" it exits.
"""

import argparse
import dataclasses
import datetime
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import served

ROOT = pathlib.Path(__file__).resolve().parent.parent


@dataclasses.dataclass
class Row:
    model: str  # of peer_gpu.py
    seq: int
    batch: int
    ratio: float  # target: time of the fastest compiled variant over Tessera's
    gb: float = 0  # target: peak of the allocator; 0: none
    layout: str = "bf16"
    flags: tuple = ()  # model of tessera train; empty: that of the peers

    def title(self):
        return f"{self.model}, T {self.seq}, B {self.batch}" + ("" if self.layout == "bf16" else f", {self.layout}")


WIDE = ("--model", "gpt2-124m", "--layers", 24, "--hidden", 1536, "--heads", 12, "--vocab", 32000,
        "--positions", 2048)
ROWS = {"xl15": Row("gpt2-xl", 1024, 15, 1.2, 49), "xl1": Row("gpt2-xl", 1024, 1, 1.9),
        "s4": Row("gpt2-124m", 1024, 4, 2.3), "s32": Row("gpt2-124m", 1024, 32, 1.2),
        "wide6": Row("gpt-24x1536", 2048, 6, 1.2, flags=WIDE),
        "l1b4": Row("llama3.2-1b", 2048, 4, 1.2), "l1b1": Row("llama3.2-1b", 8192, 1, 1.2),
        "l3b2": Row("llama3.2-3b", 2048, 2, 1.15, 55),
        "s4fp32": Row("gpt2-124m", 1024, 4, 1.0, layout="fp32"),
        "xl15fp8": Row("gpt2-xl", 1024, 15, 1.2, layout="fp8"),
        "l1b4fp8": Row("llama3.2-1b", 2048, 4, 1.2, layout="fp8")}
# What --device cpu trains instead, to test this program.
TINY = {"gpt": Row("test", 64, 2, 1, flags=("--layers", 2, "--hidden", 64, "--heads", 2, "--vocab", 256,
                                            "--positions", 1024)),
        "llama": Row("test-llama", 64, 2, 1, flags=("--model", "llama-tiny", "--layers", 2, "--hidden", 64,
                                                    "--heads", 4, "--kv-heads", 2, "--ffn", 256,
                                                    "--vocab", 256))}
KINDS = {"eager": "eager", "compile": "compile", "max-autotune": "compile, max-autotune"}
LABELS = {"tessera": "Tessera", **{kind: f"PyTorch {text}" for kind, text in KINDS.items()},
          **{f"autocast-{kind}": f"PyTorch autocast, {text}" for kind, text in KINDS.items()}}
WARMUP = 4  # uncounted steps of Tessera: GEMM algorithms are selected, the graph is captured
BEGIN, END = "<!-- gpu: begin -->", "<!-- gpu: end -->"
ADAMW = ["--weight-decay", "0.1", "--beta1", "0.9", "--beta2", "0.95"]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", default=",".join(ROWS), help="comma-separated (all)")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--reps", type=int, default=1, help="repetitions per turn (1)")
    parser.add_argument("--steps", type=int, default=10, help="steps per repetition (10)")
    parser.add_argument("--quick", action="store_true",
                        help="one turn of three repetitions; compiles blocks, not the whole model")
    parser.add_argument("--kinds", default=",".join(KINDS), help="variants of the peers, comma-separated (all)")
    parser.add_argument("--no-tessera", action="store_true")
    parser.add_argument("--autocast", action="store_true", help="also run the peers under autocast")
    parser.add_argument("--compile", choices=["whole", "blocks"], default=None)
    parser.add_argument("--attention", default="default", help="attention of the peers: default, cudnn, flash")
    parser.add_argument("--curves", action="store_true", help="compare losses instead")
    parser.add_argument("--curve-steps", type=int, default=200)
    parser.add_argument("--curve-batch", type=int, default=8)
    parser.add_argument("--data", type=pathlib.Path, help="text file (default: the sources of this tree)")
    parser.add_argument("--write", action="store_true", help="update docs/benchmarks.md")
    parser.add_argument("--json", type=pathlib.Path, help="the report (build/bench/gpu.json)")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--python", default=sys.executable, help="Python with torch")
    parser.add_argument("--hardware", default="", help="predict the step with this hardware entry")
    parser.add_argument("--hardware-file", type=pathlib.Path, help="file with that entry")
    parser.add_argument("--tessera-args", default="", help="more arguments for tessera train")
    parser.add_argument("--timeout", type=float, default=900, help="limit of one turn in seconds")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda",
                        help="cpu: tests this program with a tiny model")
    o = parser.parse_args()
    if o.quick:
        o.turns, o.reps = 1, 3
    o.compile = o.compile or ("blocks" if o.quick else "whole")
    o.rows = o.rows.split(",")
    unknown = [row for row in o.rows if row not in ROWS]
    if unknown:
        parser.error(f"--rows {unknown[0]}: must be some of {', '.join(ROWS)}")
    o.kinds = o.kinds.split(",") if o.kinds else []
    unknown = [kind for kind in o.kinds if kind not in KINDS]
    if unknown:
        parser.error(f"--kinds {unknown[0]}: must be some of {', '.join(KINDS)}")
    for name in ("turns", "reps", "steps", "curve_steps", "curve_batch"):
        if getattr(o, name) < 1:
            parser.error(f"--{name.replace('_', '-')} {getattr(o, name)}: must be at least 1")
    o.json = o.json or o.build / ("bench/gpu_curves.json" if o.curves else "bench/gpu.json")
    return o


def note(text):
    print(f"compare_gpu: {text}", file=sys.stderr, flush=True)


def probe(o):
    """Returns the versions and the GPU that the peers' Python reports, or the reason that it cannot run."""
    words = [o.python, str(ROOT / "benchmarks/peer_gpu.py"), "--probe"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    except OSError as error:
        return None, f"{o.python} cannot be started ({error.strerror})"
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        return None, f"{o.python} has no working torch: {last}"
    about = json.loads(done.stdout.splitlines()[-1])
    if about["gpu"] is None and o.device == "cuda":
        return None, f"torch {about['torch']} finds no GPU"
    return about, None


def card():
    """Returns the properties of the GPU from nvidia-smi."""
    if shutil.which("nvidia-smi") is None:
        return ""
    done = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version,power.limit",
                           "--format=csv,noheader"], capture_output=True, text=True)
    return done.stdout.strip().splitlines()[0] if done.returncode == 0 and done.stdout else ""


def make_text(o, folder):
    """Returns the text for training: the sources and pages of this tree, read as bytes by both sides."""
    if o.data:
        return o.data
    path = folder / "text.txt"
    parts = [p.read_text(errors="ignore") for kind in ("docs/*.md", "tessera/**/*.h",
                                                       "tessera/**/*.cpp")
             for p in sorted(ROOT.glob(kind))]
    path.write_text("".join(parts).replace("\0", ""))
    return path


class Peer(served.Served):
    def turn(self, kind, steps, reps, timeout):
        self.process.stdin.write(f"go {kind} {steps} {reps}\n".encode())
        self.process.stdin.flush()
        return self._answer("ms", timeout)


def start_peer(o, row, layout, data):
    words = [o.python, ROOT / "benchmarks/peer_gpu.py", "--serve", "--model", row.model, "--seq", row.seq,
             "--batch", row.batch, "--layout", layout, "--data", data, "--compile", o.compile,
             "--attention", o.attention, "--device", o.device]
    if o.device == "cpu":
        words += ["--vocab", 256]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore",
                   "PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    log = o.build / f"bench/logs/gpu-{row.model}-{row.seq}-{row.batch}-{layout}.log"
    return Peer(f"{layout} {row.model} {row.batch}", words, environment, log)


def tessera_words(o, row, steps, data, metrics, more=()):
    words = [o.build / "bin/tessera", "train", "--device", o.device, "--ranks", 1,
             *(row.flags or ("--model", row.model)), "--seq", row.seq,
             "--micro-batch", row.batch, "--layout", "bf16" if row.layout == "fp8" else row.layout,
             "--steps", steps, "--data", data,
             "--metrics", metrics, "--samples", 0, "--lr", "1e-4", "--clip", 1, *ADAMW, *more]
    if row.layout == "fp32" and o.device == "cuda":
        words += ["--matmul-precision", "high"]
    if row.layout == "fp8" and o.device == "cuda":
        words += ["--precision", "fp8"]
    if o.hardware:
        words += ["--hardware", o.hardware]
        if o.hardware_file:
            words += ["--hardware-file", o.hardware_file]
    return [str(word) for word in words] + o.tessera_args.split()


def run_tessera(o, row, steps, data, folder, more=()):
    """Returns the metrics lines, each with its arrival time, and the lines of the summary."""
    pipe = folder / "metrics.pipe"
    if pipe.exists():
        pipe.unlink()
    os.mkfifo(pipe)
    lines = []

    def read():
        with open(pipe) as file:
            for line in file:
                lines.append((time.monotonic(), json.loads(line)))

    # A daemon thread does not block the exit if the program never opens the pipe.
    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    words = tessera_words(o, row, steps, data, pipe, more)
    log = o.build / f"bench/logs/gpu-tessera-{row.model}-{row.seq}-{row.batch}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "w") as out:
        began = time.monotonic()
        try:
            status = subprocess.run(words, stdout=out, stderr=out, timeout=o.timeout).returncode
        except subprocess.TimeoutExpired:
            raise served.ProgramFailed(f"no end within {o.timeout:g} s (see {log})") from None
        except OSError as error:
            raise served.ProgramFailed(f"{words[0]}: {error.strerror}") from None
    if status != 0:
        last = [line for line in log.read_text(errors="replace").splitlines() if "tessera" in line]
        raise served.ProgramFailed(f"ended with status {status}; "
                                   f"{last[-1][:300] if last else ''} (see {log})")
    reader.join(30)
    taken = [(when, line) for when, line in lines if "step" in line and "loss" in line]
    summary = next((line for _, line in lines if "summary" in line), {}).get("summary", {})
    if len(taken) != steps:
        raise served.ProgramFailed(f"wrote {len(taken)} lines of metrics for {steps} steps")
    return began, taken, summary


def tessera_turn(o, row, data, folder):
    steps = WARMUP + o.reps * o.steps
    began, taken, summary = run_tessera(o, row, steps, data, folder)
    ms = []
    for rep in range(o.reps):
        first = WARMUP - 1 + rep * o.steps
        ms.append((taken[first + o.steps][0] - taken[first][0]) * 1e3 / o.steps)
    counted = [line for _, line in taken[WARMUP:]]
    return {"kind": "tessera", "ms": ms, "peak": max(line["mem_peak_bytes"] for line in counted),
            "loss": counted[-1]["loss"], "start_s": taken[0][0] - began,
            "step_ms": statistics.median(line["step_s"] * 1e3 for line in counted),
            "phases_ms": {name: statistics.median(line[name] * 1e3 for line in counted)
                          for name in ("forward_s", "backward_s", "optimizer_s")},
            "predicted": summary.get("predicted"), "measured": summary.get("measured")}


def row_on(o, name):
    """Returns the row that this device trains."""
    row = ROWS[name]
    if o.device == "cuda":
        return row
    layout = "bf16" if row.layout == "fp8" else row.layout  # CPUs have no fp8
    return dataclasses.replace(TINY["llama" if "llama" in row.model else "gpt"], layout=layout)


def measure_row(o, row, data, folder, left_out):
    """Returns the results of the turns by kind."""
    trained = row_on(o, row)
    answers = {}
    peers = {}
    layouts = {trained.layout: ""}
    if o.autocast and trained.layout == "bf16":
        layouts["autocast"] = "autocast-"
    try:
        for turn in range(o.turns):
            work = [] if o.no_tessera else [("tessera", None, None)]
            work += [(before + kind, layout, kind) for layout, before in layouts.items()
                     for kind in o.kinds]
            at = turn % max(len(work), 1)
            for name, layout, kind in work[at:] + work[:at]:
                if name in left_out.get(row, {}):
                    continue
                began = time.monotonic()
                try:
                    if layout is None:
                        answer = tessera_turn(o, trained, data, folder)
                    else:
                        if layout not in peers:
                            peers[layout] = start_peer(o, trained, layout, data)
                        answer = peers[layout].turn(kind, o.steps, o.reps, o.timeout)
                except (served.ProgramFailed, BrokenPipeError) as error:
                    left_out.setdefault(row, {})[name] = str(error)
                    note(f"{row}, {name} is left out: {error}")
                    if layout in peers:
                        peers.pop(layout).stop(grace=0)
                    continue
                answers.setdefault(name, []).append(answer)
                note(f"{row} {name}: {min(answer['ms']):.1f} ms, {answer['peak'] / 1e9:.1f} GB, "
                     f"loss {answer['loss']:.3f}; {time.monotonic() - began:.0f} s in all")
    finally:
        for peer in peers.values():
            peer.stop(grace=30)
    return answers


def summary(answers):
    ms = [value for answer in answers for value in answer["ms"]]
    return {"median": statistics.median(ms), "least": min(ms),
            "peak": max(answer["peak"] for answer in answers), "repetitions": len(ms)}


def markdown(results):
    kinds = [kind for kind in LABELS if any(kind in r["programs"] for r in results)]
    lines = ["| ms a step, median (least) / peak GB | " + " | ".join(LABELS[k] for k in kinds)
             + " | ratio | want |", "|---|" + "---|" * (len(kinds) + 2)]
    for result in results:
        row = ROWS[result["row"]]
        cells = []
        for kind in kinds:
            s = result["programs"].get(kind)
            cells.append(f"{s['median']:.1f} ({s['least']:.1f}) / {s['peak'] / 1e9:.1f}" if s else "–")
        ours = result["programs"].get("tessera")
        compiled = [s["median"] for kind, s in result["programs"].items()
                    if kind.endswith(("compile", "max-autotune"))]
        cells.append(f"{min(compiled) / ours['median']:.2f}" if ours and compiled else "–")
        want = f"≥ {row.ratio:g}" + (f" / ≤ {row.gb:g} GB" if row.gb else "")
        lines.append(f"| {row.title()} | " + " | ".join(cells) + f" | {want} |")
    return "\n".join(lines)


def extras(results):
    """Returns additional measurements of Tessera as text."""
    lines = []
    for result in results:
        ours = result["programs"].get("tessera")
        if not ours:
            continue
        last = ours["turns"][-1]
        text = f"{result['row']}: first step after {last['start_s']:.1f} s"
        predicted, measured = last.get("predicted") or {}, last.get("measured") or {}
        if predicted.get("step_s"):
            text += (f"; predicted {predicted['step_s'] * 1e3:.1f} ms "
                     f"({predicted['step_s'] * 1e3 / ours['median'] - 1:+.1%})")
        rows = []
        for name, want in (predicted.get("memory") or {}).items():
            got = (measured.get("memory") or {}).get(name)
            if got and want:
                rows.append(f"{name} {want / 1e9:.3f}/{got / 1e9:.3f} GB ({want / got - 1:+.1%})")
        if rows:
            text += "; memory predicted/measured: " + ", ".join(rows)
        lines.append(text)
    return "\n".join(lines)


def description(report):
    peers, commit = report["peers"], report["commit"]
    return (f"{report['date']}: {report['card'] or peers['gpu']}. Tessera {commit}; "
            f"torch {peers['torch']}, CUDA {peers['cuda']}, cuDNN {peers.get('cudnn')}. "
            f"Layout bf16 with fp32 masters, or fp32 with products in TF32; {report['turns']} turns of "
            f"{report['reps']} × {report['steps']} steps; compile: "
            f"{'the whole model' if report['compile'] == 'whole' else 'each block'}, modes default and "
            f"max-autotune-no-cudagraphs; attention of PyTorch: {report['attention']}. Ratio: the fastest "
            "compiled variant over Tessera, medians.")


def write_docs(report):
    page = ROOT / "docs/benchmarks.md"
    text = page.read_text()
    if BEGIN not in text or END not in text:
        raise SystemExit(f"compare_gpu: {page} does not have the markers {BEGIN} and {END}")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    page.write_text(f"{before}{BEGIN}\n{description(report)}\n\n{report['table']}\n{END}{after}")


def commit():
    done = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"],
                          capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def compare(o, about, data, folder):
    results, left_out = [], {}
    for row in o.rows:
        answers = measure_row(o, row, data, folder, left_out)
        results.append({"row": row, "programs": {kind: {**summary(every), "turns": every}
                                                 for kind, every in answers.items()}})
    report = {"date": datetime.date.today().isoformat(), "card": card(), "peers": about,
              "commit": commit(), "turns": o.turns, "reps": o.reps, "steps": o.steps,
              "compile": o.compile, "attention": o.attention,
              "left_out": left_out, "results": results, "table": markdown(results)}
    print(f"{description(report)}\n\n{report['table']}\n\n{extras(results)}")
    return report


def differences(a, b):
    """Returns the maximum and mean difference of two curves, and the mean of the last quarter."""
    each = [abs(x - y) for x, y in zip(a, b)]
    tail = each[-max(len(each) // 4, 1):]
    return {"max": max(each), "mean": statistics.mean(each), "mean_at_end": statistics.mean(tail)}


def peer_curve(o, model, data, start, lrs, seed, folder):
    """Returns the losses of PyTorch under autocast."""
    words = [o.python, ROOT / "benchmarks/peer_gpu.py", "--model", model, "--batch", o.curve_batch,
             "--layout", "autocast", "--data", data, "--lrs", lrs, "--curve", o.curve_steps,
             "--attention", o.attention, "--device", o.device, "--seed", seed]
    words += ["--seq", 64, "--vocab", 256] if o.device == "cpu" else ["--vocab", 50257]
    words += ["--start", start] if start else []
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True,
                          timeout=o.timeout)
    if done.returncode != 0:
        raise SystemExit(f"compare_gpu: peer_gpu.py failed: {done.stderr.strip()[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])["losses"]


def curves(o, about, data, folder):
    """Compares the losses, with the same initial parameters, data and learning rates for both."""
    row = dataclasses.replace(row_on(o, "s4"), batch=o.curve_batch)
    model = row.model
    shape = ("--lr", "3e-4", "--lr-schedule", "constant", "--warmup", 20, "--seed", 0)
    # A step with learning rate 0 does not change the parameters, so its checkpoint is the start.
    first = folder / "first"
    run_tessera(o, row, 1, data, folder,
                ("--lr", 0, "--seed", 0, "--save", first))
    start = folder / "start.safetensors"
    subprocess.run([str(o.build / "bin/tessera"), "checkpoint", "export", str(first), str(start)],
                   check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(first)
    _, taken, _ = run_tessera(o, row, o.curve_steps, data, folder, shape)
    ours = [line["loss"] for _, line in taken]
    lrs = folder / "lrs.txt"
    lrs.write_text("".join(f"{line['lr']!r}\n" for _, line in taken))
    theirs = peer_curve(o, model, data, start, lrs, 0, folder)
    other = peer_curve(o, model, data, None, lrs, 1, folder)
    report = {"date": datetime.date.today().isoformat(), "card": card(), "peers": about,
              "commit": commit(), "model": model, "batch": o.curve_batch, "steps": o.curve_steps,
              "tessera": ours, "autocast": theirs, "autocast_other_seed": other,
              "tessera_to_autocast": differences(ours, theirs),
              "autocast_to_other_seed": differences(theirs, other)}
    print(f"{model}, batch {o.curve_batch}, {o.curve_steps} steps from the same parameters on the "
          f"same data; loss {ours[0]:.4f} → {ours[-1]:.4f} (Tessera), {theirs[0]:.4f} → "
          f"{theirs[-1]:.4f} (PyTorch autocast)")
    for label, key in (("Tessera – autocast", "tessera_to_autocast"),
                       ("autocast – autocast with another seed", "autocast_to_other_seed")):
        d = report[key]
        print(f"  {label}: max {d['max']:.5f}, mean {d['mean']:.5f}, "
              f"mean of the last quarter {d['mean_at_end']:.5f}")
    return report


def main():
    o = arguments()
    about, why = probe(o)
    if why:
        print(f"compare_gpu: skipped: {why}")
        return 0
    with tempfile.TemporaryDirectory(prefix="compare_gpu-") as name:
        folder = pathlib.Path(name)
        data = make_text(o, folder)
        report = (curves if o.curves else compare)(o, about, data, folder)
    o.json.parent.mkdir(parents=True, exist_ok=True)
    o.json.write_text(json.dumps(report, indent=1) + "\n")
    if o.write and not o.curves:
        write_docs(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
