"""Reads the subset of YAML that workflows use: mappings and lists by indentation, strings, one-line lists, blocks
after `|`. Rejects everything else. For tests, because Debian's Python has no YAML reader."""

import re


class Unreadable(Exception):
    pass


def scalar(text):
    text = text.strip()
    if re.fullmatch(r"\[[^\[\]{}]*\]", text):
        return [scalar(item) for item in text[1:-1].split(",")]
    if re.fullmatch(r"'[^']*'|\"[^\"\\]*\"", text):
        return text[1:-1]
    if not text:
        return None
    if text[0] in "[]{}&*!|>%@`'\"" or ": " in text:
        raise Unreadable(f"unsupported value {text!r}")
    return {"true": True, "false": False}.get(text, int(text) if re.fullmatch(r"\d+", text) else text)


def lines_of(text):
    """Yields (number, indentation, text) of lines that are not empty, and of all lines inside a block."""
    block = None
    for number, line in enumerate(text.splitlines(), 1):
        indent = len(line) - len(line.lstrip(" "))
        if block is not None and line.strip() and indent <= block:
            block = None
        if block is None:
            line = re.sub(r"(^|\s)#.*$", "", line).rstrip()
            if not line:
                continue
            if line.endswith(": |"):
                block = indent + (2 if line.lstrip().startswith("- ") else 0)
        yield number, indent, line.strip()


class Reader:
    def __init__(self, text):
        self.lines = list(lines_of(text))

    def value(self, indent):
        return self.list(indent) if self.lines[0][2].startswith("- ") else self.mapping(indent)

    def list(self, indent):
        items = []
        while self.lines and self.lines[0][1] == indent and self.lines[0][2].startswith("- "):
            number, _, text = self.lines[0]
            inner = text[2:].strip()
            if re.match(r"[\w-]+:( |$)", inner):
                self.lines[0] = (number, indent + 2, inner)
                items.append(self.mapping(indent + 2))
            else:
                self.lines.pop(0)
                items.append(scalar(inner))
        return items

    def mapping(self, indent):
        result = {}
        while self.lines and self.lines[0][1] == indent:
            number, _, text = self.lines[0]
            found = re.fullmatch(r"([\w-]+):(?: +(.*))?", text)
            if not found or found[1] in result:
                raise Unreadable(f"line {number}: {text!r}")
            self.lines.pop(0)
            key, rest = found[1], found[2]
            if rest == "|":
                inside = []
                while self.lines and (self.lines[0][1] > indent or not self.lines[0][2]):
                    inside.append(self.lines.pop(0)[2])
                result[key] = "\n".join(inside)
            elif rest:
                result[key] = scalar(rest)
            elif self.lines and self.lines[0][1] > indent:
                result[key] = self.value(self.lines[0][1])
            else:
                result[key] = None
        if self.lines and self.lines[0][1] > indent:
            raise Unreadable(f"line {self.lines[0][0]} is indented too far")
        return result


def read(text):
    reader = Reader(text)
    result = reader.value(0)
    if reader.lines:
        raise Unreadable(f"line {reader.lines[0][0]}: {reader.lines[0][2]!r}")
    return result
