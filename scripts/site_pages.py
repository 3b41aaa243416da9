"""Hook of mkdocs: adapts pages written for GitHub to Python-Markdown, which rejects words after the language of a
code block ("```sh run") and needs an empty line before a list."""

import re

_FENCE = re.compile(r"^(```\w*).*$")
_ITEM = re.compile(r"^([-*]|\d+\.) ")


def adapt(markdown):
    lines, in_block = [], False
    for line in markdown.splitlines():
        before = lines[-1] if lines else ""
        if line.startswith("```"):
            if not in_block and before:
                lines.append("")
            lines.append(_FENCE.sub(r"\1", line))
            in_block = not in_block
            continue
        starts_list = _ITEM.match(line) and before and not _ITEM.match(before) and not before.startswith(" ")
        if not in_block and starts_list:
            lines.append("")
        lines.append(line)
    return "\n".join(lines) + "\n"


def on_page_markdown(markdown, **_):
    return adapt(markdown)
