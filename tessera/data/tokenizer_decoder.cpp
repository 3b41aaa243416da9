#include "tessera/data/tokenizer_decoder.h"

#include <algorithm>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::data {
namespace {

// Replaces all occurrences of `from`. Throws DataError if the result exceeds `most` bytes.
std::string replaced(std::string_view text, std::string_view from, std::string_view to,
                     std::size_t most) {
  std::string out;
  const auto check_size = [&](std::size_t size) {
    if (size <= most) return;
    throw DataError(str("the tokenizer's decoder makes ", size, " bytes or more of ", quote(text),
                        "; must be at most ", most));
  };
  std::size_t done = 0;
  for (std::size_t at = text.find(from); at != std::string_view::npos; at = text.find(from, done)) {
    check_size(out.size() + at - done + to.size());
    out.append(text.substr(done, at - done)).append(to);
    done = at + from.size();
  }
  check_size(out.size() + text.size() - done);
  return out.append(text.substr(done));
}

std::string_view stripped(std::string_view text, const DecoderStep& step) {
  for (std::int64_t left = step.start; left > 0 && text.starts_with(step.from); --left) {
    text.remove_prefix(step.from.size());
  }
  for (std::int64_t left = step.stop; left > 0 && text.ends_with(step.from); --left) {
    text.remove_suffix(step.from.size());
  }
  return text;
}

// Converts "<0x0A>" to a byte; returns other tokens unchanged.
std::string byte_named(const std::string& token) {
  if (token.size() != 6 || token.compare(0, 3, "<0x") != 0 || token[5] != '>') return token;
  unsigned byte = 0;
  for (const char digit : {token[3], token[4]}) {
    const char low = static_cast<char>(digit | 0x20);
    if (digit >= '0' && digit <= '9') {
      byte = byte * 16 + static_cast<unsigned>(digit - '0');
    } else if (low >= 'a' && low <= 'f') {
      byte = byte * 16 + static_cast<unsigned>(low - 'a' + 10);
    } else {
      return token;
    }
  }
  return std::string(1, static_cast<char>(byte));
}

std::string decoded(std::string token, const DecoderStep& step, bool first, std::size_t most) {
  using Kind = DecoderStep::Kind;
  switch (step.kind) {
    case Kind::byte_level: {
      std::string bytes;
      return byte_alphabet().bytes(token, bytes) ? bytes : token;
    }
    case Kind::metaspace:
      return replaced(token, step.from, first && step.drop_first ? "" : " ", most);
    case Kind::replace: return replaced(token, step.from, step.to, most);
    case Kind::byte_fallback: return byte_named(token);
    case Kind::strip: return std::string(stripped(token, step));
    case Kind::fuse: break;
  }
  return token;
}

}  // namespace

TokenDecoder::TokenDecoder(const TokenizerSpec& spec, std::vector<std::string> tokens)
    : spaces_(!spec.decoder), tokens_(std::move(tokens)) {
  if (spec.decoder) {
    bool fused = false;
    for (const DecoderStep& step : *spec.decoder) {
      (fused ? all_ : each_).push_back(step);
      // Both produce a single text.
      fused |= step.kind == DecoderStep::Kind::fuse || step.kind == DecoderStep::Kind::byte_level;
    }
  }
  for (const DecoderStep& step : each_) first_differs_ |= step.kind == DecoderStep::Kind::metaspace;
  bytes_.reserve(tokens_.size());
  for (const std::string& token : tokens_) bytes_.push_back(one(token, false));
  if (!first_differs_) tokens_.clear();
}

std::string TokenDecoder::one(const std::string& token, bool first) const {
  std::string text = token;
  const std::size_t most = most_bytes_of(token.size());
  for (const DecoderStep& step : each_) text = decoded(std::move(text), step, first, most);
  return text;
}

std::string TokenDecoder::decode(std::span<const TokenId> ids) const {
  std::string out;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (spaces_ && i > 0) out += ' ';
    if (i == 0 && first_differs_) {
      out += one(tokens_[ids[i]], true);
    } else {
      out += bytes_[ids[i]];
    }
  }
  const std::size_t most = most_bytes_of(out.size());
  for (const DecoderStep& step : all_) out = decoded(std::move(out), step, true, most);
  return out;
}

}  // namespace tessera::data
