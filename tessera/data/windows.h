#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "tessera/data/source.h"
#include "tessera/data/token_data.h"

namespace tessera::data {

// Order of the samples of an epoch. random: windows anywhere, without epochs.
enum class Order : std::uint8_t { shuffle, sequential, random };

// [Note: windows] Samples are cut out of the tokens.
// Packed: the documents are concatenated, and window i has tokens i·seq to i·seq + seq. The last
// one is only a target, and is the first token of the next window, so in an epoch every token but
// the very first is predicted once. Tokens that do not fill a window at the end are dropped, or
// with `tail` form a window whose rest is ignored.
// Unpacked: a sample is a document, padded with ignored tokens or truncated.
struct WindowOptions {
  std::int64_t seq = 1;
  std::uint64_t seed = 0;
  std::uint64_t stream = 0;  // different for each source of a mixture
  Order order = Order::shuffle;
  bool packed = true;
  bool separate = false;  // fill() sets the starts of documents; none predicts the next one
  bool tail = false;
};

// Converts ids to text for the user.
using Decode = std::function<std::string(std::span<const Token>)>;

// `decode` null: ids are shown as numbers. Throws DataError if the data is empty or shorter than a
// window.
std::unique_ptr<Source> windows(std::shared_ptr<const TokenData> data, const WindowOptions& options,
                                Decode decode = nullptr);

// Converts byte tokens to text: token 65 is "A".
std::string decode_bytes(std::span<const Token> ids);
// Returns a decoder with the tokenizer of these tokens; null if their files do not have it.
Decode decoder_of(const TokenData& data);

}  // namespace tessera::data
