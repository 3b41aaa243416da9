#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "tessera/data/source.h"
#include "tessera/data/token_data.h"

namespace tessera::data {

// Of the samples of an epoch. Random: windows anywhere, and no epochs.
enum class Order : std::uint8_t { shuffle, sequential, random };

// [Note: windows] How samples are cut out of tokens.
// Packed, the documents stand one behind the other, and window i has tokens i·seq to i·seq + seq:
// the last is only a target, and the first of the next window. So in an epoch every token but the
// very first is predicted once; what does not fill a window at the end is left out, or with `tail`
// is a window whose rest is ignored.
// Unpacked, a sample is a document, padded with tokens that are not learnt, or cut.
struct WindowOptions {
  std::int64_t seq = 1;
  std::uint64_t seed = 0;
  std::uint64_t stream = 0;  // another for each source of a mixture
  Order order = Order::shuffle;
  bool packed = true;
  bool separate = false;  // fill() says where documents begin, and none predicts the next one
  bool tail = false;
};

// What ids stand for, for people.
using Decode = std::function<std::string(std::span<const Token>)>;

// `decode` null: their numbers are shown. Throws DataError for data that is empty or shorter than a
// window.
std::unique_ptr<Source> windows(std::shared_ptr<const TokenData> data, const WindowOptions& options,
                                Decode decode = nullptr);

// Bytes: token 65 is "A".
std::string decode_bytes(std::span<const Token> ids);
// By the tokenizer that wrote these tokens; null where their files do not have it.
Decode decoder_of(const TokenData& data);

}  // namespace tessera::data
