#pragma once

#include <cstdint>
#include <string>

#include "tessera/train/config.h"

namespace tessera::train {

// [Note: memory before a run] The least memory that ranks need, by the plan: state and activations.
// Buffers and temporaries are not counted: they are estimates, and a run that may just fit should
// not be rejected. Building the model needs no more: it is filled shard by shard.

// Returns the bytes that `ranks` of the ranks need together in host memory; 0 with --device cuda.
// Shared memory is counted once.
std::int64_t need_on_host(const RunConfig& config, const Resolved& resolved, int ranks);
// Returns the bytes of device memory of the pipeline rank that needs most.
std::int64_t need_on_device(const RunConfig& config, const Resolved& resolved);

// Throw UsageError with the numbers, suggestions and --force if the need exceeds `free` bytes.
// `where` names the memory: "this host (MemAvailable)". Do nothing with --force.
void check_host_memory(const RunConfig& config, const Resolved& resolved, int ranks,
                       std::int64_t free, const std::string& where);
void check_device_memory(const RunConfig& config, const Resolved& resolved, std::int64_t free,
                         const std::string& where);

// Throws UsageError if the folder of --offload-dir is missing, or has less space than `ranks` of
// the ranks need for their state.
void check_offload_folder(const RunConfig& config, const Resolved& resolved, int ranks);

// Least bytes that one rank needs to run a model forward without gradients: its share of the
// parameters, `cache` bytes, and the activations of the widest layer for `tokens` at once.
struct InferenceNeed {
  Axes axes = {};
  std::int64_t element_bytes = 4;
  std::int64_t tokens = 0;
  std::int64_t cache = 0;
};
std::int64_t need_of_inference(const ModelShape& shape, const InferenceNeed& how);
// Throws UsageError that names --force if `ranks` such ranks need more than `free` bytes of
// `where`. `remedy` is the suggestion: "a smaller --batch". Callers skip it with --force.
void check_inference_memory(std::int64_t need, int ranks, std::int64_t free,
                            const std::string& where, const std::string& remedy);

}  // namespace tessera::train
