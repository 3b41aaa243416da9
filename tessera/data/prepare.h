#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/data/documents.h"
#include "tessera/data/token_manifest.h"
#include "tessera/data/tokenizer.h"

namespace tessera::data {

// Options of prepare().
struct PrepareOptions {
  std::vector<std::string> inputs;  // see [Note: inputs]
  std::string out;                  // output folder
  std::string tokenizer = "bytes";  // as load_tokenizer() takes it
  DocumentFormat format = DocumentFormat::text;
  SplitDocuments split = SplitDocuments::file;
  std::string text_field = "text";
  std::string chat_template = "chatml";
  BadUtf8 bad_utf8 = BadUtf8::replace;
  bool special_text = false;  // encodes the text of special tokens as such tokens
  std::string end_token;      // text of the token; "": the tokenizer's own
  // Tokens prepended to each document: [Note: beginning of a text]. always: even if the tokenizer
  // only names such a token.
  enum class Begin : std::uint8_t { as_tokenizer, never, always } begin = Begin::as_tokenizer;
  int threads = 0;       // 0: number of cores
  bool append = false;   // appends to the tokens in the folder
  bool restart = false;  // starts over instead of resuming an earlier call

  std::int64_t shard_bytes = 256'000'000;
  std::size_t part_bytes = std::size_t{1} << 20;
  std::size_t longest_line = std::size_t{64} << 20;
  // Minimum bytes of tokens for writing a part around the page cache, and minimum bytes of input
  // for doing so at all.
  std::uint64_t direct_bytes = std::uint64_t{256} << 10;
  std::uint64_t direct_input = std::uint64_t{64} << 20;
  double save_seconds = 5;  // interval between saves of the state; 0: after each part
  // Progress callback: bytes of the input read so far, and in total.
  std::function<void(std::uint64_t done, std::uint64_t total)> report;
};

// Result of prepare().
struct PrepareSummary {
  TokenManifest manifest;
  DocumentCounts counts;  // of what this call added, including interrupted runs of it
  std::uint64_t input_bytes = 0, input_files = 0;
  std::uint64_t empty_files = 0, left_out = 0;  // numbers of files
  std::uint64_t cuts = 0;          // number of cuts inside long documents: see [Note: parts]
  std::uint64_t resumed_at = 0;    // bytes of input that an earlier run had processed
  bool was_finished = false;       // the folder was already complete
  std::vector<std::string> notes;  // about the tokenizer and the template
};

// Writes a token folder: see [Note: token folders] and [Note: resuming prepare]. The result does
// not depend on the number of threads. Throws UsageError for invalid options and DataError for
// invalid input (naming file and line); the folder is then marked as unfinished.
PrepareSummary prepare(const PrepareOptions& options);

}  // namespace tessera::data
