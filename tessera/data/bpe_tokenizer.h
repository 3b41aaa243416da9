#pragma once

#include <memory>
#include <optional>
#include <string>

#include "tessera/data/tokenizer.h"
#include "tessera/data/tokenizer_spec.h"

namespace tessera::data {

// The tokenizer that a file describes. `end` and `begin` are what end_of_text() and begin_of_text()
// answer. Throws DataError where they, or an added token, cannot be.
std::unique_ptr<Tokenizer> make_bpe_tokenizer(TokenizerSpec spec, const std::string& name,
                                              std::optional<TokenId> end,
                                              std::optional<TokenId> begin);

// The id of a token's text: an added token's, or one of the vocabulary.
std::optional<TokenId> find_token(const TokenizerSpec& spec, std::string_view token);

}  // namespace tessera::data
