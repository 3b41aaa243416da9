#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/core/param_spec.h"

namespace tessera {

struct ModelShape;

// [Note: adapters] Fine-tuning with low rank (Hu et al., 2021): the model's own parameters are
// frozen, and beside some of the linears in its blocks stand two thin matrices that are trained:
//   y = W x + b + alpha / rank · B (A x)      A [rank, in], B [out, rank]
// B starts with zeros, so that training starts with the model as it was; A as PEFT's does. In
// training steps a share of x may be dropped on its way to A, other values for each adapter.
struct Lora {
  std::int64_t rank = 0;  // 0: the model has no adapters, and is trained itself
  double alpha = 16;
  std::string targets = "auto";  // what has one: parse_lora_targets()
  double dropout = 0;            // share of x that A does not see, in training steps alone

  bool any() const { return rank > 0; }
  double scale() const { return alpha / static_cast<double>(rank); }
  bool operator==(const Lora&) const = default;
};

// An adapter of a block, in the words of this library and of PEFT.
struct Adapter {
  std::string target;  // what --lora-targets calls it: "q"
  std::string linear;  // of the block: qkv, proj, fc or proj2
  std::string module;  // its own, inside the linear: "lora_q", or "lora" where it has all outputs
  std::string peft;    // the linear in a Hugging Face model: "self_attn.q_proj"
  int part = -1;       // which of the linear's outputs side by side; -1: all
  std::int64_t in = 0, out = 0;
  // How tensor-parallel ranks cut it: B by its rows as the linear's outputs, in segments as in
  // ParamSpec; or, where the linear is cut along its inputs, A by its columns.
  bool cut_inputs = false;
  std::vector<ParamSpec::Segment> segments = {};
};

// All that a block of this model can have. GPT's attention has one matrix for queries, keys and
// values, as in GPT-2, others three.
std::vector<Adapter> possible_adapters(const ModelShape& shape);
// Those that shape.lora asks for, in the order of the block. Targets are words with commas between:
// q, k, v, o, gate, up, down of a Llama; qkv, o, fc, down of a GPT; the names that PEFT gives them
// (q_proj, c_attn, …); "auto" (q and v, or qkv, as PEFT's default) and "all". Throws UsageError.
std::vector<Adapter> adapters_of(const ModelShape& shape);
// Those in one line, "q,v", however they were asked for.
std::string targets_of(const ModelShape& shape);
// Throws UsageError for what is no adapter at all.
void check_lora(const ModelShape& shape);

// The two parameters of an adapter, by their names in the model, as tp ranks share them.
struct AdapterSpecs {
  ParamSpec a, b;
};
// `rank`: of the low-rank matrices; `block`: the block's name in the model.
AdapterSpecs specs_of(const Adapter& adapter, std::int64_t rank, const std::string& block);

// "blocks.3.qkv.lora_q.A" is one of an adapter.
bool is_adapter_param(std::string_view name);

}  // namespace tessera
