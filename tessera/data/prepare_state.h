#pragma once

#include <map>
#include <string>
#include <string_view>

#include "tessera/data/documents.h"
#include "tessera/data/input_parts.h"
#include "tessera/data/token_writer.h"

namespace tessera::data {

// [Note: going on] While prepare runs, prepare.json in its folder says how far it came: a position
// in the input, and what lies in the folder for all before it. It is written now and then, behind a
// sync of the files. Whoever runs the same call again goes on there, and gets the same bytes as one
// run would have written: parts, and where they lie, follow from the input alone.
struct PrepareState {
  std::map<std::string, std::string> call;  // all that decides the bytes
  InputPosition position;
  WriterState writer;
  DocumentCounts counts;
};

std::string to_text(const PrepareState& state);
// Throws DataError that begins with `where`.
PrepareState parse_prepare_state(std::string_view text, const std::string& where);

}  // namespace tessera::data
