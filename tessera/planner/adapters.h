#pragma once

#include <cstdint>
#include <vector>

#include "tessera/planner/parameters.h"

// What adapters ([Note: adapters] in core/lora.h) change for a rank: everything else is frozen, has
// no gradient and no optimizer state, and backward stops where no adapter is behind.
namespace tessera::planner {

// Parameters of the adapters in a part of the model, in the order of its blocks.
std::vector<ParamSpec> adapter_params(const ModelShape& shape, const ModelPart& part);

// An adapter as a tensor-parallel rank has it: A of rank × in, B of out × rank.
struct AdapterOnRank {
  enum Linear : std::uint8_t { qkv, proj, fc, proj2 } linear;
  double in, out;
  double whole;   // of `in` and `out` the one that all ranks have
  double shared;  // rows of B that several ranks have, but not all
};
std::vector<AdapterOnRank> adapters_on_rank(const ModelShape& shape, int tp);
// Parameters of the adapters beside one layer, on a tensor-parallel rank.
double layer_adapters_on_rank(const ModelShape& shape, int tp);

// Through which products of a block a gradient flows. `input`: one of the block's input is wanted;
// in the first block behind a frozen embedding it is not.
struct BlockFlow {
  BlockFlow(const ModelShape& shape, bool input);
  bool input;                 // into qkv's input
  bool attention;             // into attention's result
  bool middle;                // into the sum behind it
  bool wide;                  // into what stands between the MLP's matrices
  bool qkv, proj, fc, proj2;  // which linears have adapters
};

}  // namespace tessera::planner
