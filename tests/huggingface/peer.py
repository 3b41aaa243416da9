#!/usr/bin/env python3
"""Makes small random models with transformers for interop_test.cpp to load: peer.py DIR.

Writes a folder for each in DIR, with its logits and losses in reference.safetensors, and prints their
names. Then reads commands from stdin: "check NAME FOLDER" loads a folder that Tessera wrote and prints
whether its logits equal those of NAME and it has the files of NAME; "bare NAME FOLDER" checks only the
logits. One process for all, because importing transformers takes seconds."""

import json
import os
import sys

import torch
import transformers
from safetensors.torch import save_file

ROWS, TOKENS, VOCAB, STEPS = 4, 24, 211, 3
LR, BETAS, EPS, DECAY, CLIP = 1e-2, (0.9, 0.99), 1e-8, 0.1, 1.0

LLAMA = dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=56, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
             initializer_range=0.2)
GPT2 = dict(vocab_size=VOCAB, n_positions=32, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0.0,
            embd_pdrop=0.0, attn_pdrop=0.0, initializer_range=0.2)
GEMMA = dict(**LLAMA, head_dim=12, pad_token_id=None)
LLAMA3 = dict(rope_type="llama3", rope_theta=5e3, factor=8.0, low_freq_factor=1.0,
              high_freq_factor=4.0, original_max_position_embeddings=16)

# Experts of a layer, with an odd number of them.
MOE = dict(num_experts_per_tok=3, moe_intermediate_size=20, norm_topk_prob=True)
ONE_KV_HEAD = {**LLAMA, "num_key_value_heads": 1}

# With this base the ramp covers all four pairs of a head.
YARN = dict(rope_type="yarn", rope_theta=50.0, factor=4.0, original_max_position_embeddings=64)


def configs():
    t = transformers
    yield "gpt2", t.GPT2Config(**GPT2), {}
    yield "gpt2-untied", t.GPT2Config(**{**GPT2, "n_inner": 40, "activation_function": "gelu",
                                         "tie_word_embeddings": False,
                                         "layer_norm_epsilon": 1e-3}), {}
    yield "llama3", t.LlamaConfig(**LLAMA, rope_parameters=LLAMA3), {"max_shard_size": "20KB"}
    yield "llama-tied", t.LlamaConfig(**{**LLAMA, "num_key_value_heads": 4}, rms_norm_eps=1e-2,
                                      rope_parameters=dict(rope_type="linear", factor=3.0,
                                                           rope_theta=1e4),
                                      tie_word_embeddings=True, attention_bias=True,
                                      mlp_bias=True, head_dim=12), {"bf16": True}
    yield "qwen2", t.Qwen2Config(**LLAMA, use_sliding_window=True, sliding_window=6,
                                 max_window_layers=1, tie_word_embeddings=True), {}
    yield "qwen2-yarn", t.Qwen2Config(**LLAMA, rope_parameters=dict(**YARN, beta_fast=4.0)), {}
    yield "llama-yarn", t.LlamaConfig(**LLAMA, rope_parameters=dict(
        **YARN, beta_fast=4.0, beta_slow=0.5, mscale=0.7, mscale_all_dim=1.9, truncate=False)), {}
    yield "mistral-yarn", t.MistralConfig(**LLAMA, sliding_window=None, rope_parameters=dict(
        **YARN, attention_factor=1.4)), {}
    # Dynamic scaling has no effect within the context, but the export must keep it.
    yield "llama-dynamic", t.LlamaConfig(**LLAMA, rope_parameters=dict(
        rope_type="dynamic", rope_theta=1e4, factor=4.0)), {}
    yield "mistral", t.MistralConfig(**LLAMA, sliding_window=5), {"max_shard_size": "40KB"}
    yield "qwen3", t.Qwen3Config(**LLAMA, head_dim=12, tie_word_embeddings=True), {}
    yield "qwen3-biases", t.Qwen3Config(**{**LLAMA, "num_key_value_heads": 1}, head_dim=8,
                                        attention_bias=True, use_sliding_window=True,
                                        sliding_window=6, max_window_layers=1), {"bf16": True}
    yield "phi3", t.Phi3Config(**LLAMA, sliding_window=7, pad_token_id=None), {}
    yield "gemma2", t.Gemma2Config(**GEMMA, query_pre_attn_scalar=20, sliding_window=6,
                                   attn_logit_softcapping=2.0, final_logit_softcapping=3.0), {}
    yield "gemma2-odd", t.Gemma2Config(**{**GEMMA, "num_key_value_heads": 1}, attention_bias=True,
                                       query_pre_attn_scalar=12, sliding_window=5,
                                       layer_types=["full_attention", "sliding_attention"],
                                       attn_logit_softcapping=None, final_logit_softcapping=None,
                                       tie_word_embeddings=False), {"max_shard_size": "20KB"}
    yield "gemma3", t.Gemma3TextConfig(**{**GEMMA, "num_hidden_layers": 3}, sliding_window=6,
                                       query_pre_attn_scalar=20, layer_types=[
                                           "sliding_attention", "sliding_attention",
                                           "full_attention"],
                                       rope_parameters={
                                           "full_attention": dict(rope_type="linear", factor=8.0,
                                                                  rope_theta=1e6),
                                           "sliding_attention": dict(rope_type="default",
                                                                     rope_theta=1e4)}), {}
    # config.json ties the head to the embedding, but the file has a different head.
    yield "llama-head", t.LlamaConfig(**LLAMA), {"says_tied": True}
    yield "mixtral", t.MixtralConfig(**LLAMA, num_local_experts=5, num_experts_per_tok=2), {
        "max_shard_size": "40KB"}
    yield "mixtral-odd", t.MixtralConfig(**ONE_KV_HEAD, head_dim=12, num_local_experts=3,
                                         num_experts_per_tok=2, sliding_window=7,
                                         tie_word_embeddings=True), {"bf16": True}
    yield "qwen3-moe", t.Qwen3MoeConfig(**LLAMA, **MOE, head_dim=12, num_experts=7), {}
    yield "qwen3-moe-dense", t.Qwen3MoeConfig(**{**ONE_KV_HEAD, **MOE, "num_hidden_layers": 3,
                                                 "norm_topk_prob": False}, num_experts=6,
                                              head_dim=8, mlp_only_layers=[0], attention_bias=True,
                                              use_sliding_window=True, sliding_window=6), {}
    # Selected by the sigmoids and biases of DeepSeek-V3, with shared experts.
    dots = dict(n_routed_experts=6, n_shared_experts=2, routed_scaling_factor=2.5)
    yield "dots1", t.Dots1Config(**{**LLAMA, **MOE, **dots, "num_hidden_layers": 3},
                                 first_k_dense_replace=1, sliding_window=None), {}
    yield "dots1-odd", t.Dots1Config(**{**ONE_KV_HEAD, **MOE, **dots, "num_experts_per_tok": 1,
                                        "norm_topk_prob": False}, head_dim=12, attention_bias=True,
                                     sliding_window=6, max_window_layers=1), {}


def logits_of(model, ids):
    model.eval()
    with torch.no_grad():
        return model(ids).logits.float()


def losses_of(model, batches):
    model.train()
    groups = [{"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": DECAY},
              {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=BETAS, eps=EPS)
    losses = []
    for batch in batches:
        logits = model(batch[:, :-1]).logits.float()
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB),
                                                 batch[:, 1:].reshape(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return torch.stack(losses)


def load(path):
    return transformers.AutoModelForCausalLM.from_pretrained(
        path, attn_implementation="eager", experts_implementation="eager", dtype=torch.float32)


def make(folder, seed, config, options):
    torch.manual_seed(seed)
    config._attn_implementation = config._experts_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config).float()
    with torch.no_grad():  # otherwise norms and biases would be constant
        for parameter in model.parameters():
            if parameter.dim() < 2:
                parameter.add_(0.1 * torch.randn_like(parameter))
        for buffer_name, buffer in model.named_buffers():
            if buffer_name.endswith("e_score_correction_bias"):
                buffer.add_(0.1 * torch.randn_like(buffer))
    path = os.path.join(folder, options["name"])
    sizes = {k: v for k, v in options.items() if k == "max_shard_size"}
    if options.get("bf16"):
        model.to(torch.bfloat16).save_pretrained(path, **sizes)
        # Built again, because the conversion also rounded the rotary frequencies.
        model = transformers.AutoModelForCausalLM.from_pretrained(
            path, attn_implementation="eager", dtype=torch.float32)
    else:
        model.save_pretrained(path, **sizes)
    if options.get("says_tied"):
        with open(os.path.join(path, "config.json")) as file:
            said = json.load(file)
        with open(os.path.join(path, "config.json"), "w") as file:
            json.dump({**said, "tie_word_embeddings": True}, file)
        model = load(path)
    with open(os.path.join(path, "tokenizer.json"), "w") as file:
        json.dump({"of": options["name"]}, file)
    ids = torch.randint(0, VOCAB, (ROWS, TOKENS))
    batches = torch.randint(0, VOCAB, (STEPS, ROWS, TOKENS + 1))
    logits = logits_of(model, ids)
    save_file({"ids": ids, "logits": logits, "batches": batches,
               "losses": losses_of(model, batches)},
              os.path.join(path, "reference.safetensors"))
    return ids, logits


def check(folder, path, companions, ids, logits):
    model = load(path)
    got = logits_of(model, ids)
    if not torch.equal(got, logits):
        return f"logits differ by {(got - logits).abs().max().item()}"
    for name in ("tokenizer.json", "generation_config.json") if companions else ():
        if open(os.path.join(path, name)).read() != open(os.path.join(folder, name)).read():
            return f"{name} differs"
    return "equal"


def main():
    folder = sys.argv[1]
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    known = {}
    for seed, (name, config, options) in enumerate(configs()):
        known[name] = make(folder, seed, config, {"name": name, **options})
    print("made", *known, flush=True)
    for line in sys.stdin:
        what, name, path = line.split()
        print(check(os.path.join(folder, name), path, what == "check", *known[name]), flush=True)


if __name__ == "__main__":
    main()
