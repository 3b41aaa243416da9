#!/usr/bin/env python3
"""Tests scripts/library_reference.py: it covers the installed headers, every public type and function has a
comment, and missing comments are reported.

ctest treats a line "skipped: REASON" as a skipped test.
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import library_reference  # noqa: E402

# The names that end with `_bare` have no comment; exactly these must be reported.
HEADER = """#pragma once

// [Note: floating] About the file, not about what follows:
//   int code = 1;

namespace tessera {

struct type_bare {
  int plain = 0;
};
// Has one, with <angles>, 50% and #signs.
struct Type {
  Type() = default;
  Type(const Type& other);
  int plain = 0;
  int value() const { return plain; }
  void method_bare(int x);
  void method(int x);  // at the end of its line,
                       // and of the next
};
enum class enum_bare { a, b };
using alias_bare = int;
int function_bare(const char* text = "//");
// One.
template <typename T>
int function(T value);
template <typename T>
int template_bare(T value);

}  // namespace tessera
"""


def check_small(folder):
    (folder / "tessera").mkdir()
    (folder / "tessera" / "planning.h").write_text('#include "tessera/other.h"\n')
    (folder / "tessera" / "other.h").write_text(HEADER)
    (folder / "tessera" / "hidden.h").write_text("struct hidden_bare {};\n")
    headers = library_reference.public_headers(folder)
    if headers != ["tessera/other.h", "tessera/planning.h"]:
        sys.exit(f"the public headers are {headers}")
    problems = library_reference.without_comment(folder, headers, folder / "out")
    expected = {(name, number) for number, line in enumerate(HEADER.splitlines(), 1)
                for name in re.findall(r"\w+_bare", line)}
    found = {(re.search(r"\w+_bare|$", line)[0], int(re.search(r"other.h:(\d+)|$", line)[1] or 0))
             for line in problems}
    if found != expected:
        sys.exit(f"must report {sorted(expected)}, but reports\n" + "\n".join(problems))


def installed(folder):
    subprocess.run(["cmake", f"-DTESSERA_SOURCE={ROOT}", "-DTESSERA_PUBLIC_HEADERS=tessera/planning.h;tessera/tessera.h",
                    "-DTESSERA_INCLUDE=include", f"-DCMAKE_INSTALL_PREFIX={folder}", "-P",
                    ROOT / "cmake" / "InstallHeaders.cmake"], check=True, capture_output=True)
    return sorted(str(path.relative_to(folder / "include")) for path in (folder / "include").rglob("*.h"))


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name).resolve()
        headers = library_reference.public_headers(ROOT)
        if headers != installed(folder):
            sys.exit(f"the reference covers {headers}, but these are installed: {installed(folder)}")
        if not shutil.which("doxygen"):
            print("skipped: doxygen is not installed; scripts/docs.sh tools installs it")
            return
        (folder / "small").mkdir()
        check_small(folder / "small")
        problems = library_reference.without_comment(ROOT, headers, folder / "html")
        if problems:
            sys.exit("\n".join(problems))
        page = (folder / "html" / "classtessera_1_1zero_1_1Engine.html").read_text()
        if "Runs backward from a scalar loss" not in page:
            sys.exit("the page of the engine does not have the comments of its header")
    print(f"{len(headers)} headers")


if __name__ == "__main__":
    main()
