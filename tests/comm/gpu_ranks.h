#pragma once

// Ranks as processes that use a GPU. The test program itself never uses CUDA, because the children
// of a process that has used CUDA cannot use it.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tessera/comm/secret.h"
#include "tessera/comm/shm/backend.h"
#include "tessera/comm/socket_peers.h"
#include "tests/comm/file_store.h"
#include "tests/temporary_folder.h"

namespace tessera::comm::testing {

class GpuRanks {
 public:
  using Body = std::function<void(std::shared_ptr<Backend> host, std::shared_ptr<Peers> peers)>;

  GpuRanks(int ranks, const Body& body, GroupOptions options = {}) {
    std::fflush(nullptr);
    for (int r = 0; r < ranks; ++r) {
      const pid_t pid = fork();
      if (pid == 0) _exit(run(r, ranks, body, options));
      pids_.push_back(pid);
    }
  }
  ~GpuRanks() {
    for (const pid_t pid : pids_) {
      if (pid <= 0) continue;
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
  }

  void send_signal(int rank, int number) { kill(pids_[static_cast<std::size_t>(rank)], number); }

  // Expects a rank to end without a failed expectation or an exception.
  void expect_success(int rank, std::chrono::seconds limit = std::chrono::seconds(120)) {
    pid_t& pid = pids_[static_cast<std::size_t>(rank)];
    const auto end = std::chrono::steady_clock::now() + limit;
    int status = 0;
    while (waitpid(pid, &status, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() > end) {
        ADD_FAILURE() << "rank " << rank << " still runs after " << limit.count() << " s";
        return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    pid = 0;
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
        << "rank " << rank << " ended with status " << status << "; see above";
  }

 private:
  int run(int rank, int ranks, const Body& body, GroupOptions options) const {
    int status = 0;
    try {
      auto store = make_file_store(folder_.path);
      auto peers = connect_peers(*store, rank, ranks, {std::chrono::seconds(60), secret_});
      std::vector<int> members;
      for (int r = 0; r < ranks; ++r) members.push_back(r);
      auto host = shm::make_backend(peers, members, "world", options);
      body(std::move(host), std::move(peers));
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %d threw: %s\n", rank, error.what());
      status = 1;
    }
    if (::testing::Test::HasFailure()) status = 1;
    std::fflush(nullptr);
    return status;
  }

  TemporaryFolder folder_;
  const std::string secret_ = random_secret();
  std::vector<pid_t> pids_;
};

inline void run_gpu_ranks(int ranks, const GpuRanks::Body& body, GroupOptions options = {}) {
  GpuRanks processes(ranks, body, options);
  for (int r = 0; r < ranks; ++r) processes.expect_success(r);
}

// Returns the result of `question` in a separate process, truncated to 500 characters.
inline std::string ask_in_child(const std::function<std::string()>& question) {
  int ends[2];
  if (pipe(ends) != 0) return "";
  std::fflush(nullptr);
  const pid_t pid = fork();
  if (pid == 0) {
    const std::string answer = question().substr(0, 500);
    const auto written = write(ends[1], answer.data(), answer.size());
    _exit(written < 0 ? 1 : 0);
  }
  close(ends[1]);
  std::string answer;
  char buffer[512];
  for (ssize_t got = 0; (got = read(ends[0], buffer, sizeof(buffer))) > 0;) {
    answer.append(buffer, static_cast<std::size_t>(got));
  }
  close(ends[0]);
  waitpid(pid, nullptr, 0);
  return answer;
}

}  // namespace tessera::comm::testing
