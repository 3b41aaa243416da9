"""Makes a small random model of each family in FOLDER/<family>, continues prompts with transformers,
and prints both as JSON: {family: [[prompt, continuation], …]}."""
import json
import sys

import torch
import transformers

TOKENS = 24
torch.manual_seed(0)
sizes = dict(vocab_size=97, hidden_size=32, num_hidden_layers=3, num_attention_heads=4,
             num_key_value_heads=2, intermediate_size=56, max_position_embeddings=128,
             initializer_range=0.3, eos_token_id=None, bos_token_id=None, pad_token_id=None)
scaled = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
yarn = {"rope_type": "yarn", "rope_theta": 50.0, "factor": 2.0, "beta_fast": 8.0,
        "original_max_position_embeddings": 64}
experts = dict(num_experts_per_tok=2, moe_intermediate_size=24, norm_topk_prob=True)
gemma = dict(**sizes, head_dim=12, query_pre_attn_scalar=20, sliding_window=9,
             tie_word_embeddings=True, hidden_activation="gelu_pytorch_tanh")
models = {
    "gpt2": transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=97, n_embd=32, n_layer=3, n_head=4, n_positions=128, initializer_range=0.3,
        eos_token_id=None, bos_token_id=None)),
    "llama": transformers.LlamaForCausalLM(transformers.LlamaConfig(
        **sizes, tie_word_embeddings=True, rope_parameters=scaled)),
    "qwen2": transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**sizes)),
    "qwen2-yarn": transformers.Qwen2ForCausalLM(transformers.Qwen2Config(
        **sizes, rope_parameters=yarn)),
    "llama-dynamic": transformers.LlamaForCausalLM(transformers.LlamaConfig(
        **sizes, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0})),
    "mistral": transformers.MistralForCausalLM(transformers.MistralConfig(
        **sizes, head_dim=12, sliding_window=9)),
    "qwen3": transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**sizes, head_dim=12)),
    "phi3": transformers.Phi3ForCausalLM(transformers.Phi3Config(**sizes, sliding_window=9)),
    "gemma2": transformers.Gemma2ForCausalLM(transformers.Gemma2Config(
        **gemma, attn_logit_softcapping=2.0, final_logit_softcapping=10.0)),
    "gemma3": transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(
        **gemma, layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        rope_parameters={"full_attention": dict(rope_type="linear", factor=8.0, rope_theta=1e6),
                         "sliding_attention": dict(rope_type="default", rope_theta=1e4)})),
    "mixtral": transformers.MixtralForCausalLM(transformers.MixtralConfig(
        **sizes, num_local_experts=5, num_experts_per_tok=2, sliding_window=9)),
    "qwen3-moe": transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(
        **sizes, **experts, head_dim=12, num_experts=6, mlp_only_layers=[0])),
    "dots1": transformers.Dots1ForCausalLM(transformers.Dots1Config(
        **sizes, **experts, n_routed_experts=6, n_shared_experts=2, first_k_dense_replace=1,
        routed_scaling_factor=2.5, sliding_window=None)),
}
answers = {}
for family, model in models.items():
    model.eval()
    with torch.no_grad():  # biases and norms start as 0 and 1, which would hide a mistake
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.add_(torch.randn_like(buffer), alpha=0.3)
    model.save_pretrained(f"{sys.argv[1]}/{family}")
    answers[family] = []
    for length in (1, 5, 40):
        prompt = torch.randint(0, 97, (1, length))
        with torch.inference_mode():
            out = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False,
                                 max_new_tokens=TOKENS, eos_token_id=None, pad_token_id=0)
        answers[family].append([prompt[0].tolist(), out[0, length:].tolist()])
print(json.dumps(answers))
