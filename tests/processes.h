#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "tessera/core/fd.h"
#include "tests/text.h"

namespace tessera {

// Deadline in seconds of every wait in these tests, long enough for a slow machine.
constexpr double kHang = 60;

bool wait_until(const std::function<bool()>& condition, double seconds = kHang);

// Returns true if the process has ended, even if its parent has not waited for it yet.
bool is_gone(pid_t pid);

// Exit status and output of a command.
struct Outcome {
  int status = -1;
  std::string out, err;
};

// File in memory that collects output.
class Capture {
 public:
  Capture();
  int fd() const { return fd_.get(); }
  std::string text() const;
  std::vector<std::string> lines() const;

 private:
  Fd fd_;
};

// Process that runs `body` and exits with its return value.
class Child {
 public:
  explicit Child(const std::function<int()>& body);
  ~Child();  // kills the process if it still runs
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) const;
  // Returns the exit status as a shell shows it (128 + signal), or -1 after the deadline.
  int wait();

 private:
  pid_t pid_ = -1;
  bool waited_ = false;
};

// Runs a program with this process's environment and returns its status. Output goes to the
// captures. `prepare` runs in the new process before the program, for example to set limits.
int execute(const std::vector<std::string>& command, Capture& out, Capture& err,
            const std::function<void()>& prepare = {});
// The same, but returns the output too.
Outcome outcome_of(const std::vector<std::string>& command,
                   const std::function<void()>& prepare = {});

}  // namespace tessera
