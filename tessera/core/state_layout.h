#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// Bytes that training keeps for one parameter. The engine allocates by it and the planner counts by
// it: one struct, so that they cannot disagree.
struct StateLayout {
  std::string name;
  int param = 0;    // the copy that forward and backward read
  int grad = 0;     // what backward accumulates into
  int master = 0;   // an fp32 copy that the optimizer updates, where `param` is narrower
  int moments = 0;  // the optimizer's own state: two fp32 numbers for AdamW
  // The same of a hidden matrix, where the optimizer treats these as a whole (Muon); -1: it does
  // not.
  int matrix_moments = -1;

  int optimizer() const { return master + moments; }
  int total() const { return param + grad + optimizer(); }
  bool fp16() const { return name == "fp16"; }  // 16 bits are those, not bf16

  friend bool operator==(const StateLayout&, const StateLayout&) = default;
};

// "bf16" 2+2+12 = 16, "bf16-fp32grad" 2+4+12 = 18, "bf16-nomaster" 2+2+8 = 12 (trains well only
// with stochastic rounding), "fp16" 2+2+12 = 16 (for GPUs without bf16; its loss is scaled up),
// "fp32" 4+4+8 = 16, which is the last.
const std::vector<StateLayout>& state_layouts();

// One of those by name, or "p,g,o" in bytes for what-if questions (such as "2,6,12"): the engine
// cannot run these, the planner can count them. Throws UsageError.
StateLayout parse_state_layout(std::string_view text);

// What each ZeRO stage cuts into `dp` parts. Everything else about a stage follows from this.
struct Sharding {
  bool optimizer = false;
  bool grads = false;
  bool params = false;
};
// Stage 0 nothing, 1 optimizer, 2 + gradients, 3 + parameters. Throws UsageError for others.
Sharding sharding_of_stage(int stage);

// When gradients are reduced: after every micro-batch, or once after the last. `last` needs the
// whole gradient on every rank until then, at any stage.
enum class ReducePolicy : std::uint8_t { each, last };
ReducePolicy default_reduce_policy(int stage);  // last for stages 0 and 1, each for 2 and 3

}  // namespace tessera
