#!/usr/bin/env python3
"""Writes tessera/data/unicode_tables.h with the classes and decompositions of all characters, obtained
from the Python package `tokenizers`; [Note: Unicode tables] in tessera/data/unicode.h explains why. The
test unicode_peer_test compares the result with the package.

    .interop-venv/bin/python scripts/make_unicode_tables.py [output]
"""
import os
import sys
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, __version__, models, normalizers, pre_tokenizers

ALL = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
BLOCKS = [[chr(c) for c in ALL[i : i + 256]] for i in range(0, len(ALL), 256)]


def removed_by(splitter):
    """Returns the characters that a splitter with `removed` removes."""
    gone = set()
    for block in BLOCKS:
        left = set("".join(piece for piece, _ in splitter.pre_tokenize_str("".join(block))))
        gone |= {ord(c) for c in block if c not in left}
    return gone


def matched(pattern):
    return removed_by(pre_tokenizers.Split(Regex(pattern), "removed"))


def digits():
    """Returns the characters that Digits puts in separate pieces."""
    found = set()
    splitter = pre_tokenizers.Digits(individual_digits=True)
    for block in BLOCKS:
        text = "".join("a" + c for c in block) + "a"
        found |= {ord(piece) for piece, _ in splitter.pre_tokenize_str(text) if len(piece) == 1}
    return found - {ord("a")}


def word_characters():
    """Returns the characters that must not be adjacent to a single-word token."""
    mark = "\u2603"
    tokenizer = Tokenizer(models.BPE({"a": 0}, []))
    tokenizer.add_tokens([AddedToken(mark, single_word=True, normalized=False)])
    found = set()
    for c in ALL:
        if chr(c) != mark and not tokenizer.encode(mark + chr(c)).ids[:1] == [1]:
            found.add(c)
    return found


def runs(members):
    """Returns alternating lengths of gaps and of runs of members."""
    out, at, members = [], 0, sorted(members)
    i = 0
    while i < len(members):
        j = i
        while j + 1 < len(members) and members[j + 1] == members[j] + 1:
            j += 1
        out += [members[i] - at, j + 1 - i]
        at = members[j] + 1
        i = j + 1
    return out


def normalization():
    nfc, nfd = normalizers.NFC().normalize_str, normalizers.NFD().normalize_str
    pairs, singles, classes = [], [], {}
    last_pair = last_single = 0
    for c in ALL:
        if 0xAC00 <= c < 0xAC00 + 11172:
            continue
        text = unicodedata.decomposition(chr(c))
        if text and "<" not in text and nfd(chr(c)) != chr(c):
            parts = [int(part, 16) for part in text.split()]
            if len(parts) == 1:
                singles += [c - last_single, parts[0]]
                last_single = c
            else:
                composes = nfc("".join(map(chr, parts))) == chr(c)
                pairs += [c - last_pair, parts[0], parts[1] if composes else -parts[1]]
                last_pair = c
        rank = unicodedata.combining(chr(c))
        # If the package does not reorder two marks, it does not treat them as combining.
        low, high = chr(0x334), chr(0x345)  # 1 and 240, the least and the greatest class
        if rank and (nfd("q" + high + chr(c)) != "q" + high + chr(c) if rank < 240 else True):
            classes.setdefault(rank, []).append(c)
    return pairs, singles, classes


def numbers(name, comment, values, kind="std::int32_t"):
    lines, line = [], " "
    for value in values:
        part = f" {value},"
        if len(line) + len(part) > 100:
            lines.append(line)
            line = " "
        line += part
    lines.append(line)
    return f"// {comment}\ninline constexpr {kind} {name}[] = {{\n" + "\n".join(lines) + "\n};\n"


def main():
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    out = sys.argv[1] if len(sys.argv) > 1 else os.path.join(root, "tessera/data/unicode_tables.h")
    letters, numerals, spaces = matched(r"\p{L}"), matched(r"\p{N}"), matched(r"\s")
    words = word_characters()
    more = digits()
    assert more >= numerals
    pairs, singles, classes = normalization()
    ranks = []
    for rank in sorted(classes):
        each = runs(classes[rank])
        ranks += [rank, len(each) // 2] + each
    text = f"""#pragma once

// Written by scripts/make_unicode_tables.py from tokenizers {__version__}; do not edit. Not from a
// Unicode library: see [Note: Unicode tables] in unicode.h.
// Lists of runs alternate between the number of characters skipped and the number included.

#include <cstdint>

// clang-format off
namespace tessera::data::unicode_tables {{

"""
    text += numbers("kLetters", "Runs of \\p{L}.", runs(letters)) + "\n"
    text += numbers("kNumbers", "Runs of \\p{N}.", runs(numerals)) + "\n"
    text += numbers("kMoreDigits", "Runs of further characters that Digits isolates.", runs(more - numerals)) + "\n"
    text += numbers("kSpaces", "Runs of \\s.", runs(spaces)) + "\n"
    text += numbers("kWords", "Runs of \\w, for the limits of single words.", runs(words)) + "\n"
    text += numbers("kPairs", "Distance to the previous character of the list, and the two characters of its decomposition; the\n// second is negative if the two do not compose.", pairs) + "\n"
    text += numbers("kSingles", "Distance to the previous character of the list, and the character of its decomposition.", singles) + "\n"
    text += numbers("kRanks", "A combining class, the number of its runs, and the runs; each class starts at 0.", ranks)
    text += "\n}  // namespace tessera::data::unicode_tables\n"
    with open(out, "w", encoding="utf-8") as file:
        file.write(text)


if __name__ == "__main__":
    main()
