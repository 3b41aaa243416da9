#include "tessera/zero/buffers.h"

#include "tessera/comm/backend.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

namespace tessera::zero {

bool Buffers::shares(const comm::Group& group) { return group.size() > 1 && group.shares_memory(); }

Buffer Buffers::own(std::int64_t count, at::TensorOptions options, MemoryCategory category) const {
  const memory::OwnerScope owner(ledger_);
  const memory::CategoryScope scope(category);
  return {at::zeros({count}, options), nullptr};
}

Buffer Buffers::exposed(const comm::Group& group, std::int64_t count, at::TensorOptions options,
                        MemoryCategory category) const {
  if (!shares(group) || !options.device().is_cpu()) return own(count, options, category);
  const at::ScalarType dtype = c10::typeMetaToScalarType(options.dtype());
  const auto bytes = count * static_cast<std::int64_t>(c10::elementSize(dtype));
  auto charge = std::make_shared<memory::Charge>(ledger_, category, bytes);
  return {group.symmetric({count}, dtype).local(), std::move(charge)};
}

Buffer Buffers::common(const comm::Group& group, std::int64_t count, at::TensorOptions options,
                       MemoryCategory category) const {
  const at::ScalarType dtype = c10::typeMetaToScalarType(options.dtype());
  const std::int64_t part = (count + group.size() - 1) / group.size();
  auto charge = std::make_shared<memory::Charge>(
      ledger_, category, part * static_cast<std::int64_t>(c10::elementSize(dtype)));
  // The ranks' parts are contiguous in memory and together form the buffer.
  auto memory = group.symmetric({part}, dtype).memory();
  void* const base = memory->part(0);
  return {at::from_blob(
              base, {count}, [memory](void*) {}, at::dtype(dtype)),
          std::move(charge)};
}

}  // namespace tessera::zero
