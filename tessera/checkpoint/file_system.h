#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tessera::checkpoint {

// Alignment of memory and file offsets for I/O that bypasses the page cache.
inline constexpr std::int64_t kPageBytes = 4096;

// An open file. All operations throw DataError with the path and the system error.
class File {
 public:
  virtual ~File() = default;
  // Writes page-aligned pages (in memory and in the file) directly to the disk, bypassing the page
  // cache, if the file system supports it. That is faster and leaves the cache to others.
  virtual void write(std::int64_t offset, const std::byte* data, std::int64_t bytes) = 0;
  // Reads all of `bytes`, or throws an error with the end of the file.
  virtual void read(std::int64_t offset, std::byte* into, std::int64_t bytes) = 0;
  virtual std::int64_t size() = 0;
  virtual void sync() = 0;
};

// File operations used by checkpoints. Tests replace them to fail or "crash" at any operation.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  // Creates a file of `bytes`, and reserves the space if the file system supports it.
  virtual std::unique_ptr<File> create(const std::string& path, std::int64_t bytes) = 0;
  // [Note: no links] Opens a regular file. Rejects symbolic links: the author of a checkpoint could
  // make one point to any file of the reader. (The path of the folder may contain links.)
  virtual std::unique_ptr<File> open(const std::string& path) = 0;
  // Creates a folder and its parents, unless they exist. Syncs new ones to survive a crash.
  virtual void make_folder(const std::string& path) = 0;
  virtual void sync_folder(const std::string& path) = 0;  // makes its entries durable
  virtual void rename(const std::string& from, const std::string& to) = 0;
  // Exchanges two names atomically. Returns false and changes nothing if the file system does not
  // support it, as most network file systems.
  virtual bool exchange(const std::string& a, const std::string& b) = 0;
  virtual void remove(const std::string& path) = 0;  // a file or an empty folder
  virtual std::vector<std::string> list(const std::string& folder) = 0;  // names, sorted
  virtual bool exists(const std::string& path) = 0;
  virtual bool is_folder(const std::string& path) = 0;
};

// Returns the file operations of the operating system.
std::shared_ptr<FileSystem> local_files();

// Renames the folder `draft` to `place`. Returns the new name of the folder that was at `place`, or
// "" if there was none: `draft`, or `away` if names cannot be exchanged. In the latter case `place`
// does not exist for a moment.
std::string put_in_place(FileSystem& files, const std::string& draft, const std::string& place,
                         const std::string& away);

// Removes a file, or a folder with its contents.
void remove_tree(FileSystem& files, const std::string& path);
// Reads a small file. Throws DataError if it has more than `most` bytes.
std::string read_text(FileSystem& files, const std::string& path, std::int64_t most);
// Writes a new file and syncs it.
void write_text(FileSystem& files, const std::string& path, const std::string& text);

}  // namespace tessera::checkpoint
