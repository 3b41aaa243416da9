#!/usr/bin/env python3
"""Runs the examples as a user does, and compares the numbers they print.

  examples_test.py first_step TESSERA PROGRAM
  examples_test.py save_and_load TESSERA PROGRAM
  examples_test.py tensor_parallel_block TESSERA PROGRAM
  examples_test.py three_d TESSERA PROGRAM
  examples_test.py NAME TESSERA PROGRAM          the same for the other examples
  examples_test.py explain_sync TESSERA
"""

import pathlib
import re
import subprocess
import sys
import tempfile

LOSS = re.compile(r"^step (\d+)  loss (\S+)$")


def output(*command):
    """What a command prints; an exit status that is not 0 fails the test."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          timeout=100)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def check(good, problem):
    if not good:
        sys.exit(problem)


def refused(wanted, *command):
    """An error is what a user reads: its message, nothing of std::terminate, and exit status 1."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          timeout=100)
    shown = f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout}{done.stderr}"
    check(done.returncode == 1, f"expected exit status 1, got {shown}")
    check(wanted in done.stderr, f"expected {wanted!r}, got {shown}")
    check("terminate called" not in done.stderr, shown)


def losses(text, count):
    """{step: the loss as it is printed}"""
    found = dict(match.groups() for match in map(LOSS.match, text.splitlines()) if match)
    check(len(found) == count, f"expected {count} losses, got:\n{text}")
    return found


def readme_shows(example):
    """main() as README.md has it, but for the comments at the ends of lines."""
    def code(text):
        lines = text[text.index("int main("):].split("```")[0].splitlines()
        return [re.sub(r"\s+// .*", "", line).rstrip() for line in lines]
    root = pathlib.Path(__file__).resolve().parents[2]
    shown, source = code((root / "README.md").read_text()), code((root / "examples" / example).read_text())
    check(shown == source, "README.md shows\n" + "\n".join(shown) + f"\n{example} has\n" + "\n".join(source))


def first_step(tessera, program):
    runs = {stage: losses(output(tessera, "run", "-n", "2", "--no-prefix", "--", program, stage), 4)
            for stage in "0123"}
    for stage, run in runs.items():
        check(run == runs["0"], f"stage {stage} prints {run}, stage 0 {runs['0']}")
    values = [float(loss) for loss in runs["0"].values()]
    check(values[-1] < 0.1 and values[-1] < values[0], f"does not learn: {values}")
    check(len(runs["0"]["400"]) >= 12, f"too few digits to compare: {runs['0']}")
    # Two ranks see twice the data of one: another run, not the same one on two.
    check(losses(output(program), 4) != runs["0"], "one rank and two print the same losses")
    refused("ZeRO stage 7 does not exist", program, "7")
    refused("ZeRO stage 7 does not exist", tessera, "run", "-n", "2", "--", program, "7")
    refused("make this process rank 2 of 2", "env", "RANK=2", "WORLD_SIZE=2", "MASTER_PORT=1",
            program)
    readme_shows("first_step.cpp")


def save_and_load(tessera, program):
    with tempfile.TemporaryDirectory() as folder:
        def run(name, ranks, steps, stage, count):
            return losses(output(tessera, "run", "-n", ranks, "--no-prefix", "--", program,
                                 f"{folder}/{name}", steps, stage), count)
        whole = run("whole", "2", "100", "1", 4)
        first, rest = run("cut", "2", "50", "0", 2), run("cut", "2", "100", "3", 2)
        check({**first, **rest} == whole, f"in two runs {first}, {rest}, in one {whole}")
        more = run("cut", "3", "150", "2", 2)  # other data than one run's, and another start
        check(set(more) == {"125", "150"}, f"went on with {more}")
        check(float(more["150"]) < float(whole["25"]), f"does not learn: {whole}, {more}")
        refused("ZeRO stage 9 does not exist", program, f"{folder}/none", "1", "9")


def tensor_parallel_block(tessera, program):
    alone = losses(output(program), 5)
    values = [float(loss) for loss in alone.values()]
    check(all(b < 0.999 * a for a, b in zip(values, values[1:])), f"does not learn: {values}")
    for ranks in "24":
        run = losses(output(tessera, "run", "-n", ranks, "--no-prefix", "--", program), 5)
        for step, loss in run.items():
            check(abs(float(loss) - float(alone[step])) <= 1e-5 * float(alone[step]),
                  f"{ranks} ranks, step {step}: {loss}, one: {alone[step]}")
    refused("tensor-parallel ranks. Choose a tp", tessera, "run", "-n", "3", "--", program)


def three_d(tessera, program):
    alone = losses(output(program), 5)
    values = [float(loss) for loss in alone.values()]
    check(values[-1] < 0.5 * values[0], f"does not learn: {values}")
    for ranks, mesh in (("8", "dp=2,tp=2,pp=2"), ("2", "tp=2"), ("3", "pp=3"), ("4", "dp=2,pp=2")):
        run = losses(output(tessera, "run", "-n", ranks, "--no-prefix", "--", program, mesh), 5)
        for step, loss in run.items():
            check(abs(float(loss) - float(alone[step])) <= 2e-4 * float(alone["20"]),
                  f"{mesh}, step {step}: {loss}, one process: {alone[step]}")


    with tempfile.TemporaryDirectory() as folder:  # half on one mesh, half on another
        first = losses(output(tessera, "run", "-n", "4", "--no-prefix", "--", program, "dp=2,tp=2",
                              folder, "60"), 3)
        text = output(tessera, "run", "-n", "3", "--no-prefix", "--", program, "pp=3", folder)
        check("resumes from step 60, saved on dp=2,tp=2" in text, text)
        for step, loss in {**first, **losses(text, 2)}.items():
            check(abs(float(loss) - float(alone[step])) <= 2e-4 * float(alone["20"]),
                  f"in two parts, step {step}: {loss}, in one: {alone[step]}")
    refused("the product of the axes must be the number of ranks", program, "dp=3")


def mixture_of_experts(tessera, program):
    def run(mesh, ranks):
        text = output(tessera, "run", "-n", ranks, "--no-prefix", "--", program, mesh)
        rows = re.findall(r"^  (blocks\.[01]\.mix)  tokens ((?:\d+ ){8}) ?busiest (\S+) x mean  entropy (\S+)$",
                          text, re.MULTILINE)
        check(len(rows) == 8, text)
        for name, tokens, busiest, entropy in rows:
            tokens = list(map(int, tokens.split()))
            # 15 steps of 16 rows with 32 points, each with 2 experts.
            check(sum(tokens) == 15 * 16 * 32 * 2, f"{name}: {tokens} in all {sum(tokens)}")
            check(abs(float(busiest) - max(tokens) / (sum(tokens) / 8)) < 0.0051, f"{name}: {busiest} of {tokens}")
            check(0 < float(entropy) < 2.0795, f"{name}: entropy {entropy}, at most log 8")
        return losses(text, 4), [(name, list(map(int, tokens.split()))) for name, tokens, _, _ in rows]
    alone, routed = run("dp=1", "1")
    values = [float(loss) for loss in alone.values()]
    check(values[-1] < 0.5 * values[0], f"does not learn: {values}")
    for ranks, mesh in (("2", "dp=2,ep=2"), ("4", "dp=4,ep=4"), ("4", "dp=4,ep=2"), ("4", "dp=2,tp=2,ep=2"),
                        ("3", "pp=3")):
        run_losses, run_routed = run(mesh, ranks)
        for step, loss in run_losses.items():
            check(abs(float(loss) - float(alone[step])) <= 2e-3 * float(alone["15"]),
                  f"{mesh}, step {step}: {loss}, one process: {alone[step]}")
        # A rounding error may change the expert of a token whose scores are nearly equal.
        for (name, mine), (_, others) in zip(run_routed, routed):
            moved = sum(abs(a - b) for a, b in zip(mine, others)) / sum(others)
            check(moved < 0.01, f"{mesh}, {name}: {mine}, one process: {others}")
    refused("--ep 2: must divide the 1 ranks that shard state", program, "ep=2")


def zero3_units(tessera, program):
    def run(stage):
        text = output(tessera, "run", "-n", "4", "--no-prefix", "--", program, stage)
        kept, whole = map(int, re.search(r"^keeps (\d+) of (\d+) elements$", text, re.MULTILINE).groups())
        return losses(text, 4), kept, whole
    plain, sharded = run("0"), run("3")
    check(plain[0] == sharded[0], f"stage 0 prints {plain[0]}, stage 3 {sharded[0]}")
    values = [float(loss) for loss in plain[0].values()]
    check(values[-1] < values[0], f"does not learn: {values}")
    check(plain[1] == plain[2], f"stage 0 keeps {plain[1]} of {plain[2]}")
    check(abs(4 * sharded[1] / sharded[2] - 1) < 0.02, f"stage 3 keeps {sharded[1]} of {sharded[2]}")
    refused("ZeRO stage 9 does not exist", program, "9")


def pipeline_stages(tessera, program):
    alone = losses(output(program), 3)
    values = [float(loss) for loss in alone.values()]
    check(values[-1] < 0.9 * values[0], f"does not learn: {values}")
    for schedule in ("gpipe", "1f1b", "zb-h1"):
        run = losses(output(tessera, "run", "-n", "4", "--no-prefix", "--", program, schedule), 3)
        for step, loss in run.items():
            check(abs(float(loss) - float(alone[step])) <= 1e-4 * values[0],
                  f"{schedule}, step {step}: {loss}, one process: {alone[step]}")
    refused('schedule "1b1f" is unknown', tessera, "run", "-n", "2", "--", program, "1b1f")


def on_a_gpu(tessera, program):
    text = output(tessera, "run", "-n", "2", "--no-prefix", "--", program)
    values = [float(loss) for loss in losses(text, 3).values()]
    check(values[-1] < 0.8 * values[0], f"does not learn: {values}")
    check(re.search(r"^on (cpu|cuda:0)$", text, re.MULTILINE), text)
    print(text)


def all_reduce(tessera, program):
    for device in ([], ["--device", "cpu"]):
        text = output(tessera, "run", "-n", "3", "--no-prefix", "--", program, *device)
        for rank in range(3):
            check(f"rank {rank} before:" + f" {rank + 1}" * 5 in text, text)
            check(f"rank {rank} after :" + " 6" * 5 in text, text)
    if not pathlib.Path("/dev/nvidia0").exists():
        refused("--device cuda: this process sees no GPU", program, "--device", "cuda")
    else:
        text = output(tessera, "run", "-n", "2", "--no-prefix", "--", program, "--device", "cuda")
        check(text.count("after :" + " 3" * 5) == 2, text)


def ema(tessera, program):
    runs = {stage: re.findall(r"^(.*): loss (\S+)$", output(tessera, "run", "-n", "2", "--no-prefix", "--",
                                                           program, stage), re.MULTILINE)
            for stage in "0123"}
    for stage, run in runs.items():
        check(run == runs["0"], f"stage {stage} prints {run}, stage 0 {runs['0']}")
    (_, trained), (name, averaged), (_, again) = runs["0"]
    check(name == "averages" and trained == again and averaged != trained, f"{runs['0']}")
    check(float(averaged) < 0.05 and float(trained) < 0.05, f"does not learn: {runs['0']}")


def two_engines(tessera, program):
    runs = {stage: output(tessera, "run", "-n", "2", "--no-prefix", "--", program, stage) for stage in "0123"}
    for stage, run in runs.items():
        check(run == runs["0"], f"stage {stage} prints\n{run}stage 0\n{runs['0']}")
    losses(runs["0"], 3)
    mean, deviation = map(float, re.search(r"^mean (\S+)  deviation (\S+)$", runs["0"], re.MULTILINE).groups())
    check(abs(mean - 3) < 0.5 and deviation < 1.5, runs["0"])


def freeze_and_unfreeze(tessera, program):
    runs = {}
    for stage in "013":
        with tempfile.TemporaryDirectory() as folder:
            runs[stage] = output(tessera, "run", "-n", "2", "--no-prefix", "--", program, folder, stage)
    for stage, run in runs.items():
        check(run == runs["0"], f"stage {stage} prints\n{run}stage 0\n{runs['0']}")
    values = [float(loss) for loss in losses(runs["0"], 6).values()]
    check(values[-1] < 0.8 * values[1], f"does not learn: {values}")
    counts = re.findall(r"^updates of the head (\d+), of the body (\d+)$", runs["0"], re.MULTILINE)
    check(counts == [("50", "0"), ("100", "50"), ("150", "0")], runs["0"])


def use_the_planner(tessera, program):
    text = output(program)
    rows = re.findall(r"^stage (\d)  state (\S+) GB  in all (\S+) GB  sends (\S+) GB", text, re.MULTILINE)
    check([row[0] for row in rows] == list("0123"), text)
    psi = 1557.6112e6  # parameters of GPT-2 XL: 16 bytes each, of which a stage shards 12, 14 or 16
    for (_, state, _, _), sharded in zip(rows, (0, 12, 14, 16)):
        wanted = psi * (16 - sharded + sharded / 8) / 1e9
        check(abs(float(state) - wanted) < 0.006, f"state {state} GB, expected {wanted:.3f}\n{text}")
    for (_, _, _, sent), copies in zip(rows, (2, 2, 2, 3)):  # of the bf16 parameters, 7/8 of them
        wanted = copies * 2 * psi * 7 / 8 / 1e9
        check(abs(float(sent) - wanted) < 0.006, f"sends {sent} GB, expected {wanted:.3f}\n{text}")
    check(re.search(r"^best of \d+: dp 8  tp 1  pp 1  stage \d", text, re.MULTILINE), text)
    steps = re.search(r"^predicted step (\S+) s, simulated (\S+) s$", text, re.MULTILINE)
    check(steps and steps[1] == steps[2], text)  # equal without a pipeline
    printed = output(tessera, "plan", "--model", "gpt2-xl", "--dp", "8", "--zero", "1", "--json")
    check(text.splitlines()[-1] == printed.strip(), f"{text}\nthe command prints\n{printed}")


def manual_ddp(tessera, program):
    for ranks in (1, 2, 3):
        text = output(tessera, "run", "-n", str(ranks), "--no-prefix", "--", program)
        check("equal in every bit" in text, text)
        costs = dict((name, float(sent)) for name, sent in
                     re.findall(r"^(\S.*?) +\d+\.\d\d ms a step  (\S+) MB sent$", text, re.MULTILINE))
        check(set(costs) == {"without communication", "by hand", "with the engine"}, text)
        gradients = 8 * (384 * 384 + 384) * 4 / 1e6  # MB, of which a ring sends 2 (N - 1) / N
        wanted = gradients * 2 * (ranks - 1) / ranks
        check(costs["without communication"] == 0, text)
        for name in ("by hand", "with the engine"):  # with padding
            check(wanted <= costs[name] + 0.01 and costs[name] <= 1.01 * wanted + 0.01, text)


def power_sgd(tessera, program):
    def run(ranks):
        text = output(tessera, "run", "-n", ranks, "--no-prefix", "--", program)
        rows = re.findall(r"^step \d+  all-reduce (\S+)  PowerSGD (\S+)$", text, re.MULTILINE)
        sent = re.search(r"^bytes sent per step: all-reduce (\d+), PowerSGD (\d+)$", text, re.MULTILINE)
        missing = re.search(r"^missing after 20 steps: (\S+) of the sums, (\S+) with error feedback$", text,
                            re.MULTILINE)
        check(len(rows) == 4 and sent and missing, text)
        return text, [tuple(map(float, row)) for row in rows], *(tuple(map(float, m.groups()))
                                                                 for m in (sent, missing))
    for ranks in "23":
        text, rows, (plain, low), (without, remaining) = run(ranks)
        check(run(ranks)[0] == text, f"two runs differ:\n{text}")
        check(rows[-1][1] < 0.5 * rows[0][1], f"does not learn: {rows}")
        check(rows[-1][0] != rows[-1][1] < 1.5 * rows[-1][0], f"far from all-reduce: {rows}")
        check(low < 0.3 * plain, text)
        check(without > 1e-3 and remaining < 1e-5, text)
    text, rows, (plain, low), _ = run("1")  # sends nothing, so nothing is compressed
    check(plain == low == 0 and all(a == b for a, b in rows), text)


def explain_sync(tessera):
    ranks, width, layers = 3, 64, 3
    text = output(tessera, "explain", "sync", "--ranks", str(ranks), "--width", str(width), "--layers",
                  str(layers), "--rounds", "2", "--bucket-size", "20kB")
    told, buckets = {}, []  # {parameter: {"before" | "after": [numbers of each rank]}}
    name = None
    for line in text.splitlines():
        if bucket := re.match(r"bucket (\d+), ([\d.]+) kB, ready at .* sent at .* done at ", line):
            check(int(bucket[1]) == len(buckets), f"buckets out of order: {line}")
            buckets.append((float(bucket[2]) * 1000, []))
        elif parameter := re.match(r"  (layer\d+\.(?:weight|bias))$", line):
            name = parameter[1]
            buckets[-1][1].append(name)
            told[name] = {"before": [], "after": []}
        elif row := re.match(r"    rank (\d+)  before  ([-+. \d]+) …  after  ([-+. \d]+) …$", line):
            check(int(row[1]) == len(told[name]["before"]), f"ranks out of order: {line}")
            for kind, numbers in (("before", row[2]), ("after", row[3])):
                told[name][kind].append([float(number) for number in numbers.split()])
    sizes = {}
    for i in range(1, layers + 1):
        sizes[f"layer{i}.weight"], sizes[f"layer{i}.bias"] = width * width, width
    check(set(told) == set(sizes), f"parameters {sorted(told)}, expected {sorted(sizes)}")
    for name, rows in told.items():
        for kind in ("before", "after"):
            check(len(rows[kind]) == ranks and all(len(row) == 3 for row in rows[kind]),
                  f"{name} {kind}: {rows[kind]}")
        check(all(row == rows["after"][0] for row in rows["after"]), f"{name}: ranks differ {rows}")
        for i, after in enumerate(rows["after"][0]):
            mean = sum(row[i] for row in rows["before"]) / ranks
            check(abs(after - mean) < 1.01e-4, f"{name}: {after} is not the mean of {rows}")
        check(any(row != rows["before"][0] for row in rows["before"]), f"{name}: one batch for all")
    order = [name for _, names in buckets for name in names]
    check(order[0].startswith("layer3") and order[-1].startswith("layer1"), f"not last layer first: {order}")
    check(len(buckets) == 2, f"{buckets}")
    for size, names in buckets:  # with what is padded
        check(size >= 3.99 * sum(sizes[each] for each in names), f"{names} do not fit into {size} B")
    times = dict(re.findall(r"^  (\S+) +[\d.]+ ms +[\d.]+ ms +\S+ \S+  (.*)$", text, re.MULTILINE))
    wanted = {"per-parameter": "6 all-reduce", "bucketed": "2 all-reduce", "overlapped": "2 all-reduce",
              "zero-2": "2 reduce-scatter, 3 all-gather", "zero-3": "6 all-gather, 2 reduce-scatter"}
    check(times == wanted, f"expected {wanted}, got {times}\n{text}")
    check("faster than" in text, text)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
