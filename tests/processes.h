#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "tessera/core/fd.h"
#include "tests/text.h"

namespace tessera {

// The bound of every wait in these tests: it only tells a hang from slowness.
constexpr double kHang = 60;

bool wait_until(const std::function<bool()>& condition, double seconds = kHang);

// Runs no more: gone, or a zombie that its parent has yet to collect.
bool is_gone(pid_t pid);

// How a command ended.
struct Outcome {
  int status = -1;
  std::string out, err;
};

// A file in memory that collects output.
class Capture {
 public:
  Capture();
  int fd() const { return fd_.get(); }
  std::string text() const;
  std::vector<std::string> lines() const;

 private:
  Fd fd_;
};

// A process that runs `body` and exits with what it returns.
class Child {
 public:
  explicit Child(const std::function<int()>& body);
  ~Child();  // kills what is still there
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) const;
  // The exit status as a shell shows it (128 + signal), or -1 when it hangs.
  int wait();

 private:
  pid_t pid_ = -1;
  bool waited_ = false;
};

// Runs a program with our environment, and returns its status; output goes to the captures.
// `prepare` runs in its process before it: for limits and such.
int execute(const std::vector<std::string>& command, Capture& out, Capture& err,
            const std::function<void()>& prepare = {});
// The same, with what it wrote.
Outcome outcome_of(const std::vector<std::string>& command,
                   const std::function<void()>& prepare = {});

}  // namespace tessera
