#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/core/model_shape.h"
#include "tessera/core/param_spec.h"

namespace tessera {

// [Note: adapters] Low-rank adaptation (Hu et al., 2021). The parameters of the model are frozen.
// Some linears of its blocks get two thin matrices that are trained:
//   y = W x + b + alpha / rank · B (A x)      A [rank, in], B [out, rank]
// B starts at zero, so training starts from the unchanged model. A is initialized as in PEFT. In
// training steps dropout may be applied to the input of A, independently for each adapter.

// An adapter of a block, with its names in this library and in PEFT.
struct Adapter {
  std::string target;  // name in --lora-targets: "q"
  std::string linear;  // linear of the block: qkv, proj, fc or proj2
  std::string module;  // module inside the linear: "lora_q", or "lora" if it covers all outputs
  std::string peft;    // name of the linear in a Hugging Face model: "self_attn.q_proj"
  int part = -1;       // index among the concatenated outputs of the linear; -1: all outputs
  std::int64_t in = 0, out = 0;
  // Tensor-parallel cut. If the linear is cut along its inputs, A is cut by columns. Otherwise B is
  // cut by rows like the outputs of the linear, in segments as in ParamSpec.
  bool cut_inputs = false;
  std::vector<ParamSpec::Segment> segments = {};
};

// Returns all adapters that a block of this model can have. GPT-2 and Phi-3 have one matrix
// for queries, keys and values; other models have three. With experts, only attention has adapters.
std::vector<Adapter> possible_adapters(const ModelShape& shape);
// Returns the adapters selected by shape.lora, in the order of the block. Targets are separated by
// commas: q, k, v, o, gate, up, down for Llama; qkv, o, fc, down for GPT; PEFT's names (q_proj,
// c_attn, …); "auto" (q and v, or qkv, PEFT's default) and "all". Throws UsageError for others.
std::vector<Adapter> adapters_of(const ModelShape& shape);
// Returns the selected targets in canonical form: "q,v".
std::string targets_of(const ModelShape& shape);
// Throws UsageError if shape.lora is invalid.
void check_lora(const ModelShape& shape);

// The two parameters of an adapter, with their full names and their tensor-parallel cuts.
struct AdapterSpecs {
  ParamSpec a, b;
};
// `rank`: rank of the two matrices. `block`: name of the block in the model.
AdapterSpecs specs_of(const Adapter& adapter, std::int64_t rank, const std::string& block);

// Returns true for parameters of adapters, such as "blocks.3.qkv.lora_q.A".
bool is_adapter_param(std::string_view name);

}  // namespace tessera
