#pragma once

#include <stdlib.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::cli {

// Private temporary folder with an unpredictable name, removed by the destructor.
class ScratchFolder {
 public:
  explicit ScratchFolder(const char* prefix) {
    std::string name = (std::filesystem::temp_directory_path() / str(prefix, "-XXXXXX")).string();
    if (::mkdtemp(name.data()) == nullptr) {
      throw Error(str("cannot create the folder ", name, ": ", std::strerror(errno),
                      "; set TMPDIR to a writable folder"));
    }
    path_ = name;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  std::filesystem::path file(const char* name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

}  // namespace tessera::cli
