// Tokenizer of a model, for `tessera generate`.
#pragma once

#include <memory>
#include <string>

#include "tessera/data/tokenizer.h"
#include "tessera/train/model_files.h"

namespace tessera::cli {

// Returns the tokenizer named by --tokenizer, or if `name` is empty the model's own: that of its
// Hugging Face folder or of its training tokens, bytes for a text file, digits for synthetic data.
// "ids" reads and writes texts as token ids. Throws UsageError that names the flag.
std::unique_ptr<data::Tokenizer> tokenizer_for(const std::string& name,
                                               const train::ModelFiles& model);

}  // namespace tessera::cli
