"""Adapters of `tessera train --lora-rank`, compared with those of the Python package peft.

For a small random model of each family: training beside peft's, export to peft and as a merged
model, and import of an adapter that peft wrote.

    peft_test.py TESSERA [FAMILY...]      run by the Python of .interop-venv
"""

import json
import os
import subprocess
import sys
import tempfile

SKIP = 77
try:
    import torch
    import transformers
    from peft import LoraConfig, PeftModel, get_peft_model
    from safetensors.torch import load_file
except ImportError as error:
    print(f"skipped: {error}; make interop installs what this compares with", flush=True)
    sys.exit(SKIP)

SEQ, BATCH, STEPS, RANK, ALPHA, LR, DROPOUT = 24, 2, 3, 4, 6, 1e-2, 0.15
TARGETS = {
    "gpt2": ["c_attn", "attn.c_proj", "mlp.c_proj", "c_fc"],
    "llama": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    "qwen2": ["q_proj", "v_proj"],
    "mistral": ["k_proj", "o_proj", "down_proj"],
    "qwen3": ["q_proj", "k_proj", "up_proj"],
    "phi3": ["qkv_proj", "gate_up_proj", "down_proj"],
    "gemma2": ["q_proj", "o_proj", "gate_proj"],
    "gemma3_text": ["v_proj", "down_proj"],
    "mixtral": ["q_proj", "k_proj", "v_proj", "o_proj"],
    "qwen3_moe": ["q_proj", "v_proj"],
    "dots1": ["k_proj", "o_proj"],
}
OURS = {"gpt2": "all", "llama": "all", "qwen2": "auto", "mistral": "k,o,down_proj",
        "qwen3": "q,k,up", "phi3": "qkv_proj,gate_up_proj,down", "gemma2": "q,o,gate",
        "gemma3_text": "v,down", "mixtral": "q,k,v,o", "qwen3_moe": "auto", "dots1": "k,o"}


def small_config(family):
    if family == "gpt2":
        return transformers.GPT2Config(vocab_size=256, n_positions=64, n_embd=32, n_layer=2, n_head=4,
                                       resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    kind = {"llama": transformers.LlamaConfig, "qwen2": transformers.Qwen2Config,
            "mistral": transformers.MistralConfig, "qwen3": transformers.Qwen3Config,
            "phi3": transformers.Phi3Config, "gemma2": transformers.Gemma2Config,
            "gemma3_text": transformers.Gemma3TextConfig, "mixtral": transformers.MixtralConfig,
            "qwen3_moe": transformers.Qwen3MoeConfig, "dots1": transformers.Dots1Config}[family]
    experts = {"num_experts_per_tok": 2, "moe_intermediate_size": 16, "norm_topk_prob": True}
    gemma = {"head_dim": 12, "query_pre_attn_scalar": 10, "sliding_window": 16, "pad_token_id": None}
    more = {"mistral": {"sliding_window": 16}, "qwen3": {"head_dim": 12},
            "phi3": {"pad_token_id": None}, "gemma2": gemma, "gemma3_text": gemma,
            "mixtral": {"num_local_experts": 4}, "qwen3_moe": {**experts, "num_experts": 5},
            "dots1": {**experts, "n_routed_experts": 4, "n_shared_experts": 1,
                      "sliding_window": None}}.get(family, {})
    return kind(vocab_size=256, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
                tie_word_embeddings=family == "qwen2" or family.startswith("gemma"), **more)


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\nfailed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def check(what, good, detail=""):
    if not good:
        raise SystemExit(f"FAILED: {what} {detail}")


def logits_of(model, ids):
    model.eval()
    with torch.no_grad():
        return model(ids).logits.float()


def lora_of(family):
    return LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=TARGETS[family], lora_dropout=DROPOUT,
                      fan_in_fan_out=family == "gpt2", task_type="CAUSAL_LM")


def base_model(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def losses_of(lines):
    steps = [json.loads(line) for line in lines.splitlines()]
    return [step["loss"] for step in steps if "step" in step and "loss" in step]


def train_with_peft(base, adapter, tokens):
    """Returns the losses of the same steps, from the same adapters."""
    model = PeftModel.from_pretrained(base_model(base), adapter, is_trainable=True)
    model.eval()  # no dropout; gradients are still computed
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=LR, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.0)
    losses = []
    for step in range(STEPS):
        rows = [tokens[(step * BATCH + row) * SEQ:][:SEQ + 1] for row in range(BATCH)]
        ids = torch.tensor([row[:-1] for row in rows])
        targets = torch.tensor([row[1:] for row in rows])
        logits = model(ids).logits.float()
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


def check_dropout(what, base, adapter, rate):
    """Checks that peft trains the adapters of a folder with this dropout rate."""
    model = PeftModel.from_pretrained(base_model(base), adapter, is_trainable=True)
    rates = {module.p for name, module in model.named_modules()
             if "lora_dropout" in name and isinstance(module, torch.nn.Dropout)}
    check(what, rates == {rate}, rates)


def check_family(tessera, family, work):
    torch.manual_seed(1)
    base, peft_dir = f"{work}/{family}", f"{work}/{family}-peft"
    model = transformers.AutoModelForCausalLM.from_config(small_config(family)).float()
    model.save_pretrained(base)
    tuned = get_peft_model(base_model(base), lora_of(family))
    with torch.no_grad():
        for name, p in tuned.named_parameters():
            if "lora_B" in name:
                p.normal_(0, 0.1)
    tuned.save_pretrained(peft_dir)
    text = bytes((i * 7 + i // 5 + i * i % 11) % 96 + 32 for i in range(2000))
    with open(f"{work}/text.txt", "wb") as out:
        out.write(text)
    common = [tessera, "train", "--init-from", base, "--data", f"{work}/text.txt", "--seq", str(SEQ),
              "--micro-batch", str(BATCH), "--samples", "0", "--order", "sequential", "--clip", "0",
              "--lr", str(LR), "--lr-schedule", "constant", "--warmup", "0", "--weight-decay", "0"]

    # An adapter of peft, trained a few steps by both; without dropout, whose masks differ.
    metrics = f"{work}/{family}.jsonl"
    run(*common, "--lora-from", peft_dir, "--lora-dropout", "0", "--ranks", "1", "--steps", str(STEPS), "--metrics", metrics,
        "--save", f"{work}/{family}-run")
    with open(metrics) as lines:
        ours = losses_of(lines.read())
    theirs, trained = train_with_peft(base, peft_dir, list(text))
    check(f"{family}: losses", len(ours) == STEPS, ours)
    for mine, other in zip(ours, theirs):
        check(f"{family}: losses of training", abs(mine - other) < 1e-4, f"{ours} {theirs}")

    # The trained adapter, loaded by peft.
    ids = torch.tensor([list(text[:40]), list(text[100:140])])
    wanted = logits_of(trained, ids)
    out = f"{work}/{family}-adapter"
    run(tessera, "checkpoint", "export", f"{work}/{family}-run", out, "--format", "peft")
    back = PeftModel.from_pretrained(base_model(base), out)
    error = (logits_of(back, ids) - wanted).abs().max().item()
    check(f"{family}: logits after training, export and import", error < 2e-3, error)
    expected = logits_of(back, ids)
    plain = logits_of(base_model(base), ids)
    check(f"{family}: the adapters matter", (expected - plain).abs().max().item() > 1e-2)

    # And as a merged model.
    merged = f"{work}/{family}-merged"
    run(tessera, "checkpoint", "export", f"{work}/{family}-run", merged, "--format", "huggingface",
        "--base", base)
    error = (logits_of(base_model(merged), ids) - expected).abs().max().item()
    check(f"{family}: logits of the merged model", error < 1e-4, error)

    # Another model of the same shape is rejected.
    other = f"{work}/{family}-other"
    transformers.AutoModelForCausalLM.from_config(small_config(family)).float().save_pretrained(other)
    refused = subprocess.run([tessera, "checkpoint", "export", f"{work}/{family}-run", f"{merged}-2",
                              "--format", "huggingface", "--base", other], capture_output=True,
                             text=True)
    check(f"{family}: another base", refused.returncode != 0 and "fingerprint" in refused.stderr and
          not os.path.exists(f"{merged}-2"), refused.stderr)

    # Also with adapters in the format of peft, which identify their base model.
    again = ["--lora-from", out, "--ranks", "1", "--steps", "1"]
    run(*common, *again)
    refused = subprocess.run([*common, *again, "--init-from", other], capture_output=True, text=True)
    check(f"{family}: adapters beside another model", refused.returncode != 0 and
          "--init-from" in refused.stderr and "fingerprint" in refused.stderr, refused.stderr)

    # An adapter of Tessera on two tensor-parallel ranks, from its own initialization.
    run(*common, "--lora-rank", str(RANK), "--lora-alpha", str(ALPHA), "--lora-targets",
        OURS[family], "--lora-dropout", str(DROPOUT), "--tp", "2", "--steps", "2", "--save",
        f"{work}/{family}-own")
    own = f"{work}/{family}-own-adapter"
    run(tessera, "checkpoint", "export", f"{work}/{family}-own", own, "--format", "peft",
        "--base", base)
    with open(f"{own}/adapter_config.json") as config:
        said = json.load(config)
    check(f"{family}: adapter_config.json", said["base_model_name_or_path"] == base and
          said["r"] == RANK and said["lora_alpha"] == ALPHA and said["lora_dropout"] == DROPOUT, said)
    check_dropout(f"{family}: dropout of our own adapters", base, own, DROPOUT)
    run(*common, "--lora-from", own, "--ranks", "1", "--steps", "1", "--save", f"{work}/{family}-more")
    run(tessera, "checkpoint", "export", f"{work}/{family}-more", f"{own}-more", "--format", "peft")
    check_dropout(f"{family}: dropout, from there and back", base, f"{own}-more", DROPOUT)
    tensors, known = load_file(f"{own}/adapter_model.safetensors"), load_file(
        f"{peft_dir}/adapter_model.safetensors")
    check(f"{family}: names of tensors", tensors.keys() == known.keys(),
          sorted(tensors.keys() ^ known.keys()))
    check(f"{family}: shapes", all(tensors[k].shape == known[k].shape for k in known))
    run(tessera, "checkpoint", "export", f"{work}/{family}-own", f"{own}-merged", "--format",
        "huggingface", "--base", base)
    expected = logits_of(PeftModel.from_pretrained(base_model(base), own), ids)
    error = (logits_of(base_model(f"{own}-merged"), ids) - expected).abs().max().item()
    check(f"{family}: logits of our own adapters", error < 1e-4, error)
    print(f"{family}: as peft has it; losses {ours} and {theirs}", flush=True)


def main():
    tessera = sys.argv[1]
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory(prefix="tessera-peft-") as work:
        for family in sys.argv[2:] or TARGETS:
            check_family(tessera, family, work)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
