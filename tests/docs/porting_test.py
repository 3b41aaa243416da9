#!/usr/bin/env python3
"""Compares the porting guides with `tessera import`: every DeepSpeed key and every Megatron-LM flag in the
tables of the command is on the page, and the first column of the page has no others."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Also allowed on a page: keys inside a section that is documented as a whole, and Tessera's own flags.
ALSO = {"loss_scale", "hysteresis", "--ranks"}


def known(header):
    text = (ROOT / "tessera" / "cli" / header).read_text()
    return re.findall(r'^    \{"([^"]+)", ', text, re.MULTILINE)


def page(name):
    return (ROOT / "docs" / name).read_text()


def left_sides(text):
    """Returns the first column of the tables."""
    return "\n".join(row.split("|")[1] for row in text.splitlines() if row.startswith("| `") or
                     re.match(r"\| [A-Z][\w+]*: `", row))


def check(name, keys, text, named, word):
    problems = [f"docs/{name} omits {key}, which tessera import supports" for key in keys
                if not any(re.search(rf"(?<![\w-]){re.escape(part)}(?![\w-])", text) for part in (key, word(key)))]
    parts = {part for key in keys for part in (key, word(key), *key.split("."), key.rpartition(".")[0])} | ALSO
    problems += [f"docs/{name} has {key} in its first column, which tessera import does not support"
                 for key in named if key not in parts]
    return problems


def check_all(deepspeed, megatron):
    """Compares the two pages with the tables of the command."""
    keys, flags = known("import_deepspeed_keys.h"), known("import_megatron_flags.h")
    if len(keys) < 100 or len(flags) < 100:
        return [f"only {len(keys)} keys and {len(flags)} flags were found; expected at least 100 of each"]
    named = re.findall(r"`([a-z]\w*(?:\.\w+)*)`", left_sides(deepspeed))
    problems = check("porting-deepspeed.md", keys, deepspeed, named, lambda key: key.split(".")[-1])
    named = re.findall(r"`(--[a-z0-9-]+)`", left_sides(megatron))
    return problems + check("porting-megatron.md", flags, megatron, named, lambda flag: flag)


def main():
    deepspeed, megatron = page("porting-deepspeed.md"), page("porting-megatron.md")
    problems = check_all(deepspeed, megatron)
    if problems:
        sys.exit("\n".join(problems))
    # Each of these changes must be reported.
    for broken in ((deepspeed.replace("`sub_group_size`", "`sub_groups`"), megatron),
                   (deepspeed, megatron.replace("`--ddp-bucket-size`", "`--bucket`")),
                   (deepspeed.replace("`stage`", "`level`"), megatron)):
        if not check_all(*broken):
            sys.exit("a page with an error passes")
    print("both guides match tessera import")


if __name__ == "__main__":
    main()
