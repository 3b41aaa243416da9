#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tessera::data {

class Source;

// Data settings of a run, named like its flags.
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

// Returns true if any part of --data is token data.
bool has_tokens(const std::string& data);
// Returns the fingerprint of the byte tokenizer, which text files use.
std::string text_fingerprint();
// Returns the token folders in --data, which contain their tokenizer files.
std::vector<std::string> token_folders(const std::string& data);

// Opens synthetic data, a text file, token data, or several of them: "a=0.7,b=0.3". Without weights
// they are mixed in proportion to their sizes. Throws UsageError that names the flag, or DataError.
std::unique_ptr<Source> training_source(const DataOptions& options);
// Returns null if neither val_data nor val_fraction is set. Sequential: each token is predicted
// once, followed by blank samples.
std::unique_ptr<Source> validation_source(const DataOptions& options);

// Properties of the data that a run needs before it reads any.
struct DataFacts {
  std::int64_t vocab = 0;               // 0: unknown
  std::string fingerprint;              // of the tokenizer; "": unknown
  std::uint64_t samples_per_epoch = 0;  // 0: unlimited
};
DataFacts facts_of(const DataOptions& options);

}  // namespace tessera::data
