#pragma once

// Store in a folder that all ranks of a test can access.

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>

#include "tessera/comm/store.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::comm {

class FileStore final : public Store {
 public:
  explicit FileStore(const std::string& folder) : folder_(folder) {
    std::filesystem::create_directories(folder_);
  }

  void set(const std::string& key, const std::string& value) override {
    // Written to another file and renamed, so that a reader never sees a partial value.
    const auto draft = folder_ / str(file(key), ".", getpid(), ".draft");
    {
      std::ofstream out(draft, std::ios::binary);
      out << value;
      if (!out.flush()) throw Error(str("cannot write ", draft.string()));
    }
    std::filesystem::rename(draft, folder_ / file(key));
  }

  std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
    const auto end = std::chrono::steady_clock::now() + timeout;
    for (;;) {
      std::ifstream in(folder_ / file(key), std::ios::binary);
      if (in) return {std::istreambuf_iterator<char>(in), {}};
      if (std::chrono::steady_clock::now() > end) {
        throw StoreTimeout(str("no rank wrote ", quote(key), " to ", folder_.string()));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }

  std::int64_t count(const std::string& key) override {
    // One byte per call; appending is atomic, and only one rank counts any one key.
    std::ofstream(folder_ / file(key), std::ios::binary | std::ios::app) << '.';
    return static_cast<std::int64_t>(std::filesystem::file_size(folder_ / file(key)));
  }

 private:
  static std::string file(std::string key) {
    for (char& c : key) {
      if (c == '/') c = '_';
    }
    return key;
  }
  std::filesystem::path folder_;
};

inline std::shared_ptr<Store> make_file_store(const std::string& folder) {
  return std::make_shared<FileStore>(folder);
}

}  // namespace tessera::comm
