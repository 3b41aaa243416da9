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

struct GenerateOptions {
  std::int64_t tokens = 100;  // to write for each text, at most
  Sampling sampling;
  std::uint64_t seed = 0;
};

// A text was given a token, and goes on unless the answer is false.
using OnToken = std::function<bool(std::size_t text, std::int64_t token)>;

// Continues texts, as many at once as the decoder has slots; a slot that is free takes the next
// one. What a text becomes depends on it, its number, the seed and the model alone: not on the
// others, and on the CPU not in the last bit. Texts as long as the decoder's capacity end there.
struct Generated {
  std::int64_t tokens = 0;   // written, of all texts
  std::int64_t stepped = 0;  // of those, in steps: the others came from reading
  std::int64_t read = 0;     // tokens of prompts
  double read_s = 0, write_s = 0;
};
Generated generate(Decoder& decoder, std::span<const std::vector<std::int64_t>> texts,
                   const GenerateOptions& options, const OnToken& on_token);

// Bytes of a text as they come, held back where they may not be shown yet: a character that has
// only begun, and what may be the beginning of a text that ends it all.
class TextStream {
 public:
  explicit TextStream(std::vector<std::string> stops = {});
  // What can be shown now. After a stop, nothing.
  std::string push(std::string_view bytes);
  // No more comes: what was held back. A character that never ended becomes U+FFFD.
  std::string finish();
  bool stopped() const { return stopped_; }

 private:
  std::string take(bool all);

  const std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace tessera::models
