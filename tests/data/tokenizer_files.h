#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tessera/data/bpe.h"
#include "tessera/data/bpe_tokenizer.h"
#include "tessera/data/tokenizer.h"
#include "tessera/data/tokenizer_spec.h"

namespace tessera::data {

// Small files in the format of the tokenizers package. Byte-level ones have a token for each byte
// and some merges.
nlohmann::json byte_level_file(const std::string& pattern);  // "": ByteLevel's own
nlohmann::json sentence_piece_file();                        // like Llama 2

// Returns a tokenizer for such a file.
std::unique_ptr<Tokenizer> tokenizer_of(const nlohmann::json& file);

std::vector<TokenId> ids_of(const Tokenizer& tokenizer, std::string_view text,
                            const EncodeOptions& options = {});

// Returns a string of many scripts, spaces, marks and texts that tokenizers treat specially, with
// characters known to every version of Unicode since 2015.
std::string random_text(std::uint64_t seed, int pieces);

}  // namespace tessera::data
