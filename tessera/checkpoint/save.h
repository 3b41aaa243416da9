#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/checkpoint/file_system.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/safetensors_writer.h"
#include "tessera/checkpoint/shard.h"
#include "tessera/checkpoint/step_folder.h"

namespace tessera::checkpoint {

// The ranks that save together, with their communication. Default: one rank.
struct Team {
  int rank = 0, size = 1;
  // Collective. Returns the texts of all ranks, in rank order, on rank 0; ignored on other ranks.
  std::function<std::vector<std::string>(std::string)> gather = [](std::string text) {
    return std::vector<std::string>{std::move(text)};
  };
  // Collective. Returns the text of rank 0 on all ranks.
  std::function<std::string(std::string)> broadcast = [](std::string text) { return text; };
};

struct SaveOptions {
  Retention retention;
  std::shared_ptr<FileSystem> files = local_files();
  Warn warn;  // also called if an old checkpoint cannot be removed
  Charge charge = {};
  // Number of retries by all ranks after an error of the file system, such as a full disk. Calls
  // `warn` before each one.
  int retries = 0;
  // Seconds before the first retry. Doubles with each retry, up to a minute.
  double retry_seconds = 1;
  // If the file system still fails, calls `warn` and returns Saved::failure on all ranks, so that
  // training can continue. Errors of the caller and dead ranks are always thrown.
  bool return_failures = false;
};

struct Saved {
  std::string folder;
  std::int64_t bytes = 0;  // written by this rank
  double seconds = 0;
  std::string failure;  // reason if nothing was published; see return_failures
};

// Collective. Saves the shards of all ranks to dir/step-…; all ranks write concurrently, see
// [Note: publish]. A failure on one rank throws on all ranks: its own error there, and a PeerError
// that names it on the others. Earlier checkpoints are then unchanged. For memory use see
// [Note: memory]; rank 0 also holds the manifest.
Saved save(const std::string& dir, const Description& about, const std::vector<Shard>& shards,
           const Team& team = {}, const SaveOptions& options = {});

// A tensor to write to a shard file.
struct ShardFileTensor {
  std::string param;
  std::string state;
  DType dtype = DType::f32;
  std::vector<StridedRun> strided_runs;  // not empty
  Source source;
};

// Writes the shard file of a rank to the folder of a checkpoint.
ShardFileTable write_shard_file(FileSystem& files, const std::string& folder, int rank,
                                const Description& about, std::vector<ShardFileTensor> tensors,
                                const Charge& charge = {});

}  // namespace tessera::checkpoint
