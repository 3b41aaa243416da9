#pragma once

#include <signal.h>
#include <sys/types.h>

#include <array>
#include <atomic>
#include <chrono>
#include <string>
#include <vector>

namespace tessera::process {

// [Note: stack of a thread] Call stack of the thread that created this object, readable from
// another thread. The thread gets a signal whose handler walks its stack; the reader resolves the
// symbol names. The signal carries the address of this object, so no global variable is needed.
class OwnStack {
 public:
  OwnStack();
  // Must run on the creating thread after the last read(), so that no signal is pending.
  ~OwnStack() = default;
  OwnStack(const OwnStack&) = delete;
  OwnStack& operator=(const OwnStack&) = delete;

  // Returns the calls, innermost first, as "module+0x1234 name". Only one thread may call it at a
  // time. Returns one line saying so if the thread does not respond, for example while it waits in
  // the kernel for a device.
  std::vector<std::string> read(std::chrono::milliseconds patience = std::chrono::seconds(1));

  static constexpr int kFrames = 20;

 private:
  friend std::vector<struct ThreadCalls> other_stacks(std::chrono::milliseconds patience);
  explicit OwnStack(pid_t thread);  // of another thread, which must be alive
  int send_request();
  enum State : int { idle, requested, walking, done };
  static int signal_number();
  static void on_signal(int number, siginfo_t* info, void* context);
  void walk(void* interrupted_at);

  pid_t thread_;
  // The first frames are those of the handler.
  std::array<void*, kFrames + 8> frames_{};
  int count_ = 0, first_ = 0;
  std::atomic<int> state_{idle};
};

// Call stack of one or more other threads. Threads with equal name and stack (idle workers) share
// an entry.
struct ThreadCalls {
  std::string name;  // from /proc/self/task/*/comm
  int threads = 1;
  std::vector<std::string> calls;  // in the format of OwnStack::read()
};
// Returns the stacks of all other threads of this process.
std::vector<ThreadCalls> other_stacks(
    std::chrono::milliseconds patience = std::chrono::milliseconds(200));

// Returns module and offset of a code address, as addr2line takes them, and the function name if
// known.
std::string describe_address(const void* address);

}  // namespace tessera::process
