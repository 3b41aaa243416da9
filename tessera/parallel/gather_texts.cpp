#include "tessera/parallel/gather_texts.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>

namespace tessera::parallel {

// Gathers the lengths first, then the texts padded to the longest.
std::vector<std::string> gather_texts(const comm::Group& group, const std::string& mine,
                                      const char* label) {
  // Simulated ranks have the same text as this one.
  if (group.simulated()) return {static_cast<std::size_t>(group.size()), mine};
  comm::Call call;
  call.traffic = comm::Traffic::control;
  call.label = label;
  const at::Tensor length = at::full({1}, static_cast<std::int64_t>(mine.size()), at::kLong);
  const at::Tensor lengths = at::empty({group.size()}, at::kLong);
  group.all_gather(lengths, length, call).wait();
  const std::int64_t most = std::max<std::int64_t>(1, lengths.max().item<std::int64_t>());
  const at::Tensor text = at::zeros({most}, at::kByte);
  std::memcpy(text.mutable_data_ptr(), mine.data(), mine.size());
  const at::Tensor texts = at::empty({group.size() * most}, at::kByte);
  group.all_gather(texts, text, call).wait();
  std::vector<std::string> all;
  for (int r = 0; r < group.size(); ++r) {
    const auto* const from = static_cast<const char*>(texts.const_data_ptr()) + r * most;
    all.emplace_back(from, static_cast<std::size_t>(lengths[r].item<std::int64_t>()));
  }
  return all;
}

}  // namespace tessera::parallel
