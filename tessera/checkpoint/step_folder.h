#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/checkpoint/file_system.h"
#include "tessera/checkpoint/manifest.h"

namespace tessera::checkpoint {

// [Note: publish] A checkpoint is a folder "step-00000120" with the shard files of the ranks and
// the manifest. It is written as ".tmp-step-00000120" in the same parent: every file is synced,
// then the manifest, then the folder. Then it is renamed to its final name, and the parent is
// synced. So a folder with the final name is complete, whatever fails and when. Names that start
// with a dot are never read, and the next save removes them. A step that is saved again after a
// rollback replaces the old one atomically. On most network file systems, which cannot exchange
// names, the step does not exist for a moment.
std::string folder_name(std::int64_t step);
std::string shard_file_name(int rank);
inline constexpr const char* kManifestName = "manifest.json";

// Returns the steps that have a folder in `dir`, ascending. Empty if `dir` does not exist.
std::vector<std::int64_t> steps_in(FileSystem& files, const std::string& dir);

// Tries the operations of a save in `dir` (creates it, writes a small file, syncs, renames,
// removes), so that problems are found before hours of training. Throws DataError.
void try_folder(FileSystem& files, const std::string& dir);

// Callback for problems that do not prevent a save, such as a leftover that cannot be removed
// because a file in it is open on a network file system. The next save tries again.
using Warn = std::function<void(const std::string&)>;

// Creates `dir`, removes leftovers of dead runs, and creates and returns the folder to write to.
std::string begin_folder(FileSystem& files, const std::string& dir, std::int64_t step,
                         const Warn& warn = {});
// Writes the manifest and publishes the folder. Replaces one of the same step. Returns the path.
std::string publish_folder(FileSystem& files, const std::string& dir, const Manifest& manifest,
                           const Warn& warn = {});

// Checkpoints to keep.
struct Retention {
  int keep_last = 0;            // number of newest checkpoints to keep; 0: all
  std::int64_t keep_every = 0;  // also keeps steps that are multiples of this; 0: none
};
// Removes checkpoints before `step` that the policy does not keep. `step` counts as the newest.
void apply_retention(FileSystem& files, const std::string& dir, std::int64_t step,
                     const Retention& retention);

}  // namespace tessera::checkpoint
