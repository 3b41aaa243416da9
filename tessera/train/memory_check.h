#pragma once

#include <cstdint>
#include <string>

#include "tessera/train/config.h"

namespace tessera::train {

// [Note: memory before a run] What ranks need at least, by the plan: state and activations. Buffers
// and temporaries are left out: they are estimates, and a run that might just do should not be
// refused. Building the model needs no more: it is filled shard by shard.

// Of so many of the ranks together, on the CPU; none with --device cuda. What they share is counted
// once.
std::int64_t need_on_host(const TrainConfig& config, const Resolved& resolved, int ranks);
// Of the rank of the pipeline that needs most, on its device.
std::int64_t need_on_device(const TrainConfig& config, const Resolved& resolved);

// Throws UsageError with the numbers, what would fit and --force, if the need is more than what is
// free; `where` says of what: "this host (MemAvailable)". Nothing with --force.
void check_host_memory(const TrainConfig& config, const Resolved& resolved, int ranks,
                       std::int64_t free, const std::string& where);
void check_device_memory(const TrainConfig& config, const Resolved& resolved, std::int64_t free,
                         const std::string& where);

// Least bytes that one rank needs to run a model forward without gradients: its share of the
// parameters, `cache` bytes, and the activations of the widest layer for `tokens` at once.
struct InferenceNeed {
  int tp = 1, pp = 1;
  std::int64_t element_bytes = 4;
  std::int64_t tokens = 0;
  std::int64_t cache = 0;
};
std::int64_t need_of_inference(const ModelShape& shape, const InferenceNeed& how);
// Throws UsageError that names --force if `ranks` such ranks need more than `free` bytes of
// `where`. `remedy` says what to change: "a smaller --batch". Callers skip it with --force.
void check_inference_memory(std::int64_t need, int ranks, std::int64_t free,
                            const std::string& where, const std::string& remedy);

}  // namespace tessera::train
