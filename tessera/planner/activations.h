#pragma once

#include <cstdint>
#include <string_view>

#include "tessera/planner/model_shape.h"

namespace tessera::planner {

// What the blocks of a model recompute in backward; the same words as nn::Checkpointing.
enum class Recompute : std::uint8_t { none, selective, full };
Recompute parse_recompute(std::string_view text);  // throws UsageError
std::string_view name(Recompute mode);

struct GptActivations {
  ModelShape model;
  std::int64_t batch = 1;
  std::int64_t seq = 1;
  int element = 4;  // bytes of a value between the layers
  Recompute recompute = Recompute::none;
};
// Bytes that Tessera's GPT keeps from forward for backward, as the ledger counts them.
std::int64_t gpt_activation_bytes(const GptActivations& question);

}  // namespace tessera::planner
