#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/comm/dtype.h"
#include "tessera/comm/group.h"

namespace tessera::cli {

// The operations that can be measured, in the order of tables. "send_recv": every rank sends to the
// next one and receives from the one before it.
std::vector<std::string> bench_operations();

struct BenchOptions {
  std::vector<std::string> ops = {"all_reduce", "reduce_scatter", "all_gather"};
  std::vector<std::int64_t> sizes = {4 << 10, 1 << 20, 25 << 20, 100 << 20};  // bytes
  std::vector<std::string> memories = {"symmetric", "ordinary"};
  comm::DType dtype = comm::DType::f32;
  double seconds = 0.5;  // of repetitions, for each measurement
  int repeat = 0;        // repetitions; 0: as many as fit into `seconds`
};

// Throws UsageError for a size that is no whole number of elements.
void check_sizes(const BenchOptions& options);

struct BenchResult {
  std::string op, backend, memory, dtype;
  int ranks = 1;
  std::int64_t bytes = 0;  // of the whole buffer: what all_reduce reduces, all_gather ends with
  double ms = 0;           // median over the repetitions of the time on the slowest rank
  double min_ms = 0;       // and the least
  double gb_per_s() const { return ms > 0 ? static_cast<double>(bytes) / ms * 1e-6 : 0; }
};

// Called before each measurement.
using BenchProgress = std::function<void(int done, int total, const std::string& what)>;

// Collective over the group; every rank gets the same figures.
//
// [Note: repetitions] A first call on known values is checked, so that no time of a wrong result
// is ever reported. All ranks then start each repetition together, after a barrier. A repetition
// holds as many calls as take a fifth of a millisecond, each waited for, so that short calls are
// not lost in the barrier's skew. all_reduce, broadcast and reduce are in place; the others go from
// one buffer to another. With a device backend the buffers are on the device.
std::vector<BenchResult> bench_comm(const comm::Group& group, const BenchOptions& options,
                                    const BenchProgress& progress = {});

std::string bench_json(const std::vector<BenchResult>& results);
std::string bench_table(const std::vector<BenchResult>& results);

}  // namespace tessera::cli
