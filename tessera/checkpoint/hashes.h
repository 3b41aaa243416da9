#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/core/sha256.h"

namespace tessera::checkpoint {

// [Note: forgery] Checksums lie beside what they check, so they find accidents: whoever changes a
// checkpoint on purpose changes them too. SHA-256 hashes that are kept elsewhere find that as well.
struct FileHash {
  std::string name;  // in the checkpoint's folder
  Digest hash{};
};
// Of the manifest and of every file that it names.
std::vector<FileHash> hash_files(const Checkpoint& from, FileSystem& files,
                                 const BytesDone& told = {});

// As sha256sum writes it, so that `sha256sum -c` in the checkpoint's folder checks it.
std::string to_text(const std::vector<FileHash>& hashes);

// A list as sha256sum writes it. Throws DataError for a line that is none, and for a name twice.
struct ListedHash {
  std::string path;
  std::string hex;
};
std::vector<ListedHash> parse_hashes(std::string_view text, const std::string& where);

// What differs, a line each. Of a list with folders in its paths, what lies in other folders than
// one of the name of `folder` belongs to other checkpoints, and is not looked at.
std::vector<std::string> compare_hashes(const std::vector<FileHash>& have,
                                        const std::vector<ListedHash>& listed,
                                        const std::string& folder, const std::string& where);

}  // namespace tessera::checkpoint
