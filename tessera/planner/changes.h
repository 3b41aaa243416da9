#pragma once

#include <string>
#include <vector>

#include "tessera/planner/question.h"

namespace tessera::planner {

// A change of flags that keeps model, devices and global batch.
struct Change {
  std::string family;  // what kind it is: of one kind only the best is worth telling
  std::string flags;   // as they are typed, over what was asked: "--zero 1"
  Question question;   // with them, to be settled: it may be one that cannot be
  // Every part of the model computes the same for a micro-batch: what is kept, sent and in which
  // order differs.
  bool same_parts = false;
};

// All that come to mind, those of one family together.
std::vector<Change> possible_changes(const Question& settled);

// "25MB" where that is exact, else the bytes: as --bucket-size reads it.
std::string exact_size(double bytes);

}  // namespace tessera::planner
