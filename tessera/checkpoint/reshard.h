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

// Which elements rank `rank` of a mesh keeps of each parameter, by name, as the engine cuts them: a
// pipeline stage has the next parameters in order, a tensor-parallel rank its shard of those (of
// copies, the first rank has them), a data-parallel rank its shard of that one. Ranks count along
// tp first, then dp, then pp.
struct ParamShard {
  const ParamSpec* spec = nullptr;
  std::vector<Run> runs;
};
std::vector<ParamShard> shards_of(const std::vector<ParamSpec>& params, const Axes& mesh, int rank);

// Throws UsageError for what reshard() would refuse before it writes: a mesh that cannot cut the
// parameters, a folder that has this step.
void check_reshard(const Checkpoint& from, const std::string& dir, const Axes& mesh,
                   FileSystem& files);

// Writes the checkpoint anew for another mesh, as dir/step-…, a few megabytes at a time.
Saved reshard(Checkpoint& from, const std::string& dir, const Axes& mesh,
              const std::shared_ptr<FileSystem>& files = local_files(), const BytesDone& told = {});

struct ExportOptions {
  std::string state;           // empty: "param", and buffers too
  std::optional<DType> dtype;  // empty: as stored
  std::shared_ptr<FileSystem> files = local_files();
  BytesDone told;
};
// Writes one safetensors file with all parameters under their names: whole, and rounded to nearest
// where the type asked for is narrower. Replaces the file at once, when all is written. Returns
// its bytes.
std::int64_t export_model(Checkpoint& from, const std::string& path,
                          const ExportOptions& options = {});

// How two checkpoints differ.
struct StateDifference {
  std::string param, state;
  std::string reason;  // "only in A", "F32 in A, BF16 in B", …; empty: in `elements` values
  std::int64_t elements = 0;  // how many differ
  std::int64_t first = -1;    // which is the first
  double largest = 0;         // of the differences of values
};
struct Difference {
  std::vector<std::string> about;  // a line each: "step: 10 in A, 20 in B"
  std::vector<StateDifference> states;
  std::int64_t equal = 0;  // states that have the same bits
};
Difference diff(Checkpoint& a, Checkpoint& b, const BytesDone& told = {});

}  // namespace tessera::checkpoint
