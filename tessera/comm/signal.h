#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>

namespace tessera::comm {

// Returns whether value >= goal for sequence numbers that wrap and differ by less than 2^31.
inline bool reached(std::uint32_t value, std::uint32_t goal) noexcept {
  return static_cast<std::int32_t>(value - goal) >= 0;
}

inline void relax() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");  // longer than `yield`, which is a no-op on many cores
#endif
}

// A number in shared memory that one rank raises and others wait for, first spinning, then on a
// futex. Zeroed memory is a valid Signal. It has its own cache line, so that waiting does not slow
// accesses to adjacent data.
struct alignas(64) Signal {
  std::atomic<std::uint32_t> value;
  std::atomic<std::uint32_t> sleepers;

  // Sequentially consistent on both sides: either the raiser sees the sleeper, or the sleeper (the
  // kernel re-reads the value for it) sees the raise.
  void raise(std::uint32_t to) noexcept {
    value.store(to, std::memory_order_seq_cst);
    wake();
  }
  void notify() noexcept {  // for several notifiers; waiters only look for a change
    value.fetch_add(1, std::memory_order_seq_cst);
    wake();
  }
  bool at(std::uint32_t goal) const noexcept {
    return reached(value.load(std::memory_order_acquire), goal);
  }

  // Spins until the goal is reached or `budget` has passed. Returns whether it was reached.
  bool spin(std::uint32_t goal, std::chrono::nanoseconds budget) const noexcept {
    if (at(goal)) return true;
    if (budget.count() <= 0) return false;
    const auto end = std::chrono::steady_clock::now() + budget;
    do {
      for (int i = 0; i < 32; ++i) {
        relax();
        if (at(goal)) return true;
      }
    } while (std::chrono::steady_clock::now() < end);
    return false;
  }

  // Sleeps while the value is `seen`, for at most `slice`. May return early.
  void sleep(std::uint32_t seen, std::chrono::nanoseconds slice) noexcept {
    sleepers.fetch_add(1, std::memory_order_seq_cst);
    timespec limit{};
    limit.tv_sec = static_cast<time_t>(slice.count() / 1'000'000'000);
    limit.tv_nsec = static_cast<long>(slice.count() % 1'000'000'000);
    syscall(SYS_futex, &value, FUTEX_WAIT, seen, &limit, nullptr, 0);
    sleepers.fetch_sub(1, std::memory_order_seq_cst);
  }

 private:
  void wake() noexcept {
    if (sleepers.load(std::memory_order_seq_cst) != 0) {
      syscall(SYS_futex, &value, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
    }
  }
};
static_assert(sizeof(Signal) == 64 && std::atomic<std::uint32_t>::is_always_lock_free);

}  // namespace tessera::comm
