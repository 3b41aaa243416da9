#include "tessera/nn/parallel_for.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <exception>

#include "tessera/core/log.h"

namespace tessera::nn {
namespace {

// Functions that GCC compiles "omp parallel" to. LLVM's runtime, which some builds of torch use,
// also provides them.
struct Runtime {
  void (*parallel)(void (*body)(void*), void* with, unsigned threads, unsigned flags) = nullptr;
  int (*thread)() = nullptr;
  int (*threads)() = nullptr;

  bool found() const { return parallel != nullptr && thread != nullptr && threads != nullptr; }
};

template <class Function>
void find(const char* name, Function& to) {
  to = reinterpret_cast<Function>(::dlsym(RTLD_DEFAULT, name));
}

const Runtime& runtime() {
  static const Runtime found = [] {
    Runtime r;
    find("GOMP_parallel", r.parallel);
    find("omp_get_thread_num", r.thread);
    find("omp_get_num_threads", r.threads);
    if (!r.found()) {
      Logger().warn(
          "Torch's OpenMP runtime is not loaded, so Tessera's CPU kernels run on one thread per "
          "rank. Link LibTorch as a shared library.");
    }
    return r;
  }();
  return found;
}

struct Work {
  std::int64_t begin, end, parts;
  detail::Part part;
  const void* f;
  std::atomic<bool> failed{false};
  std::exception_ptr error = nullptr;

  void run() {
    const std::int64_t count = end - begin, size = (count + parts - 1) / parts;
    const std::int64_t thread = runtime().thread(), threads = runtime().threads();
    const at::internal::ThreadIdGuard guard(static_cast<int>(thread));
    // The runtime may provide fewer threads than requested.
    for (std::int64_t p = thread; p < parts; p += threads) {
      const std::int64_t from = begin + p * size, to = std::min(end, from + size);
      if (from >= to) return;
      try {
        part(f, from, to);
      } catch (...) {
        if (!failed.exchange(true)) error = std::current_exception();
      }
    }
  }
};

}  // namespace

bool has_threads() { return runtime().found(); }

namespace detail {

std::int64_t parts_of(std::int64_t count, std::int64_t grain) {
  if (count <= std::max<std::int64_t>(grain, 1) || !has_threads()) return 1;
  const std::int64_t threads = at::get_num_threads();
  if (threads <= 1 || at::in_parallel_region()) return 1;
  const std::int64_t most = grain > 0 ? (count + grain - 1) / grain : count;
  return std::min(threads, most);
}

void run_parts(std::int64_t begin, std::int64_t end, std::int64_t parts, Part part, const void* f) {
  Work work{begin, end, parts, part, f};
  // Uses all threads, as torch does, even for fewer parts: a team of another size would end
  // threads, and the next loop would have to start them again.
  runtime().parallel([](void* it) { static_cast<Work*>(it)->run(); }, &work,
                     static_cast<unsigned>(at::get_num_threads()), 0);
  if (work.error) std::rethrow_exception(work.error);
}

}  // namespace detail
}  // namespace tessera::nn
