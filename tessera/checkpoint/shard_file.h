#pragma once

#include <string>
#include <vector>

#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/safetensors_writer.h"

namespace tessera::checkpoint {

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
