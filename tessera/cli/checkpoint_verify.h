#pragma once

#include <optional>
#include <string>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/core/progress.h"

namespace tessera::cli {

// A folder of a checkpoint, or of a run: then the newest good one in it. Throws UsageError for what
// is neither, and says what was probably meant.
checkpoint::Checkpoint open_checkpoint(const std::string& path, bool with_files = true);

// A bar in megabytes.
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
  std::string out;      // where the hashes go; empty: to stdout
  std::string against;  // a list of hashes
};
int verify_checkpoint(const std::string& path, bool json, const VerifyOptions& options);

}  // namespace tessera::cli
