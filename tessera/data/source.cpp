#include "tessera/data/source.h"

#include <ATen/ops/empty.h>

#include <algorithm>

namespace tessera::data {

Batch Source::batch(std::uint64_t first, std::int64_t count) const {
  const auto options = at::TensorOptions().dtype(at::kLong);
  Batch out{at::empty({count, seq()}, options), at::empty({count, seq()}, options), 0};
  const auto length = static_cast<std::size_t>(seq());
  auto* const ids = out.ids.mutable_data_ptr<Token>();
  auto* const targets = out.targets.mutable_data_ptr<Token>();
  for (std::int64_t b = 0; b < count; ++b) {
    const std::span<Token> row(targets + b * seq(), length);
    fill(first + static_cast<std::uint64_t>(b), {ids + b * seq(), length}, row);
    out.predicted += std::count_if(row.begin(), row.end(), [](Token t) { return t != kIgnored; });
  }
  return out;
}

}  // namespace tessera::data
