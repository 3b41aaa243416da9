#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/core/enum_names.h"

namespace tessera {

// Bytes that training stores per parameter. The engine and the planner use the same struct, so that
// they cannot disagree.
struct StateLayout {
  std::string name;
  int param = 0;       // copy read by forward and backward
  int grad = 0;        // gradient accumulated by backward
  int master = 0;      // fp32 copy updated by the optimizer if `param` is narrower
  double moments = 0;  // state of the optimizer: two numbers for AdamW, fp32 or as OptimizerState
  // `moments` of hidden matrices if the optimizer treats them differently (Muon); -1: it does not.
  double matrix_moments = -1;

  double optimizer() const { return master + moments; }
  double total() const { return param + grad + optimizer(); }
  bool fp16() const { return name == "fp16"; }  // the 16-bit type is fp16, not bf16

  friend bool operator==(const StateLayout&, const StateLayout&) = default;
};

// Returns the named layouts, in bytes per parameter: "bf16" 2+2+12 = 16, "bf16-fp32grad" 2+4+12 =
// 18, "bf16-nomaster" 2+2+8 = 12 (trains well only with stochastic rounding), "fp16" 2+2+12 = 16
// (for GPUs without bf16; uses loss scaling), "fp32" 4+4+8 = 16. "fp32" is the last.
const std::vector<StateLayout>& state_layouts();

// Returns a layout by name or from "p,g,o" in bytes (such as "2,6,12"), which the planner accepts
// but the engine cannot run. Throws UsageError for other texts.
StateLayout parse_state_layout(std::string_view text);

// Number format of AdamW's moments. bf16 rounds stochastically. int8 stores 8 bits per element and
// an exponent for every 16 elements, and rounds stochastically: [Note: 8-bit moments] in
// kernels/moments.h.
enum class OptimizerState : std::uint8_t { fp32, bf16, int8 };
// Names on the command line.
template <>
struct EnumNames<OptimizerState> {
  static constexpr std::array<std::string_view, 3> kNames{"fp32", "bf16", "int8"};
};
// Returns the bytes of one moment per element: 4, 2, or 17/16. Exact for multiples of kShardAlign
// elements, to which every shard is padded.
constexpr double bytes_per_moment(OptimizerState state) {
  switch (state) {
    case OptimizerState::fp32: return 4;
    case OptimizerState::bf16: return 2;
    case OptimizerState::int8: return 17.0 / 16;
  }
  return 0;
}

// State that a ZeRO stage shards over the data-parallel ranks. This defines the stage.
struct Sharding {
  bool optimizer = false;
  bool grads = false;
  bool params = false;
};
// Stage 0 shards nothing, 1 optimizer state, 2 also gradients, 3 also parameters. Throws UsageError
// for others.
Sharding sharding_of_stage(int stage);

// Time of the gradient reduction: after each micro-batch, or once after the last. With `last` every
// rank stores the whole gradient until then, at any stage.
enum class ReducePolicy : std::uint8_t { each, last };
// Names on the command line.
template <>
struct EnumNames<ReducePolicy> {
  static constexpr std::array<std::string_view, 2> kNames{"each", "last"};
};
ReducePolicy default_reduce_policy(int stage);  // last for stages 0 and 1, each for 2 and 3

// Memory that holds a kind of training state: that of the device that computes, or a file.
enum class StatePlacement : std::uint8_t { device, disk };

// Placement of the training state by kind. Results have the same bits with any placement.
struct Offload {
  StatePlacement optimizer = StatePlacement::device;  // master copies and moments
  std::string dir;                                    // folder of the files

  bool any() const { return optimizer != StatePlacement::device; }
  friend bool operator==(const Offload&, const Offload&) = default;
};

// Returns the placement for --offload and --offload-dir: "optimizer" puts it into files in `dir`,
// "none" leaves all state on the device. Throws UsageError for other kinds, and for a missing
// `dir`.
Offload parse_offload(std::string_view kinds, const std::string& dir);

// [Note: records] State in a file is read, updated and written in records: up to kRecordElements
// elements of one parameter, with their master copy and moments. kRecordBuffers records are in
// memory at a time: those that are read ahead, updated, and written behind.
inline constexpr std::int64_t kRecordElements = std::int64_t{1} << 16;
inline constexpr int kRecordBuffers = 4;

}  // namespace tessera
