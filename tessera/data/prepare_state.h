#pragma once

#include <map>
#include <string>
#include <string_view>

#include "tessera/data/documents.h"
#include "tessera/data/input_parts.h"
#include "tessera/data/token_writer.h"

namespace tessera::data {

// [Note: resuming prepare] While prepare runs, prepare.json in its folder stores its progress: a
// position in the input, and what the folder contains for everything before it. It is written
// periodically, after the files are synced. The same call resumes there and produces the same bytes
// as an uninterrupted run, because parts and their locations depend on the input alone.
struct PrepareState {
  std::map<std::string, std::string> call;  // everything that determines the output
  InputPosition position;
  WriterState writer;
  DocumentCounts counts;
};

std::string to_text(const PrepareState& state);
// Throws DataError that starts with `where`.
PrepareState parse_prepare_state(std::string_view text, const std::string& where);

}  // namespace tessera::data
