#include <utility>
#include <vector>

#include "tessera/core/errors.h"
#include "tessera/data/tokenizer.h"
#include "tessera/data/windows.h"

namespace tessera::data {

Decode decoder_of(const TokenData& data) {
  std::shared_ptr<const Tokenizer> tokenizer;
  try {
    tokenizer = tokenizer_of(data);
  } catch (const Error&) {
    // Without a tokenizer, tokens are shown as numbers; training needs no text.
  }
  if (!tokenizer) return nullptr;
  return [tokenizer](std::span<const Token> ids) {
    std::string text;
    std::vector<TokenId> known;
    const auto flush = [&] {
      text += tokenizer->decode(known);
      known.clear();
    };
    for (const Token id : ids) {
      if (id >= 0 && id < tokenizer->vocab()) {
        known.push_back(static_cast<TokenId>(id));
      } else {  // the model's vocabulary may be padded beyond the tokenizer's
        flush();
        text += "?";
      }
    }
    flush();
    return text;
  };
}

}  // namespace tessera::data
