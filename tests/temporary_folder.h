#pragma once

#include <stdlib.h>

#include <filesystem>
#include <stdexcept>
#include <string>
#include <system_error>

namespace tessera {

// Folder that is removed with the object.
class TemporaryFolder {
 public:
  explicit TemporaryFolder(
      const std::filesystem::path& parent = std::filesystem::temp_directory_path())
      : path(make(parent)) {}
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string operator/(const std::string& name) const { return path + "/" + name; }

  const std::string path;

 private:
  static std::string make(const std::filesystem::path& parent) {
    std::string name = (parent / "tessera-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot create " + name);
    return name;
  }
};

// TemporaryFolder in memory if /dev/shm has space, for tests that sync thousands of small files.
class QuickFolder : public TemporaryFolder {
 public:
  QuickFolder() : TemporaryFolder(place()) {}

 private:
  static std::filesystem::path place() {
    std::error_code error;
    const std::filesystem::path memory = "/dev/shm";
    const bool there = std::filesystem::space(memory, error).available > (64u << 20) && !error;
    return there ? memory : std::filesystem::temp_directory_path();
  }
};

}  // namespace tessera
