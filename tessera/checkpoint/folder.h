#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/checkpoint/files.h"
#include "tessera/checkpoint/manifest.h"

namespace tessera::checkpoint {

// [Note: publish] A checkpoint is a folder "step-00000120" with the ranks' shard files and the
// manifest. It is written as ".tmp-step-00000120" beside its place: every file is synced, then the
// manifest, then the folder, and one rename puts it in place; then the parent is synced. Whatever
// dies when, a folder with the final name is complete. Nobody reads names that begin with a dot,
// and the next save removes them. A step that is saved again, after a roll-back, takes the place of
// the old one at once; on most network file systems, which cannot do that, it is gone for a moment.
std::string folder_name(std::int64_t step);
std::string shard_file_name(int rank);
inline constexpr const char* kManifestName = "manifest.json";

// The steps that have a folder in `dir`, ascending. None if there is no such folder.
std::vector<std::int64_t> steps_in(FileSystem& files, const std::string& dir);

// Does in `dir` what a save will do (makes it, writes a small file, syncs, renames, removes), so
// that what cannot work is known before hours of training. Throws DataError.
void try_folder(FileSystem& files, const std::string& dir);

// Told of what goes wrong and keeps nobody from saving: a leftover that cannot be removed, because
// somebody has a file of it open over the network, say. The next save tries again.
using Warn = std::function<void(const std::string&)>;

// Makes `dir`, removes what dead runs left in it, and makes the folder to write into: its path.
std::string begin_folder(FileSystem& files, const std::string& dir, std::int64_t step,
                         const Warn& warn = {});
// Writes the manifest and publishes. Returns the final path. One of the same step is replaced.
std::string publish_folder(FileSystem& files, const std::string& dir, const Manifest& manifest,
                           const Warn& warn = {});

struct Retention {
  int keep_last = 0;            // the newest so many, 0: all
  std::int64_t keep_every = 0;  // besides, those whose step is a multiple; 0: none
};
// Removes older checkpoints than `step`, as the policy says; `step` itself counts as the newest.
void apply_retention(FileSystem& files, const std::string& dir, std::int64_t step,
                     const Retention& retention);

}  // namespace tessera::checkpoint
