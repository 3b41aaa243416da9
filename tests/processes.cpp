#include "tests/processes.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <sstream>
#include <thread>
#include <utility>

#include "tessera/core/index.h"

namespace tessera {

bool wait_until(const std::function<bool()>& condition, double seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

bool is_gone(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  if (!std::getline(file, text)) return true;
  const std::size_t name_end = text.rfind(')');
  return name_end == std::string::npos || text.substr(name_end + 2, 1) == "Z";
}

Capture::Capture() : fd_(::memfd_create("capture", MFD_CLOEXEC)) {}

std::string Capture::text() const {
  std::string text(as_size(::lseek(fd(), 0, SEEK_END)), '\0');
  const ssize_t count = ::pread(fd(), text.data(), text.size(), 0);
  text.resize(as_size(count < 0 ? 0 : count));
  return text;
}

std::vector<std::string> Capture::lines() const {
  std::vector<std::string> result;
  std::istringstream stream(text());
  for (std::string line; std::getline(stream, line);) result.push_back(line);
  return result;
}

Child::Child(const std::function<int()>& body) {
  pid_ = ::fork();
  if (pid_ == 0) ::_exit(body());
}

Child::~Child() {
  if (waited_) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

void Child::signal(int number) const { ::kill(pid_, number); }

int Child::wait() {
  int status = 0;
  if (!wait_until([&] { return ::waitpid(pid_, &status, WNOHANG) == pid_; })) return -1;
  waited_ = true;
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

int execute(const std::vector<std::string>& command, Capture& out, Capture& err,
            const std::function<void()>& prepare) {
  Child child([&] {
    std::vector<char*> arguments;
    for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    ::dup2(out.fd(), 1);
    ::dup2(err.fd(), 2);
    if (prepare) prepare();
    ::execv(arguments[0], arguments.data());
    return 127;
  });
  return child.wait();
}

Outcome outcome_of(const std::vector<std::string>& command, const std::function<void()>& prepare) {
  Capture out, err;
  const int status = execute(command, out, err, prepare);
  return {status, out.text(), err.text()};
}

}  // namespace tessera
