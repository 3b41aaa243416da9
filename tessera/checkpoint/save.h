#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/checkpoint/files.h"
#include "tessera/checkpoint/folder.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/shard.h"

namespace tessera::checkpoint {

// The ranks that save together, without saying how they talk. By default, one rank alone.
struct Team {
  int rank = 0, size = 1;
  // Collective. Rank 0 gets the texts of all, in rank order; what others get is not looked at.
  std::function<std::vector<std::string>(std::string)> gather = [](std::string text) {
    return std::vector<std::string>{std::move(text)};
  };
  // Collective. All get the text of rank 0.
  std::function<std::string(std::string)> broadcast = [](std::string text) { return text; };
};

struct SaveOptions {
  Retention retention;
  std::shared_ptr<FileSystem> files = local_files();
  Warn warn;  // also told of an old checkpoint that cannot be removed
  Charge charge = {};
  // What the file system could not do (a full disk, say) is tried again so often, all ranks
  // together, after pauses of retry_seconds, twice that … up to a minute; warn is told.
  int retries = 0;
  double retry_seconds = 1;
  // Then what still fails so is returned as Saved::failure on all ranks, and warn is told, so that
  // whatever they do can go on. A wrong call and a rank that is gone are thrown all the same.
  bool return_failures = false;
};

struct Saved {
  std::string folder;
  std::int64_t bytes = 0;  // that this rank wrote
  double seconds = 0;
  std::string failure;  // why nothing was published; see SaveOptions::return_failures
};

// Collective: saves the shards of all ranks as dir/step-…, all ranks writing at once; see
// [Note: publish]. What fails on one rank fails on all: with its own error there, and with a
// PeerError that names it on the others. Earlier checkpoints are untouched then. Memory: see
// [Note: memory], and the manifest on rank 0.
Saved save(const std::string& dir, const Description& about, const std::vector<Shard>& shards,
           const Team& team = {}, const SaveOptions& options = {});

}  // namespace tessera::checkpoint
