#pragma once

#include <cstdint>
#include <string>

#include "tessera/core/fd.h"

namespace tessera::checkpoint {

// [Note: one writer] Two runs that save into one folder would remove each other's drafts and
// mistake each other's checkpoints for their own. So a writer holds a kernel lock (flock) on the
// file .lock in the folder while it may write. The kernel releases the lock when the process ends,
// however it ends. The file stays and has no meaning by itself. Readers need no lock.
//
// A folder that was removed and created again has a different lock file. LockFile detects that.
struct LockFile {
  std::uint64_t device = 0, inode = 0;  // 0: no lock file
  bool exists() const { return inode != 0; }
  bool operator==(const LockFile&) const = default;
};
// Returns the identity of the lock file that is in `dir` now.
LockFile lock_file(const std::string& dir);

// Exclusive lock of a folder, held until destruction.
class FolderLock {
 public:
  // Creates the folder if needed. `who` is shown to other writers, such as "tessera train". Throws
  // UsageError that names the holder if the lock is still held after a second.
  FolderLock(const std::string& dir, const std::string& who);

  // Returns the reason why there is no lock if the file system does not support locks: other
  // writers are then not excluded. Empty if the lock is held.
  const std::string& missing() const { return missing_; }

 private:
  Fd file_;
  std::string missing_;
};

}  // namespace tessera::checkpoint
