#pragma once

// Ranks as processes, for what threads cannot show: death, signals, and memory that is really
// passed from one process to another.

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tessera/comm/secret.h"
#include "tessera/comm/shm/backend.h"
#include "tessera/comm/socket_peers.h"
#include "tests/comm/file_store.h"
#include "tests/temporary_folder.h"

namespace tessera::comm::testing {

inline void require(bool good, const std::string& what) {
  if (!good) throw std::runtime_error(what);
}

class Processes {
 public:
  using Body = std::function<void(std::shared_ptr<Backend>)>;

  using PeersBody = std::function<void(std::shared_ptr<Peers>)>;

  // Forks the ranks. Each runs `body` and exits 0, or writes the text of its exception and exits 1.
  // `per_host` consecutive ranks appear to be on one host; 0 puts all ranks on one.
  Processes(int ranks, const PeersBody& body, int per_host = 0) : per_host_(per_host) {
    for (int r = 0; r < ranks; ++r) {
      const pid_t pid = fork();
      if (pid == 0) _exit(run(r, ranks, body));
      setpgid(pid, group_ == 0
                       ? pid
                       : group_);  // parent and child both call it, because either may run first
      if (group_ == 0) group_ = pid;
      pids_.push_back(pid);
    }
  }
  Processes(int ranks, const Body& body, GroupOptions options = {})
      : Processes(ranks, PeersBody([=](std::shared_ptr<Peers> peers) {
                    std::vector<int> members;
                    for (int r = 0; r < ranks; ++r) members.push_back(r);
                    body(shm::make_backend(std::move(peers), members, "world", options));
                  })) {}

  ~Processes() {
    for (const pid_t pid : pids_) {
      if (pid <= 0) continue;
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
    kill(-group_, SIGKILL);  // processes that the ranks started
  }

  void signal(int rank, int number) { kill(pids_[index(rank)], number); }

  // Waits until the rank calls note(rank, name). Returns false after `limit`.
  bool await_note(int rank, const std::string& name,
                  std::chrono::seconds limit = std::chrono::seconds(100)) const {
    const auto end = std::chrono::steady_clock::now() + limit;
    while (!std::filesystem::exists(file(rank, name))) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return true;
  }

  // Returns the wait status, or -1 if the rank has not ended in time.
  int await_end(int rank, std::chrono::milliseconds limit) {
    const auto end = std::chrono::steady_clock::now() + limit;
    pid_t& pid = pids_[index(rank)];
    int status = 0;
    while (waitpid(pid, &status, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() > end) return -1;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    pid = 0;
    return status;
  }

  // Leaves a note on behalf of a rank, for ranks that wait for it.
  void leave_note(int rank, const std::string& name) const { std::ofstream(file(rank, name)); }

  std::string error(int rank) const { return read(file(rank, "error")); }
  pid_t pid(int rank) const { return pids_[index(rank)]; }
  pid_t group() const { return group_; }  // the process group of the ranks and what they start

  // Called by ranks: note() records that a rank reached this point, await_note_of() waits for it.
  static void note(int rank, const std::string& name) { std::ofstream(note_file(rank, name)); }
  static void await_note_of(int rank, const std::string& name) {
    while (!std::filesystem::exists(note_file(rank, name))) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }

 private:
  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }
  static std::string note_file(int rank, const std::string& name) {
    return "note." + name + "." + std::to_string(rank);
  }
  std::string file(int rank, const std::string& name) const {
    return folder_ / note_file(rank, name);
  }
  static std::string read(const std::string& path) {
    std::ifstream in(path);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  int run(int rank, int ranks, const PeersBody& body) const {
    try {
      setpgid(0, group_);
      prctl(PR_SET_PDEATHSIG, SIGKILL);             // so that the rank ends with an aborted test
      std::filesystem::current_path(folder_.path);  // the folder of the notes
      auto store = make_file_store(folder_.path);
      PeersOptions options{std::chrono::seconds(60), secret_};
      options.address = "127.0.0.1";
      if (per_host_ > 0) options.host = "host " + std::to_string(rank / per_host_);
      body(connect_peers(*store, rank, ranks, options));
      return 0;
    } catch (const std::exception& error) {
      std::ofstream(file(rank, "error")) << error.what();
      return 1;
    }
  }

  const int per_host_;
  TemporaryFolder folder_;
  const std::string secret_ = random_secret();
  std::vector<pid_t> pids_;
  pid_t group_ = 0;
};

}  // namespace tessera::comm::testing
