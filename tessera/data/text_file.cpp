#include "tessera/data/source.h"
#include "tessera/data/token_views.h"
#include "tessera/data/windows.h"

namespace tessera::data {

std::unique_ptr<Source> text_file(const std::string& path, std::int64_t seq, std::uint64_t seed) {
  WindowOptions options;
  options.seq = seq;
  options.seed = seed;
  options.order = Order::random;
  return windows(text_tokens(path), options, decode_bytes);
}

}  // namespace tessera::data
