#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/core/fd.h"

namespace tessera::process {

// What the ranks of a job failed with, for the one report that their launcher makes of it: when a
// rank dies, every other one fails too, and says where it waited for it.
class FailureNotes {
 public:
  FailureNotes();  // a file in memory that the ranks inherit

  std::string environment() const;  // what a rank needs to find it, NAME=value
  // What the ranks said, in indented lines, the same words once, first those that failed by
  // themselves; and the last step that one of them had done, -1 if none knew of any.
  struct Report {
    std::string text;
    std::int64_t last_step = -1;
    std::vector<int> own;     // that failed by themselves, in the order in which they said so
    std::vector<int> others;  // that failed since another one did, likewise
  };
  Report read() const;

 private:
  Fd file_;
};

// For a rank that fails, after a last step (-1: there was none yet); `own`: by itself, and not
// since another rank did. False where nobody collects notes: then it has to speak for itself.
bool note_failure(int rank, std::int64_t last_step, const std::string& error, bool own = true);

}  // namespace tessera::process
