#include "tessera/process/running_ranks.h"

#include <sys/wait.h>

#include <algorithm>

#include "tessera/core/index.h"

namespace tessera::process {

RunningRanks::RunningRanks(int most) : guard_(most) { ranks_.reserve(as_size(most)); }

int RunningRanks::start(int number, const ProcessSpec& spec) {
  const Started started = start_process(spec);
  if (started.exec_errno != 0) return started.exec_errno;
  Rank rank;
  rank.number = number;
  rank.pid = started.pid;
  rank.running = true;
  ranks_.push_back(rank);
  guard_.watch(rank.pid);
  return 0;
}

Rank& RunningRanks::find(int number) {
  return *std::find_if(ranks_.begin(), ranks_.end(),
                       [&](const Rank& rank) { return rank.number == number; });
}

int RunningRanks::restart(int number, const ProcessSpec& spec) {
  const Started started = start_process(spec);
  if (started.exec_errno != 0) return started.exec_errno;
  Rank& rank = find(number);
  rank = {};
  rank.number = number;
  rank.pid = started.pid;
  rank.running = true;
  guard_.watch(rank.pid);
  return 0;
}

void RunningRanks::excuse(int number) { find(number).excused = true; }

int RunningRanks::running() const {
  return static_cast<int>(
      std::count_if(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.running; }));
}

void RunningRanks::send(int signal) const {
  for (const Rank& rank : ranks_) {
    if (rank.running) ::kill(rank.pid, signal);
  }
}

// A process group id is not reused until its leader is reaped, so no unrelated process is hit.
void RunningRanks::send_groups(int signal) const {
  for (const Rank& rank : ranks_) {
    if (rank.running) ::kill(-rank.pid, signal);
  }
}

void RunningRanks::terminate() {
  for (Rank& rank : ranks_) rank.terminated = rank.running;
  send_groups(SIGTERM);
  send_groups(SIGCONT);  // a stopped process handles SIGTERM only after SIGCONT
}

void RunningRanks::kill() {
  for (Rank& rank : ranks_) rank.terminated = rank.terminated || rank.running;
  send_groups(SIGKILL);
}

std::vector<const Rank*> RunningRanks::reap(double now) {
  std::vector<const Rank*> ended;
  for (Rank& rank : ranks_) {
    if (!rank.running) continue;
    siginfo_t info{};
    const auto id = static_cast<id_t>(rank.pid);
    if (::waitid(P_PID, id, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) continue;
    // Kills the rank's descendants. The rank is not reaped yet, so the group id is still its own.
    ::kill(-rank.pid, SIGKILL);
    guard_.forget(rank.pid);
    ::waitid(P_PID, id, &info, WEXITED);
    rank.running = false;
    rank.exited_by_signal = info.si_code != CLD_EXITED;
    rank.code = info.si_status;
    rank.ended_at = now;
    ended.push_back(&rank);
  }
  return ended;
}

}  // namespace tessera::process
