#!/usr/bin/env python3
"""Writes what the Python package `tokenizers` answers about every code point, for unicode_peer_test to
compare with.

    unicode_peer.py FOLDER [all]

Without `all`, only the ranges that have assigned characters outside of private use: U+0000 to U+3FFFF
and U+E0000 to U+E0FFF. FOLDER/classes has a byte for each code point, with the bits of CharacterClass
in tessera/data/unicode.h, or 255 for one left out. FOLDER/texts, nfc and nfd have one text per line, as it is and normalized:
every code point but the line feed and surrogates; the parts of every composed character; every
Hangul syllable in parts; and every mark on both sides of one mark of each combining class.
"""
import os
import sys
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

CODE_POINTS = 0x110000
LETTER, NUMBER, SPACE, WORD, DIGIT, LEFT_OUT = 1, 2, 4, 8, 16, 255
ALL = [chr(c) for c in range(CODE_POINTS) if not 0xD800 <= c < 0xE000
       and (c < 0x40000 or 0xE0000 <= c < 0xE1000 or sys.argv[2:] == ["all"])]
BLOCKS = [ALL[i : i + 1024] for i in range(0, len(ALL), 1024)]


def matched(pattern):
    """The characters that a pattern matches: those that a split does not leave."""
    split = pre_tokenizers.Split(Regex(pattern), "removed")
    for block in BLOCKS:
        at = 0
        for _, (begin, end) in split.pre_tokenize_str("".join(block)):
            yield from block[at:begin]
            at = end
        yield from block[at:]


def digits():
    """The characters that Digits isolates, each between two letters."""
    split = pre_tokenizers.Digits(individual_digits=True)
    for block in BLOCKS:
        for _, (begin, end) in split.pre_tokenize_str("a" + "a".join(block) + "a"):
            if end - begin == 1 and begin % 2 == 1:
                yield block[begin // 2]


def word_characters():
    """The characters that hide a single-word token behind which they stand."""
    mark = "\u2603"
    tokenizer = Tokenizer(models.BPE({"a": 0}, []))
    tokenizer.add_tokens([AddedToken(mark, single_word=True, normalized=False)])
    for block in BLOCKS:
        text = "".join("\n" + mark + c for c in block)
        found = {begin // 3 for begin, _ in tokenizer.encode(text).offsets}
        # The mark itself is found where it follows a mark.
        yield from (c for i, c in enumerate(block) if i not in found and c != mark)


def texts():
    yield from (c for c in ALL if c != "\n")
    for c in ALL:
        parts = unicodedata.decomposition(c)
        if parts and "<" not in parts:
            yield "".join(chr(int(part, 16)) for part in parts.split())
    for lead in range(0x1100, 0x1113):
        for vowel in range(0x1161, 0x1176):
            for tail in range(0x11A7, 0x11C3):  # the first is none
                yield chr(lead) + chr(vowel) + (chr(tail) if tail > 0x11A7 else "")
    marks = list(matched(r"\p{M}"))
    of_class = {}
    for c in marks:
        of_class.setdefault(unicodedata.combining(c), c)
    for c in marks:
        for other in of_class.values():
            yield "q" + c + other
            yield "q" + other + c


def main(folder):
    classes = bytearray([LEFT_OUT]) * CODE_POINTS
    for c in ALL:
        classes[ord(c)] = 0
    for bit, members in [(LETTER, matched(r"\p{L}")), (NUMBER, matched(r"\p{N}")),
                         (SPACE, matched(r"\s")), (WORD, word_characters()), (DIGIT, digits())]:
        for c in members:
            classes[ord(c)] |= bit
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "classes"), "wb") as file:
        file.write(classes)
    lines = list(texts())
    for name, normalizer in [("texts", None), ("nfc", normalizers.NFC()), ("nfd", normalizers.NFD())]:
        with open(os.path.join(folder, name), "w", encoding="utf-8", newline="") as file:
            for i in range(0, len(lines), 4096):
                text = "\n".join(lines[i : i + 4096]) + "\n"
                file.write(text if normalizer is None else normalizer.normalize_str(text))


if __name__ == "__main__":
    main(sys.argv[1])
