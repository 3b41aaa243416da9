#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tessera::data {

class Source;

// What a run says of its data: the settings of the same names.
struct DataOptions {
  std::string data = "synthetic";
  std::string val_data;
  double val_fraction = 0;
  std::string order = "auto";
  std::string documents = "join";
  std::string pack = "documents";
  std::int64_t epochs = 0;
  std::int64_t seq = 1;
  std::uint64_t seed = 0;
};

// Is any of --data tokens, whose vocabulary is that of their tokenizer?
bool has_tokens(const std::string& data);
// The tokenizer of text files: a byte a token.
std::string text_fingerprint();
// The folders of tokens in it, each with the files of its tokenizer.
std::vector<std::string> token_folders(const std::string& data);

// synthetic, a text file, token data, or several of them: "a=0.7,b=0.3". Without weights they come
// in proportion to their sizes. Throws UsageError that names the flag, or DataError.
std::unique_ptr<Source> training_source(const DataOptions& options);
// Null where neither val_data nor val_fraction is given. Sequential, each token predicted once,
// blank samples after the last.
std::unique_ptr<Source> validation_source(const DataOptions& options);

// What a run has to know before it reads anything.
struct DataFacts {
  std::int64_t vocab = 0;               // 0: not known
  std::string fingerprint;              // of the tokenizer; "": not known
  std::uint64_t samples_per_epoch = 0;  // 0: there is no end
};
DataFacts facts_of(const DataOptions& options);

}  // namespace tessera::data
