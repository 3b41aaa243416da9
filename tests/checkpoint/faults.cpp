#include "tests/checkpoint/faults.h"

#include <filesystem>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::checkpoint {

namespace fs = std::filesystem;

struct FaultyFiles::WatchedFile : File {
  WatchedFile(std::shared_ptr<FaultyFiles> o, std::string p, std::unique_ptr<File> f)
      : owner(std::move(o)), path(std::move(p)), file(std::move(f)) {}
  void write(std::int64_t offset, const std::byte* data, std::int64_t bytes) override {
    const std::lock_guard lock(owner->mutex_);
    // A failed write often writes a part.
    if (bytes > 1 && !owner->dead_ && owner->count_ + 1 == owner->fault_.at) {
      file->write(offset, data, bytes / 2);
    }
    owner->operation("write " + path);
    file->write(offset, data, bytes);
    owner->unsynced_files_.insert(path);
  }
  void read(std::int64_t offset, std::byte* into, std::int64_t bytes) override {
    file->read(offset, into, bytes);
  }
  std::int64_t size() override { return file->size(); }
  void sync() override {
    const std::lock_guard lock(owner->mutex_);
    owner->operation("sync " + path);
    file->sync();
    owner->unsynced_files_.erase(path);
  }
  std::shared_ptr<FaultyFiles> owner;
  std::string path;
  std::unique_ptr<File> file;
};

void FaultyFiles::operation(const std::string& what) {
  if (dead_) throw Crash{};
  if (++count_ != fault_.at || fault_.kind == Fault::Kind::none) return;
  struck_ = true;
  if (fault_.kind == Fault::Kind::error) {
    throw DataError(str("cannot ", what, ": No space left on device"));
  }
  dead_ = true;
  forget();
  throw Crash{};
}

void FaultyFiles::forget() {
  if (fault_.lose_contents) {
    for (const std::string& path : unsynced_files_) {
      if (fs::exists(path)) fs::resize_file(path, fs::file_size(path) / 2);
    }
  }
  if (fault_.lose_entries) {
    for (const std::string& path : unsynced_entries_) fs::remove_all(path);
    for (auto it = unsynced_renames_.rbegin(); it != unsynced_renames_.rend(); ++it) {
      if (exchanged_) {
        real_->exchange(it->first, it->second);
      } else if (fs::exists(it->first)) {
        fs::rename(it->first, it->second);
      }
    }
  }
}

std::unique_ptr<File> FaultyFiles::create(const std::string& path, std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  operation("create " + path);
  unsynced_files_.insert(path);
  unsynced_entries_.insert(path);
  return std::make_unique<WatchedFile>(shared_from_this(), path, real_->create(path, bytes));
}

void FaultyFiles::make_folder(const std::string& path) {
  const std::lock_guard lock(mutex_);
  operation("make " + path);
  real_->make_folder(path);
}

void FaultyFiles::sync_folder(const std::string& path) {
  const std::lock_guard lock(mutex_);
  operation("sync " + path);
  real_->sync_folder(path);
  const auto within = [&](const std::string& entry) {
    return fs::path(entry).parent_path() == fs::path(path);
  };
  std::erase_if(unsynced_entries_, within);
  std::erase_if(unsynced_renames_, [&](const auto& pair) { return within(pair.first); });
}

void FaultyFiles::rename(const std::string& from, const std::string& to) {
  const std::lock_guard lock(mutex_);
  operation("rename " + from);
  real_->rename(from, to);
  for (std::set<std::string>* paths : {&unsynced_files_, &unsynced_entries_}) {
    std::set<std::string> moved;
    for (const std::string& path : *paths) {
      const bool inside = path.compare(0, from.size() + 1, from + "/") == 0;
      moved.insert(inside ? to + path.substr(from.size()) : path);
    }
    *paths = std::move(moved);
  }
  unsynced_renames_.emplace_back(to, from);
  exchanged_ = false;
}

bool FaultyFiles::exchange(const std::string& a, const std::string& b) {
  const std::lock_guard lock(mutex_);
  if (!fault_.exchanges) return false;
  operation("exchange " + a);
  if (!real_->exchange(a, b)) return false;
  unsynced_renames_.emplace_back(a, b);
  exchanged_ = true;
  return true;
}

void FaultyFiles::remove(const std::string& path) {
  const std::lock_guard lock(mutex_);
  operation("remove " + path);
  real_->remove(path);
  unsynced_files_.erase(path);
  unsynced_entries_.erase(path);
}

}  // namespace tessera::checkpoint
