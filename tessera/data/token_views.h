#pragma once

#include <memory>
#include <string>

#include "tessera/data/token_data.h"

namespace tessera::data {

// Opens a text file as one document with one token per byte (0 to 255). Throws UsageError if the
// file does not exist, and DataError with the position if it is not UTF-8 (only the first 16 MiB
// are checked).
std::shared_ptr<const TokenData> text_tokens(const std::string& path);

// Splits off the last `fraction` of the tokens for validation, by whole documents if there are
// several. Throws DataError if one of the two would be empty.
struct SplitTokens {
  std::shared_ptr<const TokenData> training, validation;
};
SplitTokens split(const std::shared_ptr<const TokenData>& data, double fraction);

}  // namespace tessera::data
