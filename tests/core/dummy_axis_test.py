#!/usr/bin/env python3
"""Compiles the torch-free sources that use axes with one more axis (TESSERA_DUMMY_AXIS) and checks that the
compiler reports every place that must handle a new axis, and no other.

    dummy_axis_test.py COMPILER SOURCE_FOLDER GENERATED_INCLUDES"""

import pathlib
import re
import subprocess
import sys

# Files that need code for a new axis. CONTRIBUTING.md lists them too.
MUST_HANDLE = {
    "tessera/core/axis.h",  # its position when axes are printed
    "tessera/core/axes.cpp",  # its noun in help texts
    "tessera/core/param_spec.cpp",  # which rank counts a parameter that is not cut along it
    "tessera/planner/axis_words.cpp",  # words for its communication
    "tessera/planner/field_table.cpp",  # help text of its flag
    "tessera/planner/traffic.cpp",  # its traffic
}
MODULES = ("core", "planner", "simulator")


def main():
    compiler, root, generated = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3]
    sources = [
        path for module in MODULES for path in sorted((root / "tessera" / module).glob("*.cpp"))
        if re.search(r"\b(Axis|Axes|kAllAxes|kPrintedAxes|PerAxis)\b", path.read_text())
    ]
    assert len(sources) > 10, sources
    # Tables by axis belong into these modules, where this test sees them.
    elsewhere = [
        str(path.relative_to(root)) for path in sorted((root / "tessera").glob("*/**/*"))
        if path.is_file() and path.relative_to(root).parts[1] not in MODULES
        and re.search(r"\bcase (tessera::)?Axis::", path.read_text())
    ]
    assert not elsewhere, elsewhere
    text = "".join(f'#include "{path.relative_to(root)}"\n' for path in sources)

    def compile_with(*flags):
        command = [compiler, "-fsyntax-only", "-std=c++20", "-Wall", "-Werror=switch", "-Wno-subobject-linkage",
                   "-x", "c++", "-I", str(root), "-I", generated, *flags, "-"]
        return subprocess.run(command, input=text, text=True, capture_output=True, check=False)

    plain = compile_with()
    if plain.returncode != 0:
        sys.exit(f"does not compile without the dummy axis:\n{plain.stderr[:4000]}")
    dummy = compile_with("-DTESSERA_DUMMY_AXIS")
    named = set()
    for match in re.finditer(r"^(\S+?):\d+:\d+: error:", dummy.stderr, re.MULTILINE):
        path = (root / match[1]).resolve()
        if path.is_relative_to(root.resolve()):  # errors in constant evaluation are also reported in <array>
            named.add(str(path.relative_to(root.resolve())))
    if named != MUST_HANDLE:
        sys.exit(f"with one more axis the compiler reports\n  {sorted(named)}\nbut must report\n  {sorted(MUST_HANDLE)}\n"
                 f"{dummy.stderr[:4000]}")
    print(f"{len(sources)} sources; the compiler reports {len(named)} that must handle a new axis")


if __name__ == "__main__":
    main()
