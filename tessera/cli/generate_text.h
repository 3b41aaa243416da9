// What `tessera generate` and `tessera evaluate` share: the tokenizer that belongs to a model.
#pragma once

#include <memory>
#include <string>

#include "tessera/data/tokenizer.h"
#include "tessera/train/model_files.h"

namespace tessera::cli {

// `asked`: what --tokenizer says, or "" for the one that belongs to the model: that of a Hugging
// Face folder, of the tokens that it was trained on, bytes for a text file, digits for synthetic
// data. "ids": texts are numbers of tokens. Throws UsageError that names the flag.
std::unique_ptr<data::Tokenizer> tokenizer_for(const std::string& asked,
                                               const train::ModelFiles& model);

}  // namespace tessera::cli
