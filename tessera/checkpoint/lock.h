#pragma once

#include <cstdint>
#include <string>

#include "tessera/core/fd.h"

namespace tessera::checkpoint {

// [Note: one writer] Two runs that save into one folder would remove each other's drafts and take
// each other's checkpoints for their own. Whoever writes there holds a lock of the kernel on the
// file .lock in it, for as long as it may write. The kernel releases it when the process ends, in
// whatever way; the file stays, and means nothing by itself. Readers need no lock.
//
// A folder that is removed and made again has another lock file: lock_file() tells.
struct LockFile {
  std::uint64_t device = 0, inode = 0;  // 0: there is none
  bool exists() const { return inode != 0; }
  bool operator==(const LockFile&) const = default;
};
// Identifies the lock file that is in `dir` now.
LockFile lock_file(const std::string& dir);

// The lock itself.
class FolderLock {
 public:
  // Makes the folder if need be. `who` tells others who we are, such as "tessera train". Throws
  // UsageError that names whoever holds it, and still does after a second.
  FolderLock(const std::string& dir, const std::string& who);

  // Why there is no lock, where the file system has none: nobody is kept out then. Empty if there
  // is one.
  const std::string& missing() const { return missing_; }

 private:
  Fd file_;
  std::string missing_;
};

}  // namespace tessera::checkpoint
