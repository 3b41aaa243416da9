// A loop over all threads that torch may use.
#pragma once

#include <ATen/Parallel.h>

#include <cstdint>

namespace tessera::nn {

// [Note: parallel_for] at::parallel_for is a template, and what it does is decided where it is
// compiled: without -fopenmp it runs on one thread and says nothing; with it, the compiler's own
// OpenMP runtime comes into the program beside the one that torch brought, and the threads of each
// wait for work where the other's want to run. Ours finds the runtime that torch has loaded, by the
// entry that GCC's and LLVM's both have, so both share one pool. Bodies must not depend on how
// the range is cut: results have the same bits on any number of threads.

// Numbers to work on that are worth waking a thread for: some ten microseconds.
constexpr std::int64_t kGrain = 1 << 15;

// As a grain of items with so many numbers each.
constexpr std::int64_t grain_of(std::int64_t numbers) {
  return numbers > 0 && numbers < kGrain ? kGrain / numbers : 1;
}

// f(from, to) over parts of [begin, end), of `grain` items at least, each on a thread of its
// own; at::get_thread_num() tells them apart. What one of them throws is thrown here when all have
// ended.
template <class F>
void parallel_for(std::int64_t begin, std::int64_t end, std::int64_t grain, const F& f);

// Whether torch's runtime was found; without it all loops run on the thread that calls, and a
// warning said so.
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
