#include "tessera/data/source.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "tessera/core/text.h"

namespace tessera::data {

std::string Source::where(std::uint64_t sample) const { return str("sample ", sample); }

void blank(const Row& row) {
  std::fill(row.ids.begin(), row.ids.end(), Token{0});
  std::fill(row.targets.begin(), row.targets.end(), kIgnored);
  std::fill(row.starts.begin(), row.starts.end(), 0);
}

Batch Source::batch(std::uint64_t first, std::int64_t count) const {
  const auto options = at::TensorOptions().dtype(at::kLong);
  Batch out{at::empty({count, seq()}, options), at::empty({count, seq()}, options), 0};
  if (separate()) out.document_starts = at::empty({count, seq()}, options.dtype(at::kInt));
  const auto length = static_cast<std::size_t>(seq());
  auto* const ids = out.ids.mutable_data_ptr<Token>();
  auto* const targets = out.targets.mutable_data_ptr<Token>();
  auto* const starts = separate() ? out.document_starts.mutable_data_ptr<std::int32_t>() : nullptr;
  for (std::int64_t b = 0; b < count; ++b) {
    Row row{{ids + b * seq(), length}, {targets + b * seq(), length}};
    if (starts != nullptr) row.starts = {starts + b * seq(), length};
    fill(first + static_cast<std::uint64_t>(b), row);
    out.predicted += std::count_if(row.targets.begin(), row.targets.end(),
                                   [](Token t) { return t != kIgnored; });
  }
  return out;
}

}  // namespace tessera::data
