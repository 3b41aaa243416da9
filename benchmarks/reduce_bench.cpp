// Measures the work of one rank in an all-reduce or a reduce-scatter, compared with memcpy on the
// same memory:
//   reduce/<type>/<sources>/<destinations>/<in place>/<bytes of each source>
// Bytes are those read and written, also for memcpy. Run two at once, each on its own core (taskset
// -c), to see how the cores share memory bandwidth.
#include <benchmark/benchmark.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <vector>

#include "tessera/comm/copy.h"
#include "tessera/comm/reduce.h"

namespace tessera::comm {
namespace {

// Shared memory like symmetric memory, because its pages differ from those of the heap.
class Shared {
 public:
  explicit Shared(std::size_t bytes) : bytes_(bytes) {
    const int file = memfd_create("reduce_bench", 0);
    if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0) std::abort();
    data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (data_ == MAP_FAILED) std::abort();
    std::memset(data_, 0, bytes);
  }
  Shared(Shared&& other) noexcept : bytes_(other.bytes_), data_(other.data_) {
    other.data_ = nullptr;
  }
  Shared(const Shared&) = delete;
  ~Shared() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  void* data() const { return data_; }

 private:
  std::size_t bytes_;
  void* data_;
};

void reduce_bench(benchmark::State& state, DType type) {
  const auto sources = static_cast<std::size_t>(state.range(0));
  const auto destinations = static_cast<std::size_t>(state.range(1));
  const bool in_place = state.range(2) != 0;
  const auto bytes = static_cast<std::size_t>(state.range(3));
  std::vector<Shared> memory;
  for (std::size_t i = 0; i < sources + (in_place ? 0 : destinations); ++i) {
    memory.emplace_back(bytes);
  }
  std::vector<const void*> from;
  std::vector<void*> to;
  for (std::size_t s = 0; s < sources; ++s) from.push_back(memory[s].data());
  for (std::size_t d = 0; d < destinations; ++d) {
    to.push_back(memory[in_place ? d : sources + d].data());
  }
  for (auto _ : state) {
    reduce({.in = type, .out = type}, from, to, bytes / size_of(type));
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() *
                          static_cast<std::int64_t>((sources + destinations) * bytes));
}

void copy_bench(benchmark::State& state) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  const Shared from(bytes), to(bytes);
  for (auto _ : state) {
    copy_bytes(to.data(), from.data(), bytes);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(2 * bytes));
}

constexpr std::int64_t kKiB = 1 << 10, kMiB = 1 << 20;

void shapes(benchmark::internal::Benchmark* bench) {
  for (const std::int64_t bytes : {4 * kKiB, 64 * kKiB, kMiB, 25 * kMiB / 2, 50 * kMiB}) {
    bench->Args({2, 2, 1, bytes});
    bench->Args({2, 2, 0, bytes});
    bench->Args({2, 1, 0, bytes});
    bench->Args({4, 4, 1, bytes / 2});
    bench->Args({8, 8, 1, bytes / 4});
  }
}

BENCHMARK(copy_bench)
    ->Name("copy")
    ->Arg(4 * kKiB)
    ->Arg(64 * kKiB)
    ->Arg(kMiB)
    ->Arg(25 * kMiB / 2)
    ->Arg(50 * kMiB);
BENCHMARK_CAPTURE(reduce_bench, f32, DType::f32)->Name("reduce/f32")->Apply(shapes);
BENCHMARK_CAPTURE(reduce_bench, bf16, DType::bf16)->Name("reduce/bf16")->Apply(shapes);
BENCHMARK_CAPTURE(reduce_bench, f16, DType::f16)->Name("reduce/f16")->Apply(shapes);

}  // namespace
}  // namespace tessera::comm

BENCHMARK_MAIN();
