#pragma once

#include <string>
#include <vector>

#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/shard_writer.h"

namespace tessera::checkpoint {

// A tensor for a shard, wherever its bytes come from.
struct ShardTensor {
  std::string param;
  std::string state;
  DType dtype = DType::f32;
  std::vector<Stripe> stripes;  // not empty
  Source source;
};

// Writes a rank's shard into the folder of a checkpoint.
ShardTable write_shard(FileSystem& files, const std::string& folder, int rank,
                       const Description& about, std::vector<ShardTensor> tensors,
                       const Charge& charge = {});

}  // namespace tessera::checkpoint
