#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/comm/group.h"
#include "tessera/planner/calibration.h"

// What `tessera calibrate` measures, on the CPU or on a GPU.
namespace tessera::cli {

struct Bench {
  const comm::Group& world;  // whose ranks measure at the same time, as they would train
  c10::Device device;
  double budget = 1;  // seconds of each measurement
};

// Of one call: on a GPU what the device takes for it, and what the host takes to ask for it.
struct CallTime {
  double seconds = 0, host = 0;
};
// The median, on ranks that start together.
CallTime time_of(const Bench& bench, const std::function<void()>& call);

// FLOP/s of a product [m, k] · [n, k]ᵀ.
double product_rate(const Bench& bench, at::ScalarType dtype, std::int64_t m, std::int64_t n,
                    std::int64_t k);
// Bytes/s of a sum of two tensors that are large for the caches.
double memory_rate(const Bench& bench);
// Seconds of the host for a kernel that does next to nothing.
double launch_time(const Bench& bench);
// FLOP/s of causal attention in bf16, forward and backward, counted below the diagonal.
double attention_rate(const Bench& bench);
// Seconds of an update of so many parameters of a layout, by AdamW with clipping.
double update_time(const Bench& bench, const std::string& layout, std::int64_t params);

// Small models forward and backward that differ in what they spend their time on. On a GPU those
// that the host cannot keep busy are left out: runs have graphs for that.
std::vector<planner::PassSample> measure_passes(const Bench& bench, const std::string& layout);

// A ring's latency and bandwidth from a short and a long all-reduce.
planner::Link measure_link(const Bench& bench);

}  // namespace tessera::cli
