#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/save.h"

namespace tessera::checkpoint {

// Elements of a parameter that one rank saves.
struct ParamShard {
  const ParamSpec* spec = nullptr;
  std::vector<Run> runs;
};
// Returns the shards of a rank, cut like the engine cuts them: a pipeline stage has consecutive
// parameters, a tensor-parallel rank its shard of each (the first rank has elements that several
// ranks hold), and a data-parallel rank its shard of that. [Note: rank order] numbers the ranks.
std::vector<ParamShard> shards_of(const std::vector<ParamSpec>& params, const Axes& mesh, int rank);

// Throws UsageError if reshard() would fail before writing: the mesh cannot cut the parameters, or
// the folder already has this step.
void check_reshard(const Checkpoint& from, const std::string& dir, const Axes& mesh,
                   FileSystem& files);

// Writes the checkpoint for another mesh to dir/step-…, a few megabytes at a time.
Saved reshard(Checkpoint& from, const std::string& dir, const Axes& mesh,
              const std::shared_ptr<FileSystem>& files = local_files(),
              const BytesDone& progress = {});

struct ExportOptions {
  std::string state;           // empty: "param" and buffers
  std::optional<DType> dtype;  // empty: the stored type
  std::shared_ptr<FileSystem> files = local_files();
  BytesDone report;
};
// Writes one safetensors file with all whole parameters, rounded to nearest if `dtype` is narrower.
// Replaces an existing file atomically when everything is written. Returns the size in bytes.
std::int64_t export_model(Checkpoint& from, const std::string& path,
                          const ExportOptions& options = {});

// Difference of one state of two checkpoints.
struct StateDifference {
  std::string param, state;
  std::string reason;         // "only in A", "F32 in A, BF16 in B", …; empty: only values differ
  std::int64_t elements = 0;  // number of elements that differ
  std::int64_t first = -1;    // index of the first one
  double largest = 0;         // largest absolute difference of values
};
// Result of diff().
struct Difference {
  std::vector<std::string> about;  // one line each: "step: 10 in A, 20 in B"
  std::vector<StateDifference> states;
  std::int64_t equal = 0;  // number of states with the same bits
};
Difference diff(Checkpoint& a, Checkpoint& b, const BytesDone& progress = {});

}  // namespace tessera::checkpoint
