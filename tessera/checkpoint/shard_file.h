#pragma once

#include <string>
#include <vector>

#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/safetensors_writer.h"

namespace tessera::checkpoint {

// A tensor for a shard file, wherever its bytes come from.
struct ShardFileTensor {
  std::string param;
  std::string state;
  DType dtype = DType::f32;
  std::vector<Stripe> stripes;  // not empty
  Source source;
};

// Writes a rank's shard file into the folder of a checkpoint.
ShardFileTable write_shard_file(FileSystem& files, const std::string& folder, int rank,
                                const Description& about, std::vector<ShardFileTensor> tensors,
                                const Charge& charge = {});

}  // namespace tessera::checkpoint
