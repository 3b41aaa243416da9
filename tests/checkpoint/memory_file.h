#pragma once

#include <cstring>
#include <string>
#include <utility>

#include "tessera/checkpoint/file_system.h"
#include "tessera/core/errors.h"

namespace tessera::checkpoint {

// A readable in-memory file.
class MemoryFile : public File {
 public:
  explicit MemoryFile(std::string text) : text_(std::move(text)) {}
  void write(std::int64_t, const std::byte*, std::int64_t) override {}
  void read(std::int64_t offset, std::byte* into, std::int64_t bytes) override {
    if (offset < 0 || bytes < 0 || offset > size() - bytes) throw DataError("read outside");
    std::memcpy(into, text_.data() + offset, static_cast<std::size_t>(bytes));
  }
  std::int64_t size() override { return static_cast<std::int64_t>(text_.size()); }
  void sync() override {}

 private:
  std::string text_;
};

}  // namespace tessera::checkpoint
