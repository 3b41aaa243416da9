#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::data {

// One input file of prepare().
struct InputFile {
  std::string path;
  bool jsonl = false;  // by its extension, ignoring .gz and .zst
  bool named = true;   // given by the user, not found in a folder
  std::uint64_t bytes = 0;
  std::int64_t changed = 0;  // modification time, nanoseconds
};

// Input files of prepare().
struct InputList {
  std::vector<InputFile> files;
  std::uint64_t bytes = 0;
  std::uint64_t left_out = 0;  // files in folders that are neither text nor JSON lines
};

// [Note: inputs] Files are used as given. A folder stands for the files in it and its subfolders,
// sorted by name: .txt, .text, .md, .jsonl and .ndjson, each also with .gz or .zst. Hidden files,
// links, token folders and `out` are skipped. A file given by name may have any extension; all but
// .jsonl and .ndjson are text. Throws UsageError for missing or unsupported inputs.
InputList list_inputs(const std::vector<std::string>& inputs, const std::string& out);

}  // namespace tessera::data
