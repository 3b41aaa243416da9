#!/usr/bin/env python3
"""Builds Tessera on a machine with a GPU, runs all tests that need one, and prints one table.

    scripts/test_gpu.py [--minutes 9] [--jobs 4]          also: make test-gpu

Runs the tests with the label gpu, then the oracle tests/train/meshes_agree.py over shared memory and, if
NCCL 2.30 or newer is found, over NCCL with ranks that share a GPU. Installs nothing. Without a GPU it
prints the reason and ends with status 1.

  TORCH_DIR=dir          a CUDA build of LibTorch; default: the torch of python3
  TESSERA_BUILD_DIR=dir  the build folder; default: build/
  NCCL_LIBRARY=file      a libnccl.so.2 to use instead of the newest of python3's packages
  JOBS, TESSERA_CMAKE_OPTIONS, …  as in scripts/build.sh
"""
import argparse
import glob
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import time
import xml.etree.ElementTree

import skipped_tests

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHARED_GPU = (2, 30)  # first NCCL with which ranks can share a GPU
NCCL_VERSION = """
import ctypes, sys
version = ctypes.c_int()
ctypes.CDLL(sys.argv[1]).ncclGetVersion(ctypes.byref(version))
print(version.value)
"""


def gpus():
    """Returns a line about each GPU. Empty if the driver reports none."""
    try:
        done = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version,memory.total",
                               "--format=csv,noheader"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.split("\n")[:-1] if done.returncode == 0 else []


def find_torch():
    """Returns the folder of LibTorch. Exits if it is not a CUDA build."""
    folder = os.environ.get("TORCH_DIR", "")
    if not folder:
        spec = importlib.util.find_spec("torch")
        if spec is None or not spec.submodule_search_locations:
            sys.exit("test-gpu: python3 has no torch. Set TORCH_DIR to a CUDA build of LibTorch.")
        folder = list(spec.submodule_search_locations)[0]
    libraries = pathlib.Path(folder) / "lib"
    if not (libraries / "libtorch_cuda.so").exists():
        sys.exit(f"test-gpu: {folder} is not a CUDA build of LibTorch (no lib/libtorch_cuda.so). "
                 "Set TORCH_DIR to one.")
    return pathlib.Path(folder)


def nccl_version(library):
    """Returns (major, minor); (0, 0) if it cannot be loaded."""
    done = subprocess.run([sys.executable, "-c", NCCL_VERSION, str(library)], capture_output=True, text=True)
    code = int(done.stdout) if done.returncode == 0 else 0
    return (code // 10000, code % 10000 // 100)


def find_nccl(torch):
    """Returns the NCCL library to use and its version: NCCL_LIBRARY, otherwise the newest."""
    given = os.environ.get("NCCL_LIBRARY", "")
    if given:
        return given, nccl_version(given)
    folders = [str(torch.parent), *sys.path, "/usr/lib", "/usr/local/lib"]
    found = {os.path.realpath(path) for folder in folders if folder
             for pattern in ("nvidia/nccl*/lib/libnccl.so.2", "libnccl.so.2", "*/libnccl.so.2")
             for path in glob.glob(os.path.join(folder, pattern))}
    return max(((path, nccl_version(path)) for path in sorted(found)), key=lambda each: each[1],
               default=("", (0, 0)))


class Table:
    """Rows of name, result and seconds. A row fails unless its result begins with "ok" or "skipped"."""

    def __init__(self):
        self.rows, self.notes = [], []

    def add(self, name, result, seconds):
        self.rows.append((name, result, seconds))

    def failed(self):
        return [name for name, result, _ in self.rows if not result.startswith(("ok", "skipped"))]

    def show(self):
        width = max(len(name) for name, _, _ in self.rows)
        wide = max(len(result) for _, result, _ in self.rows)
        print(f"\n{'name':{width}}  {'result':{wide}}  seconds")
        for name, result, seconds in self.rows:
            print(f"{name:{width}}  {result:{wide}}  {seconds:7.1f}")
        for note in self.notes:
            print(note)


class Session:
    """Steps within a time limit."""

    def __init__(self, minutes, environment, log):
        self.began, self.limit = time.monotonic(), 60 * minutes
        self.environment, self.log = environment, log
        self.table = Table()

    def left(self):
        return self.began + self.limit - time.monotonic()

    def run(self, words, shown=False):
        """Returns "ok" or the reason of the failure, and the seconds. Output goes to the log."""
        print("== " + " ".join(str(word) for word in words), flush=True)
        began = time.monotonic()
        if self.left() <= 0:
            return "FAILED: no time left", 0.0
        with open(self.log, "a") as log:
            out = None if shown else log
            process = subprocess.Popen([str(word) for word in words], cwd=ROOT, env=self.environment,
                                       stdout=out, stderr=out, start_new_session=True)
            try:
                status = process.wait(self.left())
                result = "ok" if status == 0 else f"FAILED: status {status}"
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.wait()
                result = f"FAILED: stopped at the limit of {self.limit / 60:g} minutes"
        return result, time.monotonic() - began


def add_tests(session, build, jobs):
    """Runs the tests with the label gpu. Adds a row for each."""
    report = build / "tests-gpu.xml"
    report.unlink(missing_ok=True)
    result, seconds = session.run(["ctest", "--test-dir", build, "-L", "^gpu$", "-j", jobs, "--timeout", 300,
                                   "--no-tests=error", "--output-junit", report.resolve(),
                                   "--test-output-size-passed", 1000000, "--test-output-size-failed", 1000000])
    if not report.exists():
        session.table.add("tests with the label gpu", result if result != "ok" else "FAILED: no report", seconds)
        return
    skips = {}
    for test, reason in skipped_tests.skips(report):
        skips.setdefault(test.split(":")[0].split(".")[0], []).append((test, reason))
    for test in xml.etree.ElementTree.parse(report).iter("testcase"):
        name, passed = test.get("name"), test.get("status") == "run"
        text = test.findtext("system-out") or ""
        ran = len(re.findall(r"^\[       OK \]", text, re.MULTILINE))
        skipped = skips.get(name.split(".")[0], [])
        # A test that did not run for another reason, such as a missing program, counts as a failure.
        by_itself = test.find("skipped") is not None and "SKIP_" in test.find("skipped").get("message", "")
        if not passed and by_itself:
            outcome = "skipped"
        elif not passed:
            outcome = "FAILED"
            session.table.notes += [f"\n{name} failed; the end of its output:",
                                    *("   " + line for line in text.splitlines()[-40:])]
        elif skipped and ran == 0:
            outcome = f"skipped, {len(skipped)} cases"
        else:
            outcome = "ok" + (f", {ran} cases" if ran else "") + (f", {len(skipped)} skipped" if skipped else "")
        session.table.add(name, outcome, float(test.get("time")))
        session.table.notes += [f"   {'not run' if outcome == 'FAILED' else 'skipped'}: {case}: {reason}"
                                for case, reason in skipped]
    if result != "ok" and not session.table.failed():
        session.table.add("ctest", result, seconds)


def add_meshes(session, build, backend, jobs):
    """Compares all meshes with one process. Adds a row for each mesh."""
    report = build / f"meshes-{backend}.json"
    report.unlink(missing_ok=True)
    flags = ["--backend", "nccl"] if backend == "nccl" else ["--backend", "shm"]
    result, seconds = session.run([sys.executable, "tests/train/meshes_agree.py", build / "bin/tessera",
                                   "--device", "cuda", *flags, "--jobs", jobs, "--report", report])
    if not report.exists():
        session.table.add(f"meshes, {backend}", result if result != "ok" else "FAILED: no report", seconds)
        session.table.notes += ["", *pathlib.Path(session.log).read_text().splitlines()[-20:]]
        return
    for row in json.loads(report.read_text()):
        result = row["result"].replace("losses differ by at most", "ok, within") if not row["problem"] else "FAILED"
        session.table.add(f"{backend}: {row['name']}", result, row["seconds"])
        if row["problem"]:
            session.table.notes += ["", *row["problem"].splitlines()[-20:]]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=9, help="limit of everything (9)")
    parser.add_argument("--jobs", type=int, default=4, help="tests and meshes at the same time (4)")
    given = parser.parse_args()
    cards = gpus()
    if not cards:
        sys.exit("test-gpu: this machine has no usable GPU (nvidia-smi reports none), so nothing was tested. "
                 "Run it on a machine with an NVIDIA GPU; make test runs the tests that need none.")
    torch = find_torch()
    library, version = find_nccl(torch)
    build = pathlib.Path(os.environ.get("TESSERA_BUILD_DIR") or ROOT / "build").absolute()
    build.mkdir(parents=True, exist_ok=True)
    log = build / "test-gpu.log"
    log.write_text("")
    environment = {**os.environ, "TORCH_DIR": str(torch), "TESSERA_BUILD_DIR": str(build),
                   "NCCL_MULTI_RANK_GPU_ENABLE": "1"}
    for line in [*cards, f"LibTorch: {torch}",
                 f"NCCL: {'.'.join(map(str, version))} ({library})" if library else "NCCL: not found",
                 f"log: {log}"]:
        print(line, flush=True)

    session = Session(given.minutes, environment, log)
    result, seconds = session.run(["scripts/build.sh", "release", "gpu_programs"], shown=True)
    session.table.add("build", result, seconds)
    if result == "ok":
        shares = version >= SHARED_GPU
        if shares:  # LibTorch's own may be older
            environment["LD_PRELOAD"] = library
        add_tests(session, build, given.jobs)
        add_meshes(session, build, "shm", given.jobs)
        if shares:
            # Kernels of ranks that share a GPU take turns, so few meshes at a time.
            add_meshes(session, build, "nccl", min(2, given.jobs))
        else:
            session.table.add("meshes, nccl", "skipped", 0.0)
            session.table.notes.append("   skipped: meshes, nccl: ranks can share a GPU with NCCL "
                                       f"{'.'.join(map(str, SHARED_GPU))} or newer; set NCCL_LIBRARY")
    session.table.add("total", "ok", time.monotonic() - session.began)
    session.table.show()
    failed = session.table.failed()
    if failed:
        sys.exit(f"test-gpu: FAILED: {', '.join(failed)}; the log is {log}")
    print("test-gpu: all passed")


if __name__ == "__main__":
    main()
