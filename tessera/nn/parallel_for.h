// Parallel loop over the threads that torch may use.
#pragma once

#include <ATen/Parallel.h>

#include <cstdint>

namespace tessera::nn {

// [Note: parallel_for] at::parallel_for is a template whose behavior depends on how the calling
// code is compiled. Without -fopenmp it silently runs on one thread. With it, the program links the
// compiler's OpenMP runtime in addition to torch's, and the threads of one runtime spin where those
// of the other want to run. This implementation finds the runtime that torch has loaded, through an
// entry point that GCC's and LLVM's runtimes share, so both use one pool. Bodies must not depend on
// how the range is split: results have the same bits for any number of threads.

// Amount of work, in numbers, that justifies waking a thread: about ten microseconds.
constexpr std::int64_t kGrain = 1 << 15;

// Returns kGrain as a number of items with `numbers` numbers each.
constexpr std::int64_t grain_of(std::int64_t numbers) {
  return numbers > 0 && numbers < kGrain ? kGrain / numbers : 1;
}

// Calls f(from, to) for parts of [begin, end) with at least `grain` items each, every part on its
// own thread; at::get_thread_num() identifies it. If a part throws, one of the exceptions is
// rethrown after all parts have ended.
template <class F>
void parallel_for(std::int64_t begin, std::int64_t end, std::int64_t grain, const F& f);

// Returns whether torch's runtime was found. Without it a warning is logged, and all loops run on
// the calling thread.
bool has_threads();

namespace detail {

using Part = void (*)(const void* f, std::int64_t from, std::int64_t to);

std::int64_t parts_of(std::int64_t count, std::int64_t grain);
void run_parts(std::int64_t begin, std::int64_t end, std::int64_t parts, Part part, const void* f);

}  // namespace detail

template <class F>
void parallel_for(std::int64_t begin, std::int64_t end, std::int64_t grain, const F& f) {
  if (begin >= end) return;
  const std::int64_t parts = detail::parts_of(end - begin, grain);
  if (parts <= 1) {
    f(begin, end);
    return;
  }
  const detail::Part part = [](const void* it, std::int64_t from, std::int64_t to) {
    (*static_cast<const F*>(it))(from, to);
  };
  detail::run_parts(begin, end, parts, part, &f);
}

}  // namespace tessera::nn
