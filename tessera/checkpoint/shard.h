#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/checkpoint/convert_dtype.h"
#include "tessera/core/param_spec.h"

namespace tessera::checkpoint {

// [Note: shards] Every parameter has states: "param" (the fp32 master copy if there is one),
// "moment1", "moment2"…, each with one number per element of the whole parameter. A buffer has one
// state, "buffer". A rank saves and loads shards: some elements of one state of one parameter. Runs
// give their index in the whole parameter (Run::whole) and their offset from the pointer
// (Run::local). Nothing else depends on the mesh, so any mesh can load what any other saved.
struct Shard {
  std::string param;
  std::string state;
  DType dtype = DType::f32;
  std::vector<Run> runs;
  const std::byte* data = nullptr;  // host memory; must not change until the save is done
  // Used instead of `data` for other memory: copies `count` elements from Run::local `begin` on.
  std::function<void(std::int64_t begin, std::int64_t count, std::byte* into)> fetch = {};

  void copy(std::int64_t begin, std::int64_t count, std::byte* into) const;
};
// A shard to load.
struct WantedShard {
  std::string param;
  std::string state;
  DType dtype = DType::f32;
  std::vector<Run> runs;
  std::byte* into = nullptr;
  // Used instead of `into` for other memory: receives `count` elements for Run::local `begin` on.
  std::function<void(std::int64_t begin, std::int64_t count, const std::byte* from)> store = {};
};

// Callback for memory that saving and loading allocate (buffers, the copy of a background save).
// Its result is destroyed when the memory is freed.
using Charge = std::function<std::shared_ptr<void>(std::int64_t bytes)>;
// Progress callback of long operations: total bytes done so far.
using BytesDone = std::function<void(std::int64_t)>;

// Returns the elements of `runs` at local indices [begin, begin + count), with local indices
// relative to `begin`: the shard of a data-parallel rank of the tensor of a tensor-parallel rank.
std::vector<Run> cut(const std::vector<Run>& runs, std::int64_t begin, std::int64_t count);
std::int64_t count_of(const std::vector<Run>& runs);

// Strided form of runs, used only on disk: `times` runs of `count` elements, `stride` apart. A
// matrix that is cut by columns is one strided run instead of one run per row.
struct StridedRun {
  std::int64_t whole = 0;
  std::int64_t count = 0;
  std::int64_t times = 1;
  std::int64_t stride = 0;

  friend bool operator==(const StridedRun&, const StridedRun&) = default;
};
std::vector<StridedRun> to_strided_runs(const std::vector<Run>& runs);
// Inverse of to_strided_runs(). Run::local counts from 0 without gaps.
std::vector<Run> to_runs(const std::vector<StridedRun>& strided_runs);

// Returns the parts of [0, elements) that no run covers, as Run::whole.
std::vector<Run> uncovered(std::vector<Run> runs, std::int64_t elements);

}  // namespace tessera::checkpoint
