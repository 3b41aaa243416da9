#include "tessera/process/stack.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>

#include "tessera/core/errors.h"
#include "tessera/core/index.h"
#include "tessera/core/text.h"

namespace tessera::process {
namespace {

constexpr std::size_t kLongestName = 160;

// Returns the program counter at the time of the signal; null on unsupported architectures.
void* interrupted_at(const void* context) {
  [[maybe_unused]] const auto& machine = static_cast<const ucontext_t*>(context)->uc_mcontext;
#if defined(__aarch64__)
  return reinterpret_cast<void*>(machine.pc);
#elif defined(__x86_64__)
  return reinterpret_cast<void*>(machine.gregs[REG_RIP]);
#else
  return nullptr;
#endif
}

std::string readable(const char* symbol) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(
      abi::__cxa_demangle(symbol, nullptr, nullptr, &status), &std::free);
  std::string text = status == 0 && name ? name.get() : symbol;
  if (text.size() > kLongestName) text = text.substr(0, kLongestName) + "…";
  return text;
}

}  // namespace

// The first unused realtime signal, chosen once and never released: a signal may arrive after
// read() has timed out, and without a handler it would kill the process.
int OwnStack::signal_number() {
  static const int chosen = [] {
    for (int number = SIGRTMIN; number <= SIGRTMAX; ++number) {
      struct sigaction before {};
      if (::sigaction(number, nullptr, &before) != 0 || before.sa_handler != SIG_DFL) continue;
      struct sigaction ours {};
      ours.sa_sigaction = &OwnStack::on_signal;
      ours.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK;
      sigfillset(&ours.sa_mask);
      if (::sigaction(number, &ours, nullptr) == 0) return number;
    }
    throw Error("reading thread stacks needs a realtime signal, but all are in use");
  }();
  return chosen;
}

OwnStack::OwnStack() : OwnStack(static_cast<pid_t>(::syscall(SYS_gettid))) {}

OwnStack::OwnStack(pid_t thread) : thread_(thread) {
  signal_number();
  // The first call of backtrace() loads a library, which a signal handler must not do.
  ::backtrace(frames_.data(), 1);
}

void OwnStack::on_signal(int, siginfo_t* info, void* context) {
  // Signals from other processes carry an arbitrary address.
  if (info->si_code != SI_QUEUE || info->si_pid != ::getpid()) return;
  const int error = errno;
  static_cast<OwnStack*>(info->si_value.sival_ptr)->walk(interrupted_at(context));
  errno = error;
}

void OwnStack::walk(void* interrupted_at) {
  int expected = requested;
  if (!state_.compare_exchange_strong(expected, walking)) return;
  count_ = ::backtrace(frames_.data(), static_cast<int>(frames_.size()));
  void** const end = frames_.data() + count_;
  void** const at = std::find(frames_.data(), end, interrupted_at);
  first_ = at == end ? 0 : static_cast<int>(at - frames_.data());
  state_.store(done, std::memory_order_release);
}

// Returns 0 or errno. Uses the thread id because threads started elsewhere have no known pthread_t.
int OwnStack::send_request() {
  siginfo_t info{};
  info.si_signo = signal_number();
  info.si_code = SI_QUEUE;
  info.si_pid = ::getpid();
  info.si_uid = ::getuid();
  info.si_value.sival_ptr = this;
  const long result = ::syscall(SYS_rt_tgsigqueueinfo, ::getpid(), thread_, signal_number(), &info);
  return result == 0 ? 0 : errno;
}

std::vector<ThreadCalls> other_stacks(std::chrono::milliseconds patience) {
  const std::string self = std::to_string(::syscall(SYS_gettid));
  std::vector<ThreadCalls> all;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task", error)) {
    const std::string number = entry.path().filename().string();
    if (number == self) continue;
    ThreadCalls one;
    std::getline(std::ifstream(entry.path() / "comm"), one.name);
    std::unique_ptr<OwnStack> stack(new OwnStack(static_cast<pid_t>(std::stol(number))));
    one.calls = stack->read(patience);
    // The handler may still run and write into the object, so it is leaked.
    if (stack->state_.load() != OwnStack::idle) stack.release();
    const auto same = std::find_if(all.begin(), all.end(), [&](const ThreadCalls& each) {
      return each.name == one.name && each.calls == one.calls;
    });
    if (same == all.end()) {
      all.push_back(std::move(one));
    } else {
      ++same->threads;
    }
  }
  return all;
}

std::vector<std::string> OwnStack::read(std::chrono::milliseconds patience) {
  // A request that timed out before is still pending.
  if (int expected = idle; state_.compare_exchange_strong(expected, requested)) {
    if (const int error = send_request(); error != 0) {
      state_.store(idle);
      return {str("cannot read the stack: ", std::generic_category().message(error))};
    }
  }
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (state_.load(std::memory_order_acquire) != done) {
    if (std::chrono::steady_clock::now() >= deadline) return {"the thread did not respond"};
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::vector<std::string> lines;
  for (int i = first_; i < std::min(count_, first_ + kFrames); ++i) {
    // All but the innermost are return addresses, which may belong to the next function.
    const auto* const address = static_cast<const char*>(nth(frames_, i));
    lines.push_back(describe_address(i == first_ ? address : address - 1));
  }
  state_.store(idle, std::memory_order_release);
  return lines;
}

std::string describe_address(const void* address) {
  const auto number = reinterpret_cast<std::uintptr_t>(address);
  Dl_info info{};
  if (::dladdr(address, &info) == 0 || info.dli_fname == nullptr) return "0x" + hex(number);
  const std::string_view path = info.dli_fname;
  const auto base = reinterpret_cast<std::uintptr_t>(info.dli_fbase);
  std::string line = str(path.substr(path.rfind('/') + 1), "+0x", hex(number - base));
  if (info.dli_sname != nullptr) line += " " + readable(info.dli_sname);
  return line;
}

}  // namespace tessera::process
