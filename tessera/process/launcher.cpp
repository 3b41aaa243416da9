#include "tessera/process/launcher.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::process {

std::vector<std::string> rank_environment(const LaunchOptions& options, int local_rank) {
  const int rank = options.node_rank * options.ranks + local_rank;
  const int world = options.nodes * options.ranks;
  std::vector<std::pair<std::string, std::string>> ours = {
      {"RANK", str(rank)},
      {"LOCAL_RANK", str(local_rank)},
      {"WORLD_SIZE", str(world)},
      {"LOCAL_WORLD_SIZE", str(options.ranks)},
      {"NODE_RANK", str(options.node_rank)},
      {"GROUP_RANK", str(options.node_rank)},
      {"GROUP_WORLD_SIZE", str(options.nodes)},
      {"ROLE_RANK", str(rank)},
      {"ROLE_WORLD_SIZE", str(world)},
      {"ROLE_NAME", "default"},
      {"MASTER_ADDR", options.master_addr},
      {"MASTER_PORT", str(options.master_port)},
      {"TORCHELASTIC_USE_AGENT_STORE", "False"},  // [Note: two stores]
      {"TORCHELASTIC_RUN_ID", options.run_id},
      {"TORCHELASTIC_RESTART_COUNT", "0"},
      {"TORCHELASTIC_MAX_RESTARTS", "0"},
  };
  if (!options.store.empty()) ours.emplace_back("TESSERA_STORE", options.store);
  if (!options.interface.empty()) ours.emplace_back("TESSERA_INTERFACE", options.interface);
  if (options.secret_fd >= 0) ours.emplace_back("TESSERA_SECRET_FD", str(options.secret_fd));
  if (options.threads > 0) ours.emplace_back("OMP_NUM_THREADS", str(options.threads));

  std::vector<std::string> result;
  for (const std::string& entry : options.environment) {
    const std::string name = entry.substr(0, entry.find('='));
    const bool replaced =
        std::any_of(ours.begin(), ours.end(), [&](const auto& pair) { return pair.first == name; });
    if (!replaced) result.push_back(entry);
  }
  for (const auto& [name, value] : ours) result.push_back(name + "=" + value);
  return result;
}

void check_open_files(int ranks) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  // The ranks inherit what is open now (some builds of torch leave files open that they read at
  // startup). The launcher also needs the store, signals, the guard and the pipes of a starting
  // process, and for every rank a store connection and two pipes. A rank needs the store, files,
  // and for every other rank a connection and a process handle.
  constexpr rlim_t kBase = 16, kEach = 3;
  std::error_code full;  // set if no descriptor is left to read the folder
  const std::filesystem::directory_iterator own("/proc/self/fd", full);
  const auto open =
      full ? limit.rlim_cur : static_cast<rlim_t>(std::distance(begin(own), end(own)));
  const rlim_t needed = open + kBase + kEach * static_cast<rlim_t>(ranks);
  if (limit.rlim_cur >= needed) return;
  throw Error(str(ranks, ranks == 1 ? " rank needs" : " ranks need", " about ", needed,
                  " open files per process, but the limit is ", limit.rlim_cur,
                  ". Raise it (ulimit -n ", needed, ") or start fewer ranks."));
}

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name != nullptr ? str("SIG", name) : str("signal ", signal);
}

namespace {

// Thread that reads the signals. Global because signal handlers take no argument.
std::atomic<pid_t> launching{0};

extern "C" void tessera_forward_signal(int signal) {
  const int error = errno;
  ::syscall(SYS_tgkill, ::getpid(), launching.load(), signal);
  errno = error;
}

}  // namespace

BlockedSignals::BlockedSignals() {
  sigemptyset(&handled_);
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP}) {
    // Signals ignored at startup (nohup, background job of a script) stay ignored, by the ranks
    // too.
    struct sigaction action {};
    ::sigaction(signal, nullptr, &action);
    if (action.sa_handler != SIG_IGN) sigaddset(&handled_, signal);
  }
  sigaddset(&handled_, SIGCHLD);
  // Handling SIGCHLD also matters when the parent left it ignored: exit statuses would be
  // discarded. A write to a closed output or past the file size limit must fail, not raise a
  // signal.
  sigset_t blocked = handled_;
  sigaddset(&blocked, SIGPIPE);
  sigaddset(&blocked, SIGXFSZ);
  // Blocked before the handlers are installed: a handler on this thread would resend its signal to
  // itself forever.
  ::pthread_sigmask(SIG_BLOCK, &blocked, &before_);
  launching = static_cast<pid_t>(::syscall(SYS_gettid));
  for (int signal = 1; signal < NSIG; ++signal) {
    if (sigismember(&handled_, signal) != 1) continue;
    struct sigaction ours {
    }, before{};
    ours.sa_handler = &tessera_forward_signal;
    ours.sa_flags = SA_RESTART;
    if (::sigaction(signal, &ours, &before) == 0) actions_before_.emplace_back(signal, before);
  }
}

BlockedSignals::~BlockedSignals() {
  // Discards pending SIGPIPE and SIGXFSZ: the failed writes were already handled as errors.
  sigset_t writes;
  sigemptyset(&writes);
  sigaddset(&writes, SIGPIPE);
  sigaddset(&writes, SIGXFSZ);
  const timespec no_wait{};
  while (::sigtimedwait(&writes, nullptr, &no_wait) > 0) {
  }
  for (const auto& [signal, action] : actions_before_) ::sigaction(signal, &action, nullptr);
  ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

}  // namespace tessera::process
