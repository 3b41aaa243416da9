#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/data/tokenizer_spec.h"

namespace tessera::data {

// Converts tokens to bytes. Invalid UTF-8 is returned unchanged; the tokenizers package, which
// returns strings, puts U+FFFD there.
class TokenDecoder {
 public:
  // `tokens`: text of each id.
  TokenDecoder(const TokenizerSpec& spec, std::vector<std::string> tokens);

  // All ids must exist.
  std::string decode(std::span<const TokenId> ids) const;

 private:
  std::string one(const std::string& token, bool first) const;

  std::vector<DecoderStep> each_, all_;  // steps for single tokens, and for the whole text
  bool spaces_;                          // no decoder: tokens are joined by spaces
  bool first_differs_ = false;
  std::vector<std::string> tokens_, bytes_;
};

}  // namespace tessera::data
