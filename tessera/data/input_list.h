#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::data {

struct InputFile {
  std::string path;
  bool jsonl = false;  // by its name, without .gz or .zst
  bool named = true;   // given by the user, not found in a folder
  std::uint64_t bytes = 0;
  std::int64_t changed = 0;  // when, in nanoseconds
};

struct InputList {
  std::vector<InputFile> files;
  std::uint64_t bytes = 0;
  std::uint64_t left_out =
      0;  // files of folders that are neither text nor JSON lines by their name
};

// [Note: inputs] Files as they are given, and for a folder the files in it and in its folders, by
// their names in order: .txt, .text, .md, .jsonl and .ndjson, each also with .gz or .zst. Hidden
// files, links, folders of tokens and `out` are not looked into. A file that is given by name may
// have any; all but .jsonl and .ndjson are texts. Throws UsageError for what is not there or can be
// neither.
InputList list_inputs(const std::vector<std::string>& inputs, const std::string& out);

}  // namespace tessera::data
