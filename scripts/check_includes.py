#!/usr/bin/env python3
"""Checks the includes between the modules under tessera/.

A module includes only modules that the table below allows, directly or transitively. Torch-free
modules and sources never reach a torch header. Includes are root-relative. Only core/text.cpp
includes {fmt}, because torch ships another version of it among its headers.
"""

import pathlib
import re
import sys

import source_tree

# Modules that each module may use, in addition to those that they may use.
MAY_USE = {
    "core": [],
    "schedule": ["core"],
    "planner": ["schedule"],
    "simulator": ["planner"],
    "comm": ["core"],
    "process": ["comm"],
    "memory": ["core"],
    "kernels": ["core"],
    "nn": ["kernels"],
    "tensor_parallel": ["comm", "nn"],
    "context_parallel": ["comm", "nn"],
    "experts": ["tensor_parallel"],
    "zero": ["comm", "memory", "nn"],
    "pipeline": ["comm", "memory", "nn", "schedule"],
    "data": ["checkpoint"],
    "huggingface": ["checkpoint"],
    "parallel": ["zero", "pipeline", "tensor_parallel", "context_parallel", "experts",
                 "checkpoint"],
    "models": ["planner", "parallel", "huggingface"],
    "checkpoint": ["core"],
    "train": ["simulator", "process", "models", "zero", "pipeline", "data", "checkpoint"],
    "dashboard": ["simulator", "process", "huggingface"],
    "cli": ["train", "dashboard"],
}
TORCH_FREE_MODULES = {"core", "schedule", "planner", "simulator", "process", "kernels", "checkpoint",
                      "huggingface", "dashboard"}
# Headers directly under tessera/ that every module may include.
SHARED_HEADERS = {"tessera/version.h"}

_TORCH_HEADER = re.compile(r"^(torch|ATen|c10|caffe2)/")
_FMT = re.compile(r"^fmt/")
_MAY_INCLUDE_FMT = {"tessera/core/text.cpp"}  # the sources of tessera_fmt in its CMakeLists.txt
_FIRST_PARTY = re.compile(r"^(tessera|tests|benchmarks|examples)/")
_SOURCE = re.compile(r"\.(h|hpp|cpp|cc|cu|cuh)$")
_FABRIC = re.compile(r"target_sources\s*\(\s*tessera_fabric\s+([^)]*)\)")


def reachable(module):
    """Returns all modules that a module may include, itself among them."""
    seen, stack = set(), [module]
    while stack:
        current = stack.pop()
        if current not in seen:
            seen.add(current)
            stack.extend(MAY_USE[current])
    return seen


def module_of(name):
    parts = pathlib.PurePosixPath(name).parts
    return parts[1] if len(parts) > 2 and parts[0] == "tessera" else None


def fabric_sources(root, names):
    """Returns the sources of tessera_fabric (the torch-free part of comm/) and problems found."""
    sources, problems = set(), []
    for name in names:
        if not (name.startswith("tessera/") and name.endswith("CMakeLists.txt")):
            continue
        text = "\n".join(line.split("#")[0] for line in source_tree.lines(root, name))
        for listed in _FABRIC.findall(text):
            for word in listed.split():
                if word in ("PRIVATE", "PUBLIC"):
                    continue
                path = pathlib.PurePosixPath(name).parent / word
                if (root / path).is_file():
                    sources.add(str(path))
                else:
                    problems.append(f"{name}: tessera_fabric lists {word}, which is not a file "
                                    "in this folder; list its sources one by one")
    return sources, problems


def check_directions(root, sources):
    problems = []
    for name in sources:
        module = module_of(name)
        if module is not None and module not in MAY_USE:
            problems.append(f"{name}: module {module}/ is not in the table of scripts/check_includes.py")
            continue
        for number, quoted, path in source_tree.includes(root, name):
            where = f"{name}:{number}"
            if quoted and not _FIRST_PARTY.match(path):
                problems.append(f'{where}: "{path}" is not root-relative; write "tessera/…" for '
                                "headers of this tree, <…> for all others")
            if _FMT.match(path) and name not in _MAY_INCLUDE_FMT:
                problems.append(f"{where}: includes <{path}>; format text with str(), fixed() and "
                                "hex() of tessera/core/text.h")
            if module is None or not path.startswith("tessera/"):
                continue
            target = module_of(path)
            if target is None:
                if path not in SHARED_HEADERS:
                    problems.append(f"{where}: a module must not include {path}")
            elif target not in reachable(module):
                allowed = ", ".join(sorted(reachable(module) - {module})) or "no other module"
                problems.append(f"{where}: {module}/ includes {path}, but may use only {allowed}")
    return problems


def check_torch_free(root, start, included):
    """Reports the include chain from each torch-free file to a torch header, if there is one."""
    problems = []
    for name in sorted(start):
        seen, stack = {name}, [[name]]
        while stack:
            chain = stack.pop()
            for number, _, path in included.get(chain[-1], []):
                if _TORCH_HEADER.match(path):
                    problems.append(f"{name}: must be torch-free, but reaches <{path}>: "
                                    + " -> ".join(chain) + f":{number}")
                elif path in included and path not in seen:
                    seen.add(path)
                    stack.append(chain + [path])
    return problems


def check(root):
    names = source_tree.files(root)
    sources = [name for name in names if _SOURCE.search(name) and _FIRST_PARTY.match(name)]
    included = {name: source_tree.includes(root, name) for name in sources}
    fabric, problems = fabric_sources(root, names)
    torch_free = fabric | {name for name in sources if module_of(name) in TORCH_FREE_MODULES}
    problems += check_directions(root, sources)
    problems += check_torch_free(root, torch_free, included)
    return problems


if __name__ == "__main__":
    sys.exit(source_tree.main(__doc__, check))
