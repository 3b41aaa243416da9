#pragma once

// A file system that fails, or a machine that dies, at a chosen operation.

#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tessera/checkpoint/file_system.h"

namespace tessera::checkpoint {

struct Crash {};  // not a std::exception, so that no code handles it

struct Fault {
  enum class Kind { none, error, crash };
  Kind kind = Kind::none;
  int at = 0;  // number of the operation, from 1
  // Unsynced state that is lost in a crash.
  bool lose_contents = false;  // half of the contents of files
  bool lose_entries = false;   // entries of folders, and renames
  bool exchanges = true;       // names can be exchanged atomically
};

class FaultyFiles : public FileSystem, public std::enable_shared_from_this<FaultyFiles> {
 public:
  explicit FaultyFiles(const Fault& fault) : fault_(fault) {}
  int operations() const { return count_; }
  bool struck() const { return struck_; }

  std::unique_ptr<File> create(const std::string& path, std::int64_t bytes) override;
  std::unique_ptr<File> open(const std::string& path) override { return real_->open(path); }
  void make_folder(const std::string& path) override;
  void sync_folder(const std::string& path) override;
  void rename(const std::string& from, const std::string& to) override;
  bool exchange(const std::string& a, const std::string& b) override;
  void remove(const std::string& path) override;
  std::vector<std::string> list(const std::string& folder) override { return real_->list(folder); }
  bool exists(const std::string& path) override { return real_->exists(path); }
  bool is_folder(const std::string& path) override { return real_->is_folder(path); }

 private:
  struct WatchedFile;
  // Counts an operation, and fails or crashes if it is the chosen one.
  void operation(const std::string& what);
  void forget();

  const Fault fault_;
  const std::shared_ptr<FileSystem> real_ = local_files();
  std::recursive_mutex mutex_;
  int count_ = 0;
  bool struck_ = false;
  bool dead_ = false;
  std::set<std::string> unsynced_files_, unsynced_entries_;
  std::vector<std::pair<std::string, std::string>> unsynced_renames_;  // the new name first
  bool exchanged_ = false;  // whether the last one was an exchange
};

}  // namespace tessera::checkpoint
