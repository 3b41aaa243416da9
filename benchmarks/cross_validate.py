#!/usr/bin/env python3
"""Measures how well `tessera plan` predicts steps that its constants were not fitted to.

    cross_validate.py build/bin/tessera runs.csv --by model|mesh|half [plan's settings...]

runs.csv has the format of `tessera plan --score`: a column per setting, and step_ms. For each fold, the
constants start at the same round numbers, are fitted to the other folds by coordinate descent on the mean
|log(predicted/measured)|, and predict the held-out fold. Folds are fitted in parallel (--jobs).
Folds are models (hidden, heads, layers, seq), meshes (tp, pp, nodes) or random halves. Prints the error in
and out of the sample, and the out-of-sample quantiles of measured/predicted, which planner/interval.cpp
uses.
"""
import argparse
import concurrent.futures
import csv
import itertools
import json
import math
import os
import random
import subprocess
import sys
import tempfile

# Initial values and bounds of the fit: round numbers for any A100, none taken from a fit. Clipping reads
# the gradients at least once, and NCCL reaches at most 240 of NVLink's 300 GB/s. Without such bounds,
# constants that few steps determine would take unrealistic values.
NODE = {
    "product_efficiency": (0.7, 0.3, 1),
    "memory_efficiency": (0.8, 0.3, 1),
    "launch": (20e-6, 1e-6, 2e-4),
    "kernel_start": (3e-6, 5e-7, 2e-5),
    "launch_skew": (50e-6, 5e-6, 5e-4),
    "logit_bytes": (40, 4, 400),
    "gradient_passes": (2, 1, 16),
    "inside.bandwidth": (200e9, 5e10, 2.4e11),
}
NETWORK = {
    "between.bandwidth": (20e9, 2e9, 2.5e10),
    "between.latency": (20e-6, 5e-6, 5e-5),
    "oversubscription": (2, 1, 16),
}
FACTORS = (1.5, 1.2, 1.08, 1.03)
SOFTWARE = ("product_efficiency", "memory_efficiency", "launch", "kernel_start", "launch_skew",
            "logit_bytes", "gradient_passes")
INSIDE_LATENCY = 3e-6  # of one ring step over NVLink; too small to be fitted


class Planner:
    def __init__(self, program, base, settings, columns, folder):
        self.program, self.base, self.settings = program, base, settings
        self.columns, self.folder = columns, folder

    def predict(self, rows, constants):
        """Returns the seconds of each row, in order."""
        with tempfile.TemporaryDirectory(dir=self.folder) as own:
            return self.ask(rows, constants, own)

    def ask(self, rows, c, folder):
        entry, runs = os.path.join(folder, "fitted.toml"), os.path.join(folder, "runs.csv")
        with open(entry, "w") as out:
            out.write(f'[fitted]\nlike = "{self.base}"\nsoftware = "megatron"\n')
            for link in ("inside", "between"):
                out.write(f"{link} = {{ bandwidth = {c[link + '.bandwidth']!r}, "
                          f"latency = {c.get(link + '.latency', INSIDE_LATENCY)!r} }}\n")
            out.write(f"switches = [[1, {max(1.0, c['oversubscription'])!r}]]\n[fitted.megatron]\n")
            for key in SOFTWARE:
                out.write(f"{key} = {c[key]!r}\n")
        with open(runs, "w", newline="") as out:
            writer = csv.writer(out)
            writer.writerow(self.columns)
            writer.writerows([row[k] for k in self.columns] for row in rows)
        command = [self.program, "plan", "--score", runs, "--hardware-file", entry, "--hardware",
                   "fitted", "--json", *self.settings]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
        at = {}
        for row in json.loads(done.stdout)["rows"]:
            at[int(row["row"].split()[-1])] = row["predicted"]
        return [at[line] for line in range(2, len(rows) + 2)]


def nodes_of(row, per_node):
    return -(-int(row["gpus"]) // per_node)


def loss(planner, rows, constants):
    predicted = planner.predict(rows, constants)
    return sum(abs(math.log(p * 1e3 / float(r["step_ms"]))) for p, r in zip(predicted, rows)) / len(
        rows)


def moves(which, together):
    """Yields {constant: 1 or -1}: each constant alone, then up to `together` at once, each up or down."""
    for count in range(1, together + 1):
        for keys in itertools.combinations(which, count):
            for signs in itertools.product((1, -1), repeat=count):
                yield dict(zip(keys, signs))


def fit(planner, rows, constants, which, together=1):
    """Moves constants by a factor while that reduces the error, then by smaller factors. Constants that
    compensate for each other form a valley, so up to `together` of them are moved at once."""
    best = dict(constants)
    if not rows:
        return best
    least = loss(planner, rows, best)
    for factor in FACTORS:
        better = True
        while better:
            better = False
            for move in moves(which, together):
                while True:
                    tried = dict(best)
                    for key, sign in move.items():
                        _, low, high = which[key]
                        tried[key] = min(high, max(low, best[key] * factor**sign))
                    now = loss(planner, rows, tried) if tried != best else least
                    if now >= least - 1e-6:
                        break
                    best, least, better = tried, now, True
    return best


def fit_all(planner, rows, per_node):
    constants = {key: value[0] for key, value in {**NODE, **NETWORK}.items()}
    near = [row for row in rows if nodes_of(row, per_node) == 1]
    constants = fit(planner, near or rows, constants, NODE)
    far = [row for row in rows if nodes_of(row, per_node) > 1]
    return fit(planner, far, constants, NETWORK, together=2)


def quantile(values, q):
    values = sorted(values)
    at = q * (len(values) - 1)
    low = int(at)
    high = min(low + 1, len(values) - 1)
    return values[low] + (at - low) * (values[high] - values[low])


def report(name, pairs):
    """Prints the errors of pairs (measured, predicted)."""
    if not pairs:
        return
    errors = [p / m - 1 for m, p in pairs]
    ratios = [m / p for m, p in pairs]
    mean = sum(map(abs, errors)) / len(errors)
    print(f"  {name:<26}{len(pairs):>5}{100 * mean:>9.1f}%"
          f"{100 * quantile(list(map(abs, errors)), 0.5):>8.1f}%"
          f"{100 * sum(errors) / len(errors):>+8.1f}%"
          f"{quantile(ratios, 0.1):>9.3f}{quantile(ratios, 0.9):>7.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tessera")
    parser.add_argument("runs")
    parser.add_argument("--by", choices=("model", "mesh", "half"), default="model")
    parser.add_argument("--base", default="a100-80", help="hardware entry with the peak rates and nodes")
    parser.add_argument("--per-node", type=int, default=8)
    parser.add_argument("--halves", type=int, default=4, help="number of repetitions with --by half")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="folds fitted in parallel")
    args, settings = parser.parse_known_args()
    with open(args.runs, newline="") as text:
        reader = csv.DictReader(text)
        rows, columns = list(reader), reader.fieldnames
    for at, row in enumerate(rows):
        row["#"] = at
    folds = {}
    if args.by == "half":
        chance = random.Random(0)
        for i in range(args.halves):
            order = list(rows)
            chance.shuffle(order)
            folds[f"half {i}a"], folds[f"half {i}b"] = order[::2], order[1::2]
    else:
        for row in rows:
            key = (("h %s, a %s, L %s, T %s" % tuple(row[k] for k in ("hidden", "heads", "layers",
                                                                     "seq")))
                   if args.by == "model" else
                   f"tp {row['tp']}, pp {row['pp']}, nodes {nodes_of(row, args.per_node)}")
            folds.setdefault(key, []).append(row)
    head = "runs  mean err  median    bias   10% q  90% q"
    with (tempfile.TemporaryDirectory() as folder,
          concurrent.futures.ThreadPoolExecutor(args.jobs) as at_once):
        planner = Planner(args.tessera, args.base, settings, columns, folder)

        def fitted_without(held):
            out = {row["#"] for row in held}
            return fit_all(planner, [r for r in rows if r["#"] not in out], args.per_node)

        everything = at_once.submit(fitted_without, [])
        without = {name: at_once.submit(fitted_without, folds[name]) for name in sorted(folds)}
        whole = everything.result()
        print("Fitted to all rows:", ", ".join(f"{k} {v:.4g}" for k, v in whole.items()))
        inside = list(zip((float(r["step_ms"]) / 1e3 for r in rows), planner.predict(rows, whole)))
        near = [nodes_of(r, args.per_node) == 1 for r in rows]
        print(f"\n{'In the sample':<28}{head}")
        report("one node", [p for p, one in zip(inside, near) if one])
        report("several nodes", [p for p, one in zip(inside, near) if not one])
        outside = []
        print(f"\n{'Held out, by ' + args.by:<28}{head}")
        for name, held in sorted(folds.items()):
            pairs = list(zip((float(r["step_ms"]) / 1e3 for r in held),
                             planner.predict(held, without[name].result())))
            report(name, pairs)
            sys.stdout.flush()
            outside += [(nodes_of(r, args.per_node) == 1, pair) for r, pair in zip(held, pairs)]
        print(f"\n{'Out of the sample':<28}{head}")
        report("one node", [p for one, p in outside if one])
        report("several nodes", [p for one, p in outside if not one])


if __name__ == "__main__":
    main()
