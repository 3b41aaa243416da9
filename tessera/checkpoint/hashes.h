#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/core/crypto.h"

namespace tessera::checkpoint {

// [Note: forgery] Checksums are stored in the checkpoint itself, so they detect accidents only: an
// attacker can change them too. SHA-256 hashes that are stored elsewhere also detect forgery.
struct FileHash {
  std::string name;  // file name in the folder of the checkpoint
  Digest hash{};
};
// Returns the hashes of the manifest and of every file that it lists.
std::vector<FileHash> hash_files(const Checkpoint& from, FileSystem& files,
                                 const BytesDone& progress = {});

// Formats like sha256sum, so that `sha256sum -c` works in the folder of the checkpoint.
std::string to_text(const std::vector<FileHash>& hashes);

// One line of a list of sha256sum.
struct ListedHash {
  std::string path;
  std::string hex;
};
// Parses a list of sha256sum. Throws DataError for an invalid line and for a duplicate name.
std::vector<ListedHash> parse_hashes(std::string_view text, const std::string& where);

// Returns the differences, one line each. Paths in the list that contain a folder with another name
// than `folder` belong to other checkpoints and are ignored.
std::vector<std::string> compare_hashes(const std::vector<FileHash>& have,
                                        const std::vector<ListedHash>& listed,
                                        const std::string& folder, const std::string& where);

}  // namespace tessera::checkpoint
