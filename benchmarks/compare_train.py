#!/usr/bin/env python3
"""Compares training steps of Tessera, PyTorch and DeepSpeed on this machine.

One GPT (6 layers, width 512, 8 heads, vocabulary 8192, 256 tokens, micro-batch 4), AdamW, clip 1.0,
2 ranks of 1 thread. For each stage all programs are started once and then take turns: in each round
every one runs a few steps while the others sleep, and the order rotates, so that other load on the
machine affects all equally. Prints a table, writes build/bench/train.json and, after a complete run,
updates the tables in docs/benchmarks.md. Needs only Python's standard library; the peers run with
--python (default: that of .peers-venv, which scripts/peers.sh creates).

Protocol of all programs, Tessera's (train_bench, started by `tessera run`) and the peers' (peer_train.py,
started by torchrun):
 1. It is started with --serve. Standard input is a pipe that rank 0 reads; standard output is a pipe
    that rank 0 writes. Lines there that do not begin with "{" are ignored. Standard error is a log.
 2. It builds its model, trains --warmup steps, and prints the line
      {"ready": true, "peer": NAME, "dtype": "fp32"|"bf16", "ranks": N, "parameters": COUNT}
    "ready" is required; the other keys go to the report.
 3. It reads the line "go K", K >= 1. After a barrier rank 0 starts its clock; all ranks train
    K steps and complete them (including a gather of parameters that would overlap with the next
    step); after another barrier rank 0 stops its clock. It prints one line
      {"peer": NAME, "dtype": D, "rep": i, "steps": K, "ms": t, "tokens_per_s": v, "loss": x}
    with i counted from 0, ms the time of one step (the clock over K), v the tokens of all ranks per
    second, and x the mean loss of all ranks in the last step. Then it waits again.
 4. On the line "quit", on the end of input, or on any other line it exits with status 0.
 5. While it waits it uses no processor time: rank 0 blocks in a read, the others block too.
 6. On an error it prints a message to standard error and exits with a nonzero status.
It takes --layers --hidden --heads --vocab --seq --micro-batch --warmup --seed. Tessera's also takes
--model own|plain, --stage 0..3, --layout fp32|bf16, --comm on|off, and the arguments of --tessera-args.
"""

import argparse
import datetime
import fnmatch
import json
import os
import pathlib
import shlex
import statistics
import subprocess
import sys
import time

import compare_comm
import served
import train_table

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHAPE = {"layers": 6, "hidden": 512, "heads": 8, "vocab": 8192, "seq": 256, "micro-batch": 4}
# Peers with the same sharding as Tessera at each stage.
PEERS = {0: ["ddp"], 1: ["zero1", "deepspeed-1"], 2: ["fsdp2-keep", "deepspeed-2"],
         3: ["fsdp2", "deepspeed-3"]}
NONE = "none"
# Below this fraction of the fp32 rate, ATen has no usable bf16 kernel on this processor.
HOPELESS = 0.25
KEEP_HEAP = {"MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_MMAP_THRESHOLD_": str(1 << 40)}


def arguments(words=None):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="number of rounds (7)")
    parser.add_argument("--steps", type=int, default=2, help="steps per turn (2)")
    parser.add_argument("--dtype", choices=["fp32", "bf16", "both"], default="both")
    parser.add_argument("--stages", default="0,1,2,3", help="comma-separated stages (0,1,2,3)")
    parser.add_argument("--only", default="*",
                        help="comma-separated names, with * and ?: ddp,fsdp2*,tessera-own-3*")
    parser.add_argument("--quick", action="store_true",
                        help="3 rounds of 1 step; does not change docs/benchmarks.md")
    parser.add_argument("--no-docs", action="store_true", help="do not change docs/benchmarks.md")
    parser.add_argument("--json", type=pathlib.Path, help="the report (build/bench/train.json)")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--python", default=str(compare_comm.PEERS_PYTHON),
                        help="Python with torch for the peers (that of .peers-venv)")
    parser.add_argument("--extra-path", action="append", default=[], type=pathlib.Path,
                        help="folder of Python packages for the peers; see scripts/peers_extra.sh")
    parser.add_argument("--tessera-args", default="", help="more arguments for train_bench")
    parser.add_argument("--peer-heap", choices=["default", "keep"], default="default",
                        help="keep: malloc of the peers never returns memory to the system, which helps them")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--cores", type=int, default=None,
                        help="cores that all programs are confined to (one per rank); 0: no limit")
    parser.add_argument("--warmup", type=int, default=2, help="steps before the first turn (2)")
    for name, value in SHAPE.items():
        parser.add_argument("--" + name, type=int, default=value)
    o = parser.parse_args(words)
    if o.quick:
        o.rounds, o.steps = min(o.rounds, 3), 1
    for name in ("rounds", "steps", "ranks"):
        if getattr(o, name) < 1:
            parser.error(f"--{name} {getattr(o, name)}: must be at least 1")
    try:
        o.stages = sorted({int(s) for s in o.stages.split(",")})
    except ValueError:
        o.stages = [-1]
    if not set(o.stages) <= set(PEERS):
        parser.error("--stages: must be comma-separated stages from 0 to 3")
    o.shape = {name: getattr(o, name.replace("-", "_")) for name in SHAPE}
    o.json = o.json or o.build / "bench/train.json"
    whole = (o.only == "*" and o.stages == list(PEERS) and o.shape == SHAPE and o.ranks == 2
             and not o.quick and not o.tessera_args)
    o.docs = whole and not o.no_docs
    o.cores = served.physical_cores(o.ranks if o.cores is None else o.cores) if o.cores != 0 else None
    return o


def tessera_programs(stage):
    """Returns {name: (model, comm)} of Tessera's programs."""
    return {f"tessera-{model}-{stage}{'' if comm == 'on' else '-nocomm'}": (model, comm)
            for model in ("own", "plain") for comm in ("on", "off")}


def environment(o):
    """Returns the environment of the peers, without variables of a launcher, which would confuse theirs."""
    variables = {k: v for k, v in os.environ.items()
                 if k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")}
    paths = [str(p.resolve()) for p in o.extra_path] + [variables.get("PYTHONPATH", "")]
    variables["PYTHONPATH"] = os.pathsep.join(p for p in paths if p)
    variables["OMP_NUM_THREADS"] = "1"
    variables["PYTHONWARNINGS"] = "ignore"
    variables["CUDA_VISIBLE_DEVICES"] = ""  # CPU only, even if there is a GPU
    if o.peer_heap == "keep":
        variables.update(KEEP_HEAP)
    return variables


def command(o, name, stage, dtype):
    common = ["--warmup", o.warmup, "--seed", 0, "--serve"]
    for key, value in o.shape.items():
        common += ["--" + key, value]
    ours = tessera_programs(stage).get(name)
    if ours:
        model, comm = ours
        return [o.build / "bin/tessera", "run", "-n", o.ranks, "--threads", 1, "--no-prefix", "--",
                o.build / "bin/train_bench", "--model", model, "--stage", stage, "--layout", dtype,
                "--comm", comm, *common, *shlex.split(o.tessera_args)]
    return [o.python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", o.ranks,
            ROOT / "benchmarks/peer_train.py", "--peer", name, "--dtype", dtype, *common]


def wanted(o, name):
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in o.only.split(","))


def probe(o):
    """Returns the versions that the peers' Python reports, or the reason that the peers cannot run."""
    words = [o.python, ROOT / "benchmarks/peer_train.py", "--probe"]
    try:
        done = subprocess.run([str(w) for w in words], capture_output=True, text=True, timeout=300,
                              env=environment(o))
    except OSError as error:
        return None, f"{o.python} cannot be started ({error.strerror}); run: scripts/peers.sh"
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        return None, f"{o.python} has no working torch: {last}"
    return json.loads(done.stdout), None


def note(text):
    print(f"bench: {text}", file=sys.stderr, flush=True)


class Progress:
    def __init__(self, total):
        self.total, self.done, self.began = total, 0, time.monotonic()

    def tick(self, text):
        self.done += 1
        left = (time.monotonic() - self.began) / self.done * (self.total - self.done)
        bar = "#" * (30 * self.done // self.total)
        end = "\n" if self.done == self.total else ""
        if sys.stderr.isatty():
            print(f"\r{text:<34} |{bar:<30}| {left:4.0f} s left", end=end, file=sys.stderr,
                  flush=True)
        elif self.done % max(self.total // 8, 1) == 0:
            note(f"{text}, about {left:.0f} s left")


def start_all(o, names, stage, dtype, left_out):
    programs = {}
    for name in names:
        ours = name.startswith("tessera-")
        log = o.build / f"bench/logs/{dtype}-{stage}-{name}.log"
        try:
            programs[name] = served.Served(name, command(o, name, stage, dtype),
                                           dict(os.environ) if ours else environment(o), log,
                                           o.cores)
        except served.ProgramFailed as error:
            left_out[name] = str(error)
            note(f"{name} is left out: {error}")
    return programs


def measure_stage(o, stage, dtype, names, left_out):
    """Runs all programs of a stage in turns. Returns {name: list of results, one per round}."""
    note(f"stage {stage}, {dtype}: starting {', '.join(names)}")
    programs = start_all(o, names, stage, dtype, left_out)
    answers = {name: [] for name in programs}
    progress = Progress(o.rounds * max(len(programs), 1))
    try:
        for number in range(o.rounds):
            turns = list(programs)
            first = number % len(turns) if turns else 0
            for name in turns[first:] + turns[:first]:
                try:
                    answers[name].append(programs[name].go(o.steps))
                except served.ProgramFailed as error:
                    left_out[name] = str(error)
                    note(f"{name} is left out: {error}")
                    programs.pop(name).stop(grace=0)
                    del answers[name]
                progress.tick(f"stage {stage} {dtype} round {number + 1}/{o.rounds}")
    finally:
        for program in programs.values():
            program.quit()
        for program in programs.values():
            program.stop()
    return answers


def disagreement(answers):
    """Returns a problem if the fp32 losses of the peers differ: they train the same model on the same data."""
    losses = {name: every[-1]["loss"] for name, every in answers.items()
              if not name.startswith("tessera-") and name != NONE}
    if losses and max(losses.values()) - min(losses.values()) > 0.01 * max(losses.values()):
        return "the peers' losses differ, so they do not train alike: " + ", ".join(
            f"{name} {loss:.4f}" for name, loss in losses.items())
    return None


def summary(every):
    rates = [answer["tokens_per_s"] for answer in every]
    return {"median": statistics.median(rates), "best": max(rates),
            "ms": statistics.median(answer["ms"] for answer in every),
            "min_ms": min(answer["ms"] for answer in every), "loss": every[-1]["loss"]}


def measure(o, about):
    """Returns the results of all stages and dtypes, and the omitted programs with the reasons."""
    results, left_out = [], {}
    dtypes = ["fp32", "bf16"] if o.dtype == "both" else [o.dtype]
    if about and "bf16" in dtypes and about["bf16_gflops"] < HOPELESS * about["fp32_gflops"]:
        reason = (f"a bf16 matmul runs at {about['bf16_gflops']:.2g} GFLOP/s here, one of fp32 at "
                  f"{about['fp32_gflops']:.2g}: this processor has no bf16 instructions that torch "
                  f"uses (AMX, AVX512-BF16, Arm BF16)")
        left_out["bf16"] = reason
        note(f"bf16 is not measured: {reason}")
        dtypes.remove("bf16")
    built = (o.build / "bin/train_bench").exists()
    if not built:
        left_out["tessera"] = f"{o.build / 'bin/train_bench'} is not built; run: make build"
        note(f"Tessera's programs are omitted: {left_out['tessera']}")
    for dtype in dtypes:
        for stage in o.stages:
            names = list(tessera_programs(stage)) if built else []
            names += [NONE, *PEERS[stage]] if about else []
            names = [name for name in names if wanted(o, name)]
            if not names:
                continue
            failed = {}
            answers = measure_stage(o, stage, dtype, names, failed)
            left_out.update({f"{name} at stage {stage}, {dtype}": why
                             for name, why in failed.items()})
            problem = disagreement(answers) if dtype == "fp32" else None
            if problem:
                note(problem)
            results.append({"stage": stage, "dtype": dtype, "disagreement": problem,
                            "programs": {name: {**summary(every), "turns": every}
                                         for name, every in answers.items()}})
    return results, left_out


def main():
    o = arguments()
    load = round(os.getloadavg()[0], 1)
    if load > 0.5:
        note(f"the load average is {load}: other programs are running, and figures will be less "
             "certain")
    about, why = probe(o)
    if why:
        note(f"the peers are omitted: {why}")
    results, left_out = measure(o, about)
    if why:
        left_out["peers"] = why
    report = {
        "date": datetime.date.today().isoformat(),
        "machine": compare_comm.machine(o),
        "peers_python": about,
        "rounds": o.rounds, "steps": o.steps, "ranks": o.ranks, "cores": o.cores,
        "shape": o.shape, "peer_heap": o.peer_heap, "tessera_args": o.tessera_args,
        "scheduling": compare_comm.scheduling(),
        "load_before": load, "load_after": round(os.getloadavg()[0], 1),
        "left_out": left_out, "results": results,
    }
    dtypes = list(dict.fromkeys(result["dtype"] for result in results))
    tables = {dtype: train_table.rows(report, dtype, PEERS, NONE) for dtype in dtypes}
    report["table"] = {dtype: [{k: v for k, v in row.items() if k != "figures"} for row in rows]
                       for dtype, rows in tables.items()}
    o.json.parent.mkdir(parents=True, exist_ok=True)
    o.json.write_text(json.dumps(report, indent=1) + "\n")
    print(train_table.description(report))
    for dtype in dtypes:
        print(f"\n{train_table.markdown(tables[dtype], dtype)}")
    for name, reason in left_out.items():
        print(f"omitted: {name}: {reason}")
    print(f"\nAll figures: {o.json}")
    if o.docs and not any(name.startswith("tessera") for name in left_out) and about:
        train_table.write_docs(ROOT / "docs/benchmarks.md", report, tables)
        print("Updated the tables in docs/benchmarks.md.")
    return 1 if any(name.startswith("tessera-") for name in left_out) else 0


if __name__ == "__main__":
    sys.exit(main())
