#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/checkpoint/dtype.h"
#include "tessera/core/param_spec.h"

namespace tessera::checkpoint {

// [Note: shards] Every parameter has states: "param" (the fp32 master copy where there is one),
// "moment1", "moment2"…, each with one number per element of the whole parameter; a buffer has one,
// "buffer". A rank saves and loads shards: some elements of one state of one parameter. Runs say
// which, in elements of the whole parameter, and where they lie behind the pointer (Run::local):
// nothing else about the mesh matters, so what any mesh saved any other loads.
struct Shard {
  std::string param;
  std::string state;
  DType dtype = DType::f32;
  std::vector<Run> runs;
  const std::byte* data = nullptr;  // in host memory, unchanged until the save is done
  // Instead of `data`, for what lies elsewhere: copies `count` elements, from Run::local `begin`
  // on.
  std::function<void(std::int64_t begin, std::int64_t count, std::byte* into)> fetch = {};

  void copy(std::int64_t begin, std::int64_t count, std::byte* into) const;
};
struct WantedShard {
  std::string param;
  std::string state;
  DType dtype = DType::f32;
  std::vector<Run> runs;
  std::byte* into = nullptr;
  // Instead of `into`, for what lies elsewhere: takes `count` elements, for Run::local `begin` on.
  std::function<void(std::int64_t begin, std::int64_t count, const std::byte* from)> store = {};
};

// Told of memory that saving and loading take for themselves (buffers, the copy of a save in the
// background); what it returns lives as long as that memory.
using Charge = std::function<std::shared_ptr<void>(std::int64_t bytes)>;
// Told how many bytes are done so far, by what takes long.
using BytesDone = std::function<void(std::int64_t)>;

// Of the elements that `runs` have, those at local [begin, begin + count), counted from begin: a
// data-parallel rank's shard of what a tensor-parallel rank has.
std::vector<Run> cut(const std::vector<Run>& runs, std::int64_t begin, std::int64_t count);
std::int64_t count_of(const std::vector<Run>& runs);

// The strided form that runs have on disk, and only there: `times` stretches of `count` elements,
// `stride` apart. A matrix that is cut by columns is one stripe and not a run per row.
struct Stripe {
  std::int64_t whole = 0;
  std::int64_t count = 0;
  std::int64_t times = 1;
  std::int64_t stride = 0;

  friend bool operator==(const Stripe&, const Stripe&) = default;
};
std::vector<Stripe> to_stripes(const std::vector<Run>& runs);
// Back, with Run::local counting from 0 without gaps.
std::vector<Run> to_runs(const std::vector<Stripe>& stripes);

// Which part of [0, elements) no run covers, as whole offsets.
std::vector<Run> uncovered(std::vector<Run> runs, std::int64_t elements);

}  // namespace tessera::checkpoint
