#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/models/decoder.h"
#include "tessera/models/sampling.h"

namespace tessera::models {

// Options of generate().
struct GenerateOptions {
  std::int64_t tokens = 100;  // maximum new tokens for each text
  Sampling sampling;
  std::uint64_t seed = 0;
};

// Callback for each new token of a text. Returning false ends the text.
using OnToken = std::function<bool(std::size_t text, std::int64_t token)>;

// Statistics of generate().
struct Generated {
  std::int64_t tokens = 0;         // new tokens of all texts
  std::int64_t stepped = 0;        // new tokens from steps; the others follow from reading prompts
  std::int64_t read = 0;           // tokens of prompts
  double read_s = 0, write_s = 0;  // with sampling
};
// Continues texts, as many concurrently as the decoder has slots; a free slot takes the next text.
// The result of a text depends only on the text, its number, the seed and the model, not on other
// texts; on the CPU this holds bitwise. Texts end at the decoder's capacity.
Generated generate(Decoder& decoder, std::span<const std::vector<std::int64_t>> texts,
                   const GenerateOptions& options, const OnToken& on_token);

// Stream of the bytes of a text. Holds back bytes that cannot be shown yet: an incomplete
// character, and a possible beginning of a stop text.
class TextStream {
 public:
  explicit TextStream(std::vector<std::string> stops = {});
  // Adds bytes. Returns the text that can be shown now; "" after a stop.
  std::string push(std::string_view bytes);
  // Ends the stream. Returns the text that was held back. An incomplete character becomes U+FFFD.
  std::string finish();
  bool stopped() const { return stopped_; }

 private:
  std::string take(bool all);

  const std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace tessera::models
