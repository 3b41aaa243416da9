#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/comm/group.h"
#include "tessera/planner/calibration.h"

// Measurements of `tessera calibrate`, on the CPU or on a GPU.
namespace tessera::cli {

struct Bench {
  const comm::Group& world;  // its ranks measure at the same time, as in training
  c10::Device device;
  double budget = 1;  // seconds per measurement
};

// Seconds of one call: of the device, and of the host to enqueue it. Equal on the CPU.
struct CallTime {
  double seconds = 0, host = 0;
};
// Returns the medians over repeated calls, on ranks that start together.
CallTime time_of(const Bench& bench, const std::function<void()>& call);

// FLOP/s of a product [m, k] · [n, k]ᵀ.
double product_rate(const Bench& bench, at::ScalarType dtype, std::int64_t m, std::int64_t n,
                    std::int64_t k);
// Bytes/s of a sum of two tensors that are larger than the caches.
double memory_rate(const Bench& bench);
// Seconds that the host needs to launch a tiny kernel.
double launch_time(const Bench& bench);
// FLOP/s of causal attention in bf16, forward and backward, counting only the lower triangle.
double attention_rate(const Bench& bench);
// Seconds of an AdamW update of `params` parameters with gradient clipping.
double update_time(const Bench& bench, const std::string& layout, std::int64_t params);

// Times forward and backward of small models that differ in what dominates their time. On a GPU,
// omits models for which the host cannot keep the device busy: training uses CUDA graphs for them.
std::vector<planner::PassSample> measure_passes(const Bench& bench, const std::string& layout);

// Returns the latency and bandwidth of a ring, from a short and a long all-reduce.
planner::Link measure_link(const Bench& bench);

}  // namespace tessera::cli
