#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/core/fd.h"

namespace tessera::process {

// Failures reported by the ranks of a job, collected for the launcher's single report. When one
// rank dies, every other rank fails too and reports where it was waiting.
class FailureNotes {
 public:
  FailureNotes();  // Creates an in-memory file that the ranks inherit.

  std::string environment() const;  // NAME=value with the path of the file, for ranks
  // Failures in indented lines, equal messages merged, ranks that failed on their own first.
  struct Report {
    std::string text;
    // Last step completed by any rank; -1 if no rank reported one.
    std::int64_t last_step = -1;
    std::vector<int> own;     // ranks that failed on their own, in reporting order
    std::vector<int> others;  // ranks that failed because another did, in reporting order
  };
  Report read() const;

 private:
  Fd file_;
};

// Records the failure of `rank`. last_step: -1 if no step was completed. `own`: the rank failed on
// its own, not because another rank did. Returns false if no launcher collects notes; the caller
// must then report the error itself.
bool note_failure(int rank, std::int64_t last_step, const std::string& error, bool own = true);

}  // namespace tessera::process
