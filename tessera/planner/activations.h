#pragma once

#include <cstdint>
#include <string_view>

#include "tessera/core/model_shape.h"
#include "tessera/core/recompute.h"

namespace tessera::planner {

using tessera::name;
using tessera::parse_recompute;
using tessera::Recompute;

// What is asked of gpt_activation_bytes().
struct GptActivations {
  ModelShape model;  // a GPT or a Llama
  std::int64_t batch = 1;
  std::int64_t seq = 1;
  int element = 4;  // bytes of a value between the layers
  Recompute recompute = Recompute::none;
  int tp = 1;
  bool sequence_parallel = false;
  bool light = false;  // [Note: light activations]
  bool gpu = false;    // attention keeps its result there
  // Of the part of the model that a pipeline stage has.
  std::int64_t layers = -1;  // -1: all
  bool embedding = true;
  bool head = true;
};
// Bytes that Tessera's models keep from one micro-batch's forward for its backward, as the ledger
// of one rank counts them.
std::int64_t gpt_activation_bytes(const GptActivations& question);

}  // namespace tessera::planner
