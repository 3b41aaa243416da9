#pragma once

#include <optional>
#include <string>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/core/progress.h"

namespace tessera::cli {

// Opens a checkpoint by its folder, or the newest valid one in the folder of a run. Throws
// UsageError with a suggestion if `path` is neither.
checkpoint::Checkpoint open_checkpoint(const std::string& path, bool with_files = true);

// Progress bar in megabytes.
class MegabyteBar {
 public:
  MegabyteBar(const std::string& label, std::int64_t total);
  std::function<void(std::int64_t)> function() {
    return [this](std::int64_t done) { bar_->update(done / kMega); };
  }

 private:
  static constexpr std::int64_t kMega = 1'000'000;
  std::optional<Progress> bar_;
};

struct VerifyOptions {
  bool sha256 = false;
  std::string out;      // file for the hashes; empty: stdout
  std::string against;  // file with expected hashes; empty: none
};
int verify_checkpoint(const std::string& path, bool json, const VerifyOptions& options);

}  // namespace tessera::cli
