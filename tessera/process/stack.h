#pragma once

#include <signal.h>
#include <sys/types.h>

#include <array>
#include <atomic>
#include <chrono>
#include <string>
#include <vector>

namespace tessera::process {

// [Note: stack of a thread] The calls that the thread which made this is in, for another thread to
// ask for. The asked one gets a signal, whose handler walks up its stack; names are found by who
// asks. The signal carries the address of this object, so that no global says where to write.
class OwnStack {
 public:
  OwnStack();
  // By the thread that made it, when nobody asks any more: what is under way has then arrived.
  ~OwnStack() = default;
  OwnStack(const OwnStack&) = delete;
  OwnStack& operator=(const OwnStack&) = delete;

  // From any one thread, innermost call first: "module+0x1234 name". One line that says so if the
  // thread does not answer, as when it waits in the kernel for a device.
  std::vector<std::string> read(std::chrono::milliseconds patience = std::chrono::seconds(1));

  static constexpr int kFrames = 20;

 private:
  friend std::vector<struct ThreadCalls> other_stacks(std::chrono::milliseconds patience);
  explicit OwnStack(pid_t thread);  // another one's, for as long as it lives
  int ask();
  enum State : int { idle, asked, walking, done };
  static int signal_number();
  static void on_signal(int number, siginfo_t* info, void* context);
  void walk(void* interrupted_at);

  pid_t thread_;
  // Above the thread's own calls are those of the handler.
  std::array<void*, kFrames + 8> frames_{};
  int count_ = 0, first_ = 0;
  std::atomic<int> state_{idle};
};

// The calls that all other threads of this process are in. Threads that do the same (workers that
// wait for work) are one entry.
struct ThreadCalls {
  std::string name;  // as the system has it
  int threads = 1;
  std::vector<std::string> calls;  // as OwnStack::read() gives them
};
std::vector<ThreadCalls> other_stacks(
    std::chrono::milliseconds patience = std::chrono::milliseconds(200));

// What is known of an address of code: module and offset, as addr2line takes them, and the function
// if the module names it.
std::string describe_address(const void* address);

}  // namespace tessera::process
