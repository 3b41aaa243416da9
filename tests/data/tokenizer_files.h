#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tessera/data/bpe.h"
#include "tessera/data/bpe_tokenizer.h"
#include "tessera/data/tokenizer.h"
#include "tessera/data/tokenizer_spec.h"

namespace tessera::data {

// Small files as the tokenizers package writes them. Byte-level ones have a token for each byte and
// some merges.
nlohmann::json byte_level_file(const std::string& pattern);  // empty: ByteLevel's own
nlohmann::json sentence_piece_file();                        // like Llama 2

// A tokenizer from such a file.
std::unique_ptr<Tokenizer> tokenizer_of(const nlohmann::json& file);

std::vector<TokenId> ids_of(const Tokenizer& tokenizer, std::string_view text,
                            const EncodeOptions& options = {});

// A string of many scripts, spaces, marks and pieces that tokenizers look for. Of characters that
// every version of Unicode since 2015 knows.
std::string random_text(std::uint64_t seed, int pieces);

}  // namespace tessera::data
