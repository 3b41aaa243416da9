#include "tessera/core/state_layout.h"

#include <charconv>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera {

const std::vector<StateLayout>& state_layouts() {
  static const std::vector<StateLayout> all = {
      {"bf16", 2, 2, 4, 8}, {"bf16-fp32grad", 2, 4, 4, 8}, {"bf16-nomaster", 2, 2, 0, 8},
      {"fp16", 2, 2, 4, 8}, {"fp32", 4, 4, 0, 8},
  };
  return all;
}

StateLayout parse_state_layout(std::string_view text) {
  std::vector<std::string> names;
  for (const StateLayout& layout : state_layouts()) {
    if (layout.name == text) return layout;
    names.push_back(layout.name);
  }
  int bytes[3] = {};
  const char* at = text.data();
  const char* end = at + text.size();
  for (int i = 0; i < 3; ++i) {
    const auto [next, error] = std::from_chars(at, end, bytes[i]);
    const bool separated = i == 2 ? next == end : next != end && *next == ',';
    if (error != std::errc() || !separated || bytes[i] < 0 || bytes[i] > 1024) {
      throw UsageError(
          str("state layout ", quote(text), " is unknown", did_you_mean(text, names),
              "; must be one of ", join(names, ", "),
              ", or bytes per parameter, gradient and optimizer state such as 2,6,12"));
    }
    at = next + 1;
  }
  return {std::string(text), bytes[0], bytes[1], 0, static_cast<double>(bytes[2])};
}

Sharding sharding_of_stage(int stage) {
  if (stage < 0 || stage > 3) {
    throw UsageError(str("ZeRO stage ", stage,
                         " does not exist; must be 0 (shards nothing), 1 (optimizer state), "
                         "2 (also gradients) or 3 (also parameters)"));
  }
  return {stage >= 1, stage >= 2, stage >= 3};
}

ReducePolicy default_reduce_policy(int stage) {
  return sharding_of_stage(stage).grads ? ReducePolicy::each : ReducePolicy::last;
}

Offload parse_offload(std::string_view kinds, const std::string& dir) {
  if (kinds == "none") {
    if (dir.empty()) return {};
    throw UsageError(Flag("offload-dir"), str("got ", quote(dir),
                                              " without --offload, the state to store there. Add "
                                              "--offload optimizer."));
  }
  if (kinds != "optimizer") {
    throw UsageError(Flag("offload"),
                     str("got ", quote(kinds),
                         ", must be optimizer. Gradients, parameters and activations cannot be "
                         "offloaded yet; --zero 3 and --recompute reduce them."));
  }
  if (dir.empty()) {
    throw UsageError(
        Flag("offload"),
        "got optimizer without --offload-dir. Give it a folder on a fast local disk, for the "
        "files.");
  }
  Offload offload;
  offload.optimizer = StatePlacement::disk;
  offload.dir = dir;
  return offload;
}

}  // namespace tessera
