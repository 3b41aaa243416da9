#pragma once

// Shared by the tests of access control: an in-memory store, ranks as threads, and strangers.

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/comm/secret.h"
#include "tessera/comm/socket.h"
#include "tessera/comm/socket_peers.h"
#include "tessera/comm/store.h"
#include "tessera/core/errors.h"
#include "tests/text.h"

namespace tessera::comm::testing {

using namespace std::chrono_literals;

// Limit of every wait, long enough to distinguish a hang from slowness.
constexpr auto kHang = 60s;
constexpr uid_t kNobody = 65534;

inline std::chrono::steady_clock::time_point hang() {
  return std::chrono::steady_clock::now() + kHang;
}

inline bool wait_until(const std::function<bool()>& condition) {
  for (const auto end = hang(); !condition();) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(2ms);
  }
  return true;
}

// In-memory store without access control.
class MemoryStore final : public Store {
 public:
  void set(const std::string& key, const std::string& value) override {
    std::lock_guard lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
  }
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, timeout, [&] { return values_.contains(key); })) {
      throw StoreTimeout("no " + key);
    }
    return values_[key];
  }
  std::int64_t count(const std::string& key) override {
    std::lock_guard lock(mutex_);
    return ++counts_[key];
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
  std::map<std::string, std::int64_t> counts_;
};

// Starts a rank of a job as a thread, which connects and returns its peers, or throws.
inline std::future<std::shared_ptr<Peers>> start_rank(Store& store, int rank, int size,
                                                      const PeersOptions& options) {
  return std::async(std::launch::async, [&store, rank, size, options] {
    return connect_peers(store, rank, size, options);
  });
}

// Returns the name of the socket at which a rank listens, which any user can read in
// /proc/net/unix.
inline std::string socket_name(Store& store, int rank) {
  return "tessera-" + store.get("peers/" + std::to_string(rank), kHang).substr(0, 32);
}

inline Fd call_unix(const std::string& name) {
  Fd socket;
  EXPECT_TRUE(wait_until([&] { return (socket = try_connect_unix(name)).open(); }));
  return socket;
}

// Returns whether the other side has closed the connection; ignores data that it sent before.
inline bool is_closed(const Fd& socket) {
  char buffer[4096];
  ssize_t got = 0;
  while ((got = recv(socket.get(), buffer, sizeof(buffer), MSG_DONTWAIT)) > 0) {
  }
  return got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
}

// Returns the result of `body` in a process of another user; -1 if it does not end. Requires root.
inline int as_nobody(const std::function<int()>& body) {
  const pid_t pid = fork();
  if (pid == 0) {
    if (setgid(kNobody) != 0 || setuid(kNobody) != 0) _exit(100);
    _exit(body());
  }
  int status = 0;
  if (!wait_until([&] { return waitpid(pid, &status, WNOHANG) == pid; })) {
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    return -1;
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

template <typename Exception, typename Action>
std::string message_of(const Action& action) {
  try {
    action();
  } catch (const Exception& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another kind of exception: " << error.what();
    return "";
  }
  ADD_FAILURE() << "no exception";
  return "";
}

}  // namespace tessera::comm::testing
