#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/data/tokenizer_spec.h"

namespace tessera::data {

// From tokens to bytes. Where bytes of tokens make no character they come out as they are: the
// tokenizers package, which has only text to give, puts U+FFFD there.
class TokenDecoder {
 public:
  // `tokens`: the text of every id.
  TokenDecoder(const TokenizerSpec& spec, std::vector<std::string> tokens);

  // Ids that exist.
  std::string decode(std::span<const TokenId> ids) const;

 private:
  std::string one(const std::string& token, bool first) const;

  std::vector<DecoderStep> each_, all_;  // steps for single tokens, and for the text they make
  bool spaces_;                          // no decoder: tokens with spaces between
  bool first_differs_ = false;
  std::vector<std::string> tokens_, bytes_;
};

}  // namespace tessera::data
