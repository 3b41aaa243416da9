#pragma once

#include <memory>
#include <optional>
#include <string>

#include "tessera/data/tokenizer.h"
#include "tessera/data/tokenizer_spec.h"

namespace tessera::data {

// Creates the tokenizer that a file describes. `end` and `begin` are returned by end_of_text() and
// begin_of_text(). Throws DataError if they or an added token are invalid.
std::unique_ptr<Tokenizer> make_bpe_tokenizer(TokenizerSpec spec, const std::string& name,
                                              std::optional<TokenId> end,
                                              std::optional<TokenId> begin);

// Returns the id of a token text: an added token or one of the vocabulary.
std::optional<TokenId> find_token(const TokenizerSpec& spec, std::string_view token);

}  // namespace tessera::data
