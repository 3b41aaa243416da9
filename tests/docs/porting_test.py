#!/usr/bin/env python3
"""The porting guides and `tessera import` know the same: every key of DeepSpeed and every flag of Megatron-LM
that the command has in its tables is on the page, and the page names no other on its left side."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Named on a page for the reader's sake: within keys whose whole section has one answer, and ours.
ALSO = {"loss_scale", "hysteresis", "--ranks"}


def known(header):
    text = (ROOT / "tessera" / "cli" / header).read_text()
    return re.findall(r'^    \{"([^"]+)", ', text, re.MULTILINE)


def page(name):
    return (ROOT / "docs" / name).read_text()


def left_sides(text):
    """What stands in the first column of tables."""
    return "\n".join(row.split("|")[1] for row in text.splitlines() if row.startswith("| `") or
                     re.match(r"\| [A-Z][\w+]*: `", row))


def check(name, keys, said, named, word):
    problems = [f"docs/{name} leaves out {key}, which tessera import knows" for key in keys
                if not any(re.search(rf"(?<![\w-]){re.escape(part)}(?![\w-])", said) for part in (key, word(key)))]
    parts = {part for key in keys for part in (key, word(key), *key.split("."), key.rpartition(".")[0])} | ALSO
    problems += [f"docs/{name} has {key} on its left side, which tessera import does not know"
                 for key in named if key not in parts]
    return problems


def check_all(deepspeed, megatron):
    """The texts of the two pages against the tables of the command."""
    keys, flags = known("import_deepspeed_keys.h"), known("import_megatron_flags.h")
    if len(keys) < 100 or len(flags) < 100:
        return [f"only {len(keys)} keys and {len(flags)} flags were found to look up"]
    named = re.findall(r"`([a-z]\w*(?:\.\w+)*)`", left_sides(deepspeed))
    problems = check("porting-deepspeed.md", keys, deepspeed, named, lambda key: key.split(".")[-1])
    named = re.findall(r"`(--[a-z0-9-]+)`", left_sides(megatron))
    return problems + check("porting-megatron.md", flags, megatron, named, lambda flag: flag)


def main():
    deepspeed, megatron = page("porting-deepspeed.md"), page("porting-megatron.md")
    problems = check_all(deepspeed, megatron)
    if problems:
        sys.exit("\n".join(problems))
    # Does it find anything? Each change is a fault.
    for broken in ((deepspeed.replace("`sub_group_size`", "`sub_groups`"), megatron),
                   (deepspeed, megatron.replace("`--ddp-bucket-size`", "`--bucket`")),
                   (deepspeed.replace("`stage`", "`level`"), megatron)):
        if not check_all(*broken):
            sys.exit("a page with a fault passes")
    print("both guides have what tessera import knows")


if __name__ == "__main__":
    main()
