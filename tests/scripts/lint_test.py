"""Runs the lint scripts on small trees with one violation each; every violation must be reported."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"


def run(script, tree):
    """Returns the status and messages of a script for a tree given as {path: text}."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in tree.items():
            path = pathlib.Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        done = subprocess.run([sys.executable, SCRIPTS / script, folder], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
        return done.returncode, done.stderr


class Includes(unittest.TestCase):
    def passes(self, tree):
        self.assertEqual(run("check_includes.py", tree), (0, ""))

    def fails(self, tree, *words):
        status, messages = run("check_includes.py", tree)
        self.assertEqual(status, 1, messages)
        for word in words:
            self.assertIn(word, messages)

    def test_good_tree(self):
        self.passes({
            "tessera/core/errors.h": "#include <string>\n#include \"tessera/version.h\"\n",
            "tessera/comm/CMakeLists.txt":
                "target_sources(tessera_fabric PRIVATE ring.cpp)  # not group.cpp\n"
                "target_sources(tessera PRIVATE group.cpp)\n",
            "tessera/comm/ring.cpp": '#include "tessera/core/errors.h"\n',
            "tessera/comm/group.cpp": "#include <torch/torch.h>\n",
            "tessera/zero/engine.cpp": '#include "tessera/core/errors.h"\n',
            "tests/zero/engine_test.cpp": '#include "tessera/train/trainer.h"\n',
        })

    def test_lower_module_includes_higher(self):
        self.fails({"tessera/core/a.cpp": '#include "tessera/comm/group.h"\n'},
                   "tessera/core/a.cpp:1", "may use only no other module")

    def test_siblings(self):
        for module, other in [("zero", "pipeline"), ("pipeline", "tensor_parallel"),
                            ("tensor_parallel", "zero"), ("context_parallel", "tensor_parallel")]:
            self.fails({f"tessera/{module}/a.h": f'#include "tessera/{other}/b.h"\n'},
                       f"{module}/ includes tessera/{other}/b.h")

    def test_transitive_use_is_allowed(self):
        self.passes({"tessera/train/a.h": '#include "tessera/core/b.h"\n'})

    def test_unknown_module(self):
        self.fails({"tessera/attic/a.h": "\n"}, "attic/ is not in the table")

    def test_relative_include(self):
        self.fails({"tessera/core/a.cpp": '#include "b.h"\n'}, "not root-relative")

    def test_fmt_outside_its_source(self):
        self.fails({"tessera/core/text.h": "#include <fmt/core.h>\n"}, "text.h:1", "<fmt/core.h>")

    def test_torch_in_torch_free_module(self):
        self.fails({"tessera/planner/a.cpp": "#  include <ATen/ATen.h>\n"}, "must be torch-free")

    def test_torch_reached_through_a_header(self):
        self.fails({
            "tessera/comm/CMakeLists.txt":
                "if(TESSERA_HAVE_HWLOC)\n  target_sources(\n    tessera_fabric\n    PRIVATE ring.cpp)\nendif()\n",
            "tessera/comm/ring.cpp": '#include "tessera/comm/ring.h"\n',
            "tessera/comm/ring.h": "\n#include <c10/util/Half.h>\n",
        }, "tessera/comm/ring.cpp -> tessera/comm/ring.h:2", "<c10/util/Half.h>")

    def test_fabric_list_that_cannot_be_read(self):
        self.fails({"tessera/comm/CMakeLists.txt":
                    "target_sources(tessera_fabric PRIVATE ${sources})\n"}, "${sources}")


class Sources(unittest.TestCase):
    def fails(self, tree, *words):
        status, messages = run("check_sources.py", tree)
        self.assertEqual(status, 1, messages)
        for word in words:
            self.assertIn(word, messages)

    def test_good_tree(self):
        tree = {
            "tessera/core/a.cpp": "int x;\n" * 500,
            "tessera/cli/main.cpp": 'auto* home = getenv("HOME");\n',
            "tessera/comm/bootstrap.cpp": 'auto* rank = std::getenv("RANK");\n',
            "tessera/process/own_ranks.cpp": "for (char** e = environ; *e; ++e) {}\n",
            "tessera/comm/b.cpp": "// getenv belongs to the bootstrap\n",
            "tests/a_test.cpp": 'setenv("A", "1", 1); getenv("A");\n',
        }
        self.assertEqual(run("check_sources.py", tree), (0, ""))

    def test_too_long(self):
        self.fails({"scripts/a.sh": "true\n" * 501}, "scripts/a.sh: 501 lines")

    def test_unfinished(self):
        for mark in ["TO" "DO", "FIX" "ME"]:
            self.fails({"tests/a.cpp": f"int a;  // {mark}: later\n"}, "tests/a.cpp:1", mark)

    def test_environment(self):
        self.fails({"tessera/comm/group.cpp": 'int a;\nauto* r = ::getenv("RANK");\n'},
                   "tessera/comm/group.cpp:2")


if __name__ == "__main__":
    unittest.main()
