#pragma once

#include <cstdint>
#include <string>

#include "tessera/train/config.h"

namespace tessera::train {

// [Note: memory before a run] What ranks need at least, by the plan. The larger of two moments:
// building, when every rank has its part of the model in fp32 before anything is sharded; and
// training, with state and activations. Buffers and temporaries are left out: they are estimates,
// and a run that might just do should not be refused.
struct LeastNeed {
  std::int64_t building = 0, training = 0;
  std::int64_t most() const { return building > training ? building : training; }
};
// Of so many of the ranks together, on the CPU; with --device cuda they build on the host, and
// train elsewhere. What they share is counted once.
LeastNeed need_on_host(const TrainConfig& config, const Resolved& resolved, int ranks);
// Of the rank of the pipeline that needs most, on its device.
LeastNeed need_on_device(const TrainConfig& config, const Resolved& resolved);

// Throws UsageError with the numbers, what would fit and --force, if the need is more than what is
// free; `where` says of what: "this host (MemAvailable)". Nothing with --force.
void check_host_memory(const TrainConfig& config, const Resolved& resolved, int ranks,
                       std::int64_t free, const std::string& where);
void check_device_memory(const TrainConfig& config, const Resolved& resolved, std::int64_t free,
                         const std::string& where);

}  // namespace tessera::train
