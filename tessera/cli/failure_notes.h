#pragma once

#include <cstdint>
#include <string>

#include "tessera/core/fd.h"

namespace tessera::cli {

// What the ranks of a job failed with, for the one report that their launcher makes of it: when a
// rank dies, every other one fails too, and says where it waited for it.
class FailureNotes {
 public:
  FailureNotes();  // a file in memory that the ranks inherit

  std::string environment() const;  // what a rank needs to find it, NAME=value
  // Indented lines: what each rank said, the same words once, and the last step that was done.
  std::string report() const;

 private:
  Fd file_;
};

// For a rank that fails. False where nobody collects notes: then it has to speak for itself.
bool note_failure(int rank, std::int64_t last_step, const std::string& error);

}  // namespace tessera::cli
