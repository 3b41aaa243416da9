"""Texts to train tokenizers on and to try them with: made up, in many scripts, always the same."""
import random
import unicodedata

SENTENCES = [
    "The quick brown fox jumps over the lazy dog, and it's the dog's fault: they'll say we've lost.",
    "Il était une fois, dans un pays lointain, une forêt où l'on n'entendait que le vent.",
    "Größere Straßen führen über die Brücke; die Übung dauert länger als 3,5 Stunden.",
    "Съешь ещё этих мягких французских булок, да выпей чаю. Он сказал: «Хорошо!»",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία, και μετά κοιμάμαι.",
    "我们在公园里散步,天气很好。今天是2024年3月15日,气温25度。",
    "これは日本語の文章です。カタカナとひらがなと漢字が混ざっています。",
    "다람쥐 헌 쳇바퀴에 타고파. 오늘은 날씨가 좋네요!",
    "نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر ١٢٣٤",
    "עטלף אבק נס דרך מזגן שהתפוצץ כי חם",
    "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश हुआ १२३",
    "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า กว่าบรรดาฝูงสัตว์",
    "Tiếng Việt có nhiều dấu: ắ ằ ẳ ẵ ặ, ế ề ể ễ ệ.",
    "def f(x):\n    return x ** 2 + 10_000  # a comment\n\n\nfor (int i = 0; i < 1000; ++i) {\n\tsum += a[i];\r\n}",
    "😀 😃 👩‍👩‍👧‍👦 🇩🇪 👍🏽 ❤️ ☃ ∑∞≠ €19.99 1234567890 ½ Ⅷ ²",
    "don't DON'T Don’t we'll WE'LL I'M i'd you're 'Tis 'S 's 'ſ",
]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>", "</s>", "<unk>", "<tool>", "[MASK]",
           "<0x0A>", "<0xE2>", "▁", "▁▁", "<|", "|>", "tok", "Ünïcode"]
SPACES = [" ", "  ", "   ", "\t", "\n", "\r\n", "\n\n", " \n ", "\u00a0", "\u2003", "\u3000", "\u2028",
          "\u0085", "\u180e", "\u200b", "\x1c", "\x0b", "\x0c"]
MARKS = ["\u0301", "\u0300", "\u0323", "\u0327", "\u0345", "\u05b0", "\u064b", "\u0315", "\u1161",
         "\u11a8", "\ufe0f", "\u200d", "\u0344", "\u0958", "\u212b", "\u1e9b\u0323", "\uac00\u11a8"]
ASSIGNED = [c for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cs", "Cn", "Co")]


def corpus(lines, seed=1):
    """Sentences with their words mixed up."""
    random_ = random.Random(seed)
    words = [sentence.split(" ") for sentence in SENTENCES]
    for _ in range(lines):
        own = random_.choice(words)
        picked = [random_.choice(own) for _ in range(random_.randint(3, 20))]
        if random_.random() < 0.3:
            picked.append(str(random_.randint(0, 10**random_.randint(1, 9))))
        yield random_.choice([" ", " ", " ", "  ", "\n", ", "]).join(picked)


def _character(random_, assigned):
    kind = random_.random()
    if kind < 0.35:
        return chr(random_.randint(0x20, 0x7e))
    if kind < 0.40:
        return chr(random_.randint(0, 0x1f))
    if kind < 0.55:
        return chr(random_.randint(0xa0, 0x24f))
    if kind < 0.62:
        return random_.choice(MARKS)
    if kind < 0.70:
        return chr(random_.randint(0x4e00, 0x9fff))
    if kind < 0.75:
        return chr(random_.randint(0xac00, 0xd7a3))
    if kind < 0.80:
        return chr(random_.randint(0x1f300, 0x1faff) if not assigned else 0x1f600 + random_.randint(0, 60))
    if kind < 0.88 or assigned:
        return chr(random_.choice(ASSIGNED))
    c = random_.randint(0, 0x10ffff)
    return "\ufffd" if 0xd800 <= c < 0xe000 else chr(c)


def strings(count, seed, assigned=False):
    """Random strings. `assigned`: of characters that Unicode 14 has."""
    random_ = random.Random(seed)
    words = [word for sentence in SENTENCES for word in sentence.split(" ")]
    out = ["", " ", "  ", "a", "\n", " a", "a ", "<s>", " <s> ", "\u0301", "▁", " ▁ "]
    while len(out) < count:
        parts = []
        style = random_.random()
        for _ in range(random_.randint(1, 14)):
            kind = random_.random()
            if kind < 0.40 or style < 0.25:
                parts.append(random_.choice(words))
            elif kind < 0.60:
                parts.append("".join(_character(random_, assigned) for _ in range(random_.randint(1, 6))))
            elif kind < 0.72:
                parts.append(random_.choice(SPACES) * random_.choice([1, 1, 1, 2, 3, 9]))
            elif kind < 0.80:
                parts.append(random_.choice(SPECIAL))
            elif kind < 0.86:
                parts.append(str(random_.randint(0, 10**random_.randint(1, 12))))
            elif kind < 0.92:
                parts.append(random_.choice(words) + random_.choice(MARKS))
            else:
                parts.append(random_.choice("'ʼ’") + random_.choice(["s", "S", "t", "ll", "LL", "lL", "Re", "ve", "M", "d", "ſ", "K", "x"]))
            if random_.random() < 0.4:
                parts.append(random_.choice(SPACES[:7]))
        text = "".join(parts)
        out.append("\ufffd".join(text.split("\x00")) if random_.random() < 0.5 else text)
    # Long ones: words that a queue is needed for, and runs.
    out[-1] = "a" * 3000 + " " * 500 + "\n" * 300 + "é" * 200
    out[-2] = "".join(_character(random_, assigned) for _ in range(5000))
    out[-3] = " ".join(random_.choice(words) for _ in range(1000))
    out[-4] = SENTENCES[5] * 40
    return out
