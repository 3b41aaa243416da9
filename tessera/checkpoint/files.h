#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tessera::checkpoint {

// What memory and places in a file are multiples of, so that bytes need not pass the kernel's
// cache.
inline constexpr std::int64_t kPageBytes = 4096;

// A file that is open. All operations throw DataError with the path and the system's reason.
class File {
 public:
  virtual ~File() = default;
  // Pages that lie at pages (of memory and of the file) go to the disk by themselves, past the
  // kernel's cache, where the file system can: that is faster, and leaves the cache to others.
  virtual void write(std::int64_t offset, const std::byte* data, std::int64_t bytes) = 0;
  // All of `bytes`, or an error that says where the file ends.
  virtual void read(std::int64_t offset, std::byte* into, std::int64_t bytes) = 0;
  virtual std::int64_t size() = 0;
  virtual void sync() = 0;
};

// The file operations that checkpoints are made of: a test puts one here that fails or "crashes"
// at any of them.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  // A new file that will have `bytes`, which are set aside where the file system can.
  virtual std::unique_ptr<File> create(const std::string& path, std::int64_t bytes) = 0;
  // [Note: no links] A regular file, and no symbolic link: whoever hands on a checkpoint could make
  // one lead to any file of its reader. (The folder itself may be reached through links.)
  virtual std::unique_ptr<File> open(const std::string& path) = 0;
  // Its parents too; may be there already. Folders that are new survive a crash of the machine.
  virtual void make_folder(const std::string& path) = 0;
  virtual void sync_folder(const std::string& path) = 0;  // makes its entries durable
  virtual void rename(const std::string& from, const std::string& to) = 0;
  // Two names change places at once. False, and nothing is changed, where the file system cannot:
  // most network file systems.
  virtual bool exchange(const std::string& a, const std::string& b) = 0;
  virtual void remove(const std::string& path) = 0;  // a file or an empty folder
  virtual std::vector<std::string> list(const std::string& folder) = 0;  // names, sorted
  virtual bool exists(const std::string& path) = 0;
  virtual bool is_folder(const std::string& path) = 0;
};

// The operating system's.
std::shared_ptr<FileSystem> local_files();

// Gives the folder `draft` the name `place`. What has that name then has another, which is returned
// ("" if there was nothing): that of the draft, or, where names cannot be exchanged, `away`. There,
// for a moment, nothing is at `place`.
std::string put_in_place(FileSystem& files, const std::string& draft, const std::string& place,
                         const std::string& away);

// A folder and all in it.
void remove_tree(FileSystem& files, const std::string& path);
// All of a (small) file; refuses one over `most` bytes.
std::string read_text(FileSystem& files, const std::string& path, std::int64_t most);
// Writes and syncs.
void write_text(FileSystem& files, const std::string& path, const std::string& text);

}  // namespace tessera::checkpoint
