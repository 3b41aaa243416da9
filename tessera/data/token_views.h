#pragma once

#include <memory>
#include <string>

#include "tessera/data/token_data.h"

namespace tessera::data {

// A text file as one document, a byte a token: 0 to 255. Throws UsageError where there is no such
// file, and DataError, with the place, for one that is not UTF-8 (its first 16 MiB are looked at).
std::shared_ptr<const TokenData> text_tokens(const std::string& path);

// What is trained on, and what is kept to validate: the last `fraction` of the tokens, by whole
// documents where there are several. Throws DataError where one of the two would be empty.
struct SplitTokens {
  std::shared_ptr<const TokenData> training, validation;
};
SplitTokens split(const std::shared_ptr<const TokenData>& data, double fraction);

}  // namespace tessera::data
