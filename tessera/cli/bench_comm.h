#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/comm/dtype.h"
#include "tessera/comm/group.h"

namespace tessera::cli {

// Returns the operations that can be measured, in the order of the table. "send_recv": every rank
// sends to the next rank and receives from the previous one.
std::vector<std::string> bench_operations();

struct BenchOptions {
  std::vector<std::string> ops = {"all_reduce", "reduce_scatter", "all_gather"};
  std::vector<std::int64_t> sizes = {4 << 10, 1 << 20, 25 << 20, 100 << 20};  // bytes
  std::vector<std::string> memories = {"symmetric", "ordinary"};
  comm::DType dtype = comm::DType::f32;
  double seconds = 0.5;  // duration of each measurement
  int repeat = 0;        // repetitions; 0: as many as fit into `seconds`
};

// Throws UsageError if a size is not a multiple of the element size.
void check_sizes(const BenchOptions& options);

struct BenchResult {
  std::string op, backend, memory, dtype;
  int ranks = 1;
  std::int64_t bytes = 0;  // whole buffer: the input of all_reduce, the output of all_gather
  double ms = 0;           // median over the repetitions of the time on the slowest rank
  double min_ms = 0;       // minimum over the repetitions
  double gb_per_s() const { return ms > 0 ? static_cast<double>(bytes) / ms * 1e-6 : 0; }
};

// Called before each measurement.
using BenchProgress = std::function<void(int done, int total, const std::string& what)>;

// Measures collectives. Collective over the group; every rank gets the same figures.
//
// [Note: repetitions] The result of a first call on known values is checked, so that the time of a
// wrong result is never reported. All ranks then start each repetition together, after a barrier. A
// repetition is a sequence of calls that takes about 200 µs, with a wait after each, so that the
// skew of the barrier does not distort short calls. all_reduce, broadcast and reduce work in place;
// the others use two buffers. With a device backend the buffers are on the device.
std::vector<BenchResult> bench_comm(const comm::Group& group, const BenchOptions& options,
                                    const BenchProgress& progress = {});

std::string bench_json(const std::vector<BenchResult>& results);
std::string bench_table(const std::vector<BenchResult>& results);

}  // namespace tessera::cli
