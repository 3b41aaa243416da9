#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/data/documents.h"
#include "tessera/data/token_manifest.h"
#include "tessera/data/tokenizer.h"

namespace tessera::data {

struct PrepareOptions {
  std::vector<std::string> inputs;  // see [Note: inputs]
  std::string out;                  // the folder
  std::string tokenizer = "bytes";  // as load_tokenizer() takes it
  DocumentFormat format = DocumentFormat::text;
  SplitDocuments split = SplitDocuments::file;
  std::string text_field = "text";
  std::string chat_template = "chatml";
  BadUtf8 bad_utf8 = BadUtf8::replace;
  bool special_text = false;  // text may become special tokens
  std::string end_token;      // by its text; otherwise the tokenizer's own
  // Tokens in front of each document: [Note: beginning of a text]. Always: also where the
  // tokenizer only names a token for it.
  enum class Begin : std::uint8_t { as_tokenizer, never, always } begin = Begin::as_tokenizer;
  int threads = 0;       // 0: as many as there are cores
  bool append = false;   // to what the folder has
  bool restart = false;  // not from where an earlier call stopped

  std::int64_t shard_bytes = 256'000'000;
  std::size_t part_bytes = std::size_t{1} << 20;
  std::size_t longest_line = std::size_t{64} << 20;
  // Parts of so many bytes of tokens are written around the page cache, where there is so much
  // input at least.
  std::uint64_t direct_bytes = std::uint64_t{256} << 10;
  std::uint64_t direct_input = std::uint64_t{64} << 20;
  double save_seconds = 5;  // between two times that the state is written; 0: after each part
  // Bytes of the input that were read so far, and how many there are.
  std::function<void(std::uint64_t done, std::uint64_t total)> told;
};

struct PrepareSummary {
  TokenManifest manifest;
  DocumentCounts counts;  // of what this call added, from the first run of it on
  std::uint64_t input_bytes = 0, input_files = 0;
  std::uint64_t empty_files = 0, left_out = 0;  // files
  std::uint64_t cuts = 0;          // places where long documents were cut: see [Note: parts]
  std::uint64_t resumed_at = 0;    // bytes of input that an earlier run had done
  bool was_finished = false;       // there was nothing to do
  std::vector<std::string> notes;  // of the tokenizer and of the template
};

// Writes a folder of tokens: see [Note: token folders] and [Note: going on]. The bytes do not
// depend on the number of threads. Throws UsageError for a call that is wrong, DataError for input
// that is bad (file and line); the folder is then unfinished, and nothing takes it for finished.
PrepareSummary prepare(const PrepareOptions& options);

}  // namespace tessera::data
