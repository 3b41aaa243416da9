#include "tessera/comm/hierarchical/memory.h"

#include <functional>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::comm::hierarchical {

class HostMemories::Memory final : public SymmetricMemory {
 public:
  Memory(std::shared_ptr<HostMemories> table, std::shared_ptr<SymmetricMemory> local,
         std::uint64_t number)
      : table_(std::move(table)), local_(std::move(local)), number_(number) {}
  ~Memory() override { table_->remove(number_); }

  void* part(int rank) const override {
    const Layout& layout = table_->layout_;
    if (layout.host(rank) != layout.host(table_->rank_)) {
      throw UsageError(str("rank ", table_->rank_, " cannot access the symmetric memory of rank ",
                           rank, ", which is on another host; over two-level, a rank can access ",
                           "only that of its own host, here ranks ",
                           layout.rank(layout.host(table_->rank_), 0), " to ",
                           layout.rank(layout.host(table_->rank_), layout.per_host - 1)));
    }
    return local_->part(layout.local(rank));
  }
  std::size_t part_bytes() const override { return local_->part_bytes(); }

 private:
  const std::shared_ptr<HostMemories> table_;
  const std::shared_ptr<SymmetricMemory> local_;
  const std::uint64_t number_;
};

std::shared_ptr<SymmetricMemory> HostMemories::add(std::shared_ptr<SymmetricMemory> local) {
  std::lock_guard lock(mutex_);
  memories_[++last_] = local;
  return std::make_shared<Memory>(shared_from_this(), std::move(local), last_);
}

void HostMemories::remove(std::uint64_t number) {
  std::lock_guard lock(mutex_);
  memories_.erase(number);
}

Address HostMemories::address(const void* pointer, std::size_t bytes) const {
  const auto* begin = static_cast<const std::byte*>(pointer);
  const std::less_equal<> before;  // a total order, also of unrelated pointers
  std::lock_guard lock(mutex_);
  for (const auto& [number, memory] : memories_) {
    const auto* base = static_cast<const std::byte*>(memory->part(layout_.local(rank_)));
    if (before(base, begin) && before(begin + bytes, base + memory->part_bytes())) {
      return {number, static_cast<std::uint64_t>(begin - base)};
    }
  }
  return {};
}

const std::byte* HostMemories::resolve(const Address& address, int local) const {
  std::lock_guard lock(mutex_);
  const auto found = memories_.find(address.memory);
  if (found == memories_.end()) return nullptr;
  return static_cast<const std::byte*>(found->second->part(local)) + address.offset;
}

}  // namespace tessera::comm::hierarchical
