#!/usr/bin/env python3
"""Trains small tokenizers of all kinds with the Python package `tokenizers`, and writes their
results on random strings for tokenizer_peer_test to compare with.

    tokenizer_peer.py FOLDER COUNT

FOLDER/<kind>/ gets tokenizer.json and cases: for each string its bytes, ids (special tokens on, off,
with the tokens around a text), and the decoded text with and without special tokens. All numbers are
32 bits, little-endian; bytes and ids are preceded by their count.
"""
import json
import os
import random
import struct
import sys

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

import tokenizer_texts

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
# Patterns of GPT-4o and DeepSeek, which are matched by PCRE2.
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m"
         r"|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
         r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
            r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
MARK = "\u2581"


def trained(pre_tokenizer, vocabulary, normalizer=None, alphabet=()):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, show_progress=False,
                                  initial_alphabet=list(alphabet), min_frequency=2)
    tokenizer.train_from_iterator(tokenizer_texts.corpus(1500), trainer)
    return tokenizer


def byte_level(pre_tokenizer, normalizer=None, vocabulary=1200, **model):
    tokenizer = trained(pre_tokenizer, vocabulary, normalizer,
                        pre_tokenizers.ByteLevel.alphabet())
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return changed(tokenizer, lambda json: json["model"].update(model))


def changed(tokenizer, change):
    settings = json.loads(tokenizer.to_str())
    change(settings)
    return Tokenizer.from_str(json.dumps(settings))


def sentence_piece(vocabulary=1200, fallback=True, **model):
    """Llama 2's layout: three special tokens, 256 bytes, then the rest."""
    tokenizer = trained(pre_tokenizers.Metaspace(), vocabulary)
    own = json.loads(tokenizer.to_str())["model"]
    tokens = ["<unk>", "<s>", "</s>"] + (["<0x%02X>" % byte for byte in range(256)] if fallback else [])
    tokens += [token for token, _ in sorted(own["vocab"].items(), key=lambda item: item[1])
               if ord(token[0]) < 0x4e80 or len(token) > 1 or not fallback]
    kept = set(tokens)
    merges = [pair for pair in own["merges"] if set(pair) | {pair[0] + pair[1]} <= kept]
    own.update({"vocab": {token: i for i, token in enumerate(tokens)}, "merges": merges,
                "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": fallback})
    own.update(model)
    tokenizer = Tokenizer.from_str(json.dumps({"version": "1.0", "truncation": None, "padding": None,
                                               "added_tokens": [], "normalizer": None,
                                               "pre_tokenizer": None, "post_processor": None,
                                               "decoder": None, "model": own}))
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.decoder = decoders.Sequence([decoders.Replace(MARK, " "), decoders.ByteFallback(),
                                           decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A <s> $B", [("<s>", 1)])
    return tokenizer


def llama2(**model):
    tokenizer = sentence_piece(**model)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
    return tokenizer


def metaspace(first, split, **model):
    tokenizer = sentence_piece(**model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=first, split=split)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=first, split=split)
    return tokenizer


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), behavior, invert),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def all_flags(tokenizer):
    """Added tokens with each flag and some of several."""
    tokenizer.add_tokens([
        AddedToken("tok", single_word=True), AddedToken("<tool>", lstrip=True),
        AddedToken("[MASK]", lstrip=True, rstrip=True), AddedToken("ill", normalized=False),
        AddedToken("\u00dcn\u00efcode", normalized=True), AddedToken("qui", single_word=True, rstrip=True),
        AddedToken("e\u0301", normalized=True), AddedToken("le", normalized=False, single_word=True),
        AddedToken(" th", normalized=False), AddedToken("<tool> x", normalized=True)])
    tokenizer.add_special_tokens([
        AddedToken("<|endoftext|>"), AddedToken("<|im_start|>", rstrip=True),
        AddedToken("<|im_end|>", lstrip=True, normalized=True), AddedToken("<|im_end|>x"),
        AddedToken("\u65e5", single_word=True)])
    return tokenizer


def llama3():
    tokenizer = byte_level(split(LLAMA3), ignore_merges=True)
    tokenizer.add_special_tokens(["<|begin_of_text|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    begin = tokenizer.token_to_id("<|begin_of_text|>")
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing("<|begin_of_text|> $A", None, [("<|begin_of_text|>", begin)])])
    return tokenizer


def with_end(tokenizer):
    tokenizer.add_special_tokens(["<|endoftext|>"])
    return tokenizer


def unreachable(tokenizer):
    """With words in the vocabulary that no merge makes, for ignore_merges."""
    def change(settings):
        vocab = settings["model"]["vocab"]
        for word in ("\u0120fault", "lengthened", "12"):
            vocab.setdefault(word, len(vocab))
        settings["model"]["ignore_merges"] = True
    return changed(tokenizer, change)


# Kind: its function, and whether its patterns need PCRE2, which supports Unicode 14 only.
KINDS = {
    "gpt2": (lambda: with_end(byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))), False),
    "gpt2_prefix": (lambda: all_flags(byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True))), False),
    "llama3": (lambda: unreachable(llama3()), False),
    "qwen2": (lambda: all_flags(byte_level(split(QWEN2), normalizers.NFC())), False),
    "nfd": (lambda: byte_level(split(GPT2), normalizers.NFD()), False),
    "o200k": (lambda: with_end(byte_level(split(O200K))), True),
    "deepseek": (lambda: byte_level(pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), "isolated"),
        pre_tokenizers.Split(Regex("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"), "isolated"),
        pre_tokenizers.Split(Regex(DEEPSEEK), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])), True),
    "digits": (lambda: byte_level(pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False)])), False),
    "digit_runs": (lambda: byte_level(pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=False),
        pre_tokenizers.ByteLevel(add_prefix_space=True)])), False),
    "removed": (lambda: byte_level(split(r"\s+", "removed")), True),
    "previous": (lambda: byte_level(split(r"[\s,.]", "merged_with_previous")), True),
    "next": (lambda: byte_level(split(r"\s|\p{P}{2}", "merged_with_next")), True),
    "contiguous": (lambda: byte_level(split(r"\p{L}|\d", "contiguous")), True),
    "inverted": (lambda: byte_level(split(r"[^\S\n]+|(?<=\p{Lu})\p{Ll}++", "removed", True)), True),
    "llama2": (llama2, False),
    "llama2_flags": (lambda: all_flags(llama2()), False),
    "metaspace_first": (lambda: all_flags(metaspace("first", False)), False),
    "metaspace_always": (lambda: metaspace("always", True), False),
    "metaspace_never": (lambda: all_flags(metaspace("never", True, fallback=False)), False),
    "unknown": (lambda: llama2(fallback=False, fuse_unk=False), False),
    "unknown_fused": (lambda: llama2(fallback=False, fuse_unk=True), False),
    "unknown_none": (lambda: llama2(fallback=False, unk_token=None), False),
    "no_decoder": (lambda: changed(llama2(), lambda settings: settings.update(decoder=None)), False),
}


def encoded(tokenizer, text, special=True, around=False):
    tokenizer.encode_special_tokens = not special
    return tokenizer.encode(text, add_special_tokens=around).ids


def write(folder, name, count):
    tokenizer = KINDS[name][0]()
    os.makedirs(folder)
    settings = json.loads(tokenizer.to_str())
    if len(name) % 2 == 0:  # half of them in the older form
        settings["model"]["merges"] = [" ".join(pair) for pair in settings["model"]["merges"]]
    with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as file:
        json.dump(settings, file, ensure_ascii=len(name) % 3 == 0)
    chance = random.Random(len(name))
    size = tokenizer.get_vocab_size()
    with open(os.path.join(folder, "cases"), "wb") as file:
        def put(values):
            values = values.encode("utf-8") if isinstance(values, str) else values
            file.write(struct.pack("<I", len(values)))
            file.write(values if isinstance(values, bytes) else struct.pack(f"<{len(values)}I", *values))

        for text in tokenizer_texts.strings(count, name, KINDS[name][1]):
            ids = encoded(tokenizer, text)
            drawn = [chance.randrange(size) for _ in range(chance.randrange(12))]
            for part in (text, ids, encoded(tokenizer, text, special=False),
                         encoded(tokenizer, text, around=True),
                         tokenizer.decode(ids, skip_special_tokens=False),
                         tokenizer.decode(ids, skip_special_tokens=True),
                         drawn, tokenizer.decode(drawn, skip_special_tokens=False)):
                put(part)


def main():
    folder, count = sys.argv[1], int(sys.argv[2])
    for name in sys.argv[3:] or KINDS:
        write(os.path.join(folder, name), name, count)
    print("tokenizers", tokenizers.__version__)


if __name__ == "__main__":
    main()
