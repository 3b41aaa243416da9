#include "tessera/memory/allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <limits>
#include <new>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/memory/device_memory.h"

namespace tessera::memory {
namespace {

// Ledger and category of the allocations of a thread.
struct ThreadState {
  std::shared_ptr<Ledger> ledger;
  MemoryCategory category = MemoryCategory::temporary;
};
ThreadState& thread_state() {
  thread_local ThreadState state;
  return state;
}

// Stored before the data. It shares ownership of the ledger, which therefore lives as long as the
// last tensor charged to it.
struct alignas(BlockCache::kAlignment) Header {
  std::shared_ptr<Ledger> ledger;
  std::size_t bytes;  // requested from the cache, including this header
  std::int64_t charged;
  MemoryCategory category;
};
static_assert(sizeof(Header) == BlockCache::kAlignment);

// Never destroyed: tensors may be freed by destructors of statics.
BlockCache& cache() {
  static auto* const blocks = new BlockCache();
  return *blocks;
}

void free_block(void* data) {
  if (data == nullptr) return;
  Header* const header = static_cast<Header*>(data) - 1;
  if (header->ledger) header->ledger->release(header->category, header->charged);
  const std::size_t bytes = header->bytes;
  if (c10::memoryProfilingEnabled()) {
    c10::reportMemoryUsageToProfiler(data, -header->charged, 0, 0, c10::Device(c10::kCPU));
  }
  header->~Header();
  cache().give(header, bytes);
}

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::Device device(c10::DeviceType::CPU);
    if (bytes == 0) return {nullptr, nullptr, &free_block, device};
    const ThreadState& state = thread_state();
    if (bytes > static_cast<std::size_t>(std::numeric_limits<std::int64_t>::max()) / 2) {
      throw OutOfMemoryError(out_of_memory_message(state.ledger.get(), state.category,
                                                   std::numeric_limits<std::int64_t>::max(),
                                                   "which exceeds the address space"));
    }
    const std::int64_t charged = charged_bytes(static_cast<std::int64_t>(bytes));
    const bool counted = state.ledger && state.ledger->counts_host();
    if (counted) state.ledger->charge(state.category, charged);
    const std::size_t block = static_cast<std::size_t>(charged) + sizeof(Header);
    void* const memory = cache().take(block);
    if (memory == nullptr) {
      if (counted) state.ledger->release(state.category, charged);
      throw OutOfMemoryError(out_of_memory_message(state.ledger.get(), state.category, charged,
                                                   "which the system cannot provide"));
    }
    auto* const header =
        new (memory) Header{counted ? state.ledger : nullptr, block, charged, state.category};
    void* const data = header + 1;
    if (c10::memoryProfilingEnabled()) {
      c10::reportMemoryUsageToProfiler(data, charged, 0, 0, device);
    }
    return {data, data, &free_block, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

CountingAllocator& allocator() {
  static auto* const instance = new CountingAllocator();
  return *instance;
}

}  // namespace

void install() {
  // A static initializer runs once, and other threads wait until it is done.
  [[maybe_unused]] static const bool done = [] {
    c10::SetCPUAllocator(&allocator(), 1);
    return true;
  }();
}
bool installed() { return c10::GetCPUAllocator() == &allocator(); }

OwnerScope::OwnerScope(std::shared_ptr<Ledger> ledger)
    : report_(ledger && !ledger->counts_host() ? report_device_memory(ledger) : nullptr),
      previous_(std::exchange(thread_state().ledger, std::move(ledger))) {}
OwnerScope::~OwnerScope() { thread_state().ledger = std::move(previous_); }
std::shared_ptr<Ledger> current_ledger() { return thread_state().ledger; }

CategoryScope::CategoryScope(MemoryCategory category)
    : previous_(std::exchange(thread_state().category, category)) {}
CategoryScope::~CategoryScope() { thread_state().category = previous_; }
MemoryCategory current_category() { return thread_state().category; }

CacheCounts cache_counts() { return cache().counts(); }

}  // namespace tessera::memory
