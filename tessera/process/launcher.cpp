#include "tessera/process/launcher.h"

#include <poll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <limits>
#include <optional>
#include <system_error>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/fd.h"
#include "tessera/core/index.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/process/host_memory.h"
#include "tessera/process/lost_ranks.h"
#include "tessera/process/rank_output.h"
#include "tessera/process/rank_process.h"
#include "tessera/process/running_ranks.h"
#include "tessera/process/stdin_pump.h"

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

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kDrain = 1;        // seconds to read what exited ranks left in their pipes
constexpr double kUnkillable = 10;  // seconds after SIGKILL until a process is abandoned
constexpr int kTimeoutStatus = 124;

double now() {
  const auto time = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(time).count();
}

// Shutdown phase of a run that failed or was asked to stop.
enum class Phase { kRunning, kStopping, kGrace, kTerminated, kKilled };

class Launch {
 public:
  Launch(const LaunchOptions& options, const BlockedSignals& signals)
      : options_(options),
        signals_(signals),
        ranks_(options.ranks),
        output_(options.out, options.err, options.color),
        signal_fd_(::signalfd(-1, &signals.handled(), SFD_CLOEXEC | SFD_NONBLOCK)),
        lost_(options.recovery,
              {[this](const std::string& text) { say(text); },
               [this](int number) { return start(number, path_, true); }, ranks_}) {
    if (!signal_fd_.open()) throw Error(str("cannot create a signalfd: ", std::strerror(errno)));
  }

  LaunchResult run();

 private:
  std::optional<LaunchResult> start_all(const std::string& path);
  int start(int local, const std::string& path, bool is_replacement);
  void run_loop();
  void poll_once();
  void handle_signals();
  void handle_exits(const std::vector<const Rank*>& ended);
  void advance_phase();
  void terminate();
  void kill_all();
  void kill_unresponsive();
  bool finished() const;
  LaunchResult result();
  std::string describe_exit(const Rank& rank) const;
  std::string cause_of(const Rank& rank) const;
  std::string summary_of(const Rank& rank) const;
  void say(const std::string& text);

  const LaunchOptions& options_;
  const BlockedSignals& signals_;
  RunningRanks ranks_;
  RankOutput output_;
  Fd signal_fd_;
  StdinPump stdin_pump_;
  Phase phase_ = Phase::kRunning;
  double started_ = now();
  double deadline_ = kNever;        // of the current phase
  double drain_deadline_ = kNever;  // when to stop waiting for output of exited ranks
  int stop_signals_ = 0;            // number of stop signals received
  int stop_signal_ = 0;             // the first of them
  int terminated_ = 0;              // ranks still running when SIGTERM was sent
  bool abandoned_ = false;
  bool timed_out_ = false;
  OutOfMemoryKills out_of_memory_;
  const Rank* first_failed_ = nullptr;
  double failed_at_ = 0;
  std::string path_;  // of the program
  LostRanks lost_;
};

void Launch::say(const std::string& text) { output_.say(options_.name + ": " + text + "\n"); }

// Starts a rank. Returns 0, or the errno of a failed exec.
int Launch::start(int local, const std::string& path, bool is_replacement) {
  const int number = options_.node_rank * options_.ranks + local;
  ProcessSpec spec;
  spec.path = path;
  spec.arguments = options_.command;
  spec.environment = rank_environment(options_, local);
  spec.signal_mask = signals_.before();
  spec.inherited = options_.secret_fd;
  if (!options_.cpus.empty()) spec.cpus = nth(options_.cpus, local);
  Fd rank_in;
  if (number == 0 && !is_replacement) {
    rank_in = stdin_pump_.attach(options_.in);
    spec.in = rank_in.open() ? rank_in.get() : options_.in;
  }
  spec.out = options_.out;
  spec.err = options_.err;
  const RankOutput::Pipes pipes = options_.prefix ? output_.relay(number) : RankOutput::Pipes();
  if (options_.prefix) {
    spec.out = pipes.out.get();
    spec.err = pipes.err.get();
  }
  return is_replacement ? ranks_.restart(number, spec) : ranks_.start(number, spec);
}

std::optional<LaunchResult> Launch::start_all(const std::string& path) {
  path_ = path;
  lost_.begin();
  for (int local = 0; local < options_.ranks; ++local) {
    const int number = options_.node_rank * options_.ranks + local;
    if (const int error = start(local, path, false); error != 0) {
      kill_all();
      LaunchResult failure;
      failure.status = error == ENOENT ? 127 : 126;
      failure.failed_rank = number;
      failure.summary = str("cannot execute ", path, ": ", std::strerror(error));
      return failure;
    }
  }
  return std::nullopt;
}

void Launch::terminate() {
  terminated_ = ranks_.running();
  ranks_.terminate();
  phase_ = Phase::kTerminated;
  deadline_ = now() + options_.term_grace;
}

void Launch::kill_all() {
  ranks_.kill();
  phase_ = Phase::kKilled;
  deadline_ = now() + kUnkillable;
}

// Kills the ranks that ignored the stop signal.
void Launch::kill_unresponsive() {
  std::vector<std::string> numbers;
  for (const Rank& rank : ranks_.all()) {
    if (rank.running) numbers.push_back(str(rank.number));
  }
  say(str(numbers.size() == 1 ? "rank " : "ranks ", join(numbers, ", "), " did not exit within ",
          format_time(options_.stop_grace), " of ", signal_name(stop_signal_), ": killed"));
  kill_all();
}

void Launch::advance_phase() {
  if (options_.timeout > 0 && ranks_.running() > 0 && phase_ == Phase::kRunning &&
      now() >= started_ + options_.timeout) {
    timed_out_ = true;
    terminate();
  }
  if (now() < deadline_) return;
  switch (phase_) {
    case Phase::kRunning: break;
    case Phase::kStopping: kill_unresponsive(); break;
    case Phase::kGrace: terminate(); break;
    case Phase::kTerminated: kill_all(); break;
    case Phase::kKilled:
      for (const Rank& rank : ranks_.all()) {
        if (rank.running) say(str("process ", rank.pid, " survived SIGKILL and is left running"));
      }
      abandoned_ = true;
      deadline_ = kNever;
  }
}

void Launch::handle_exits(const std::vector<const Rank*>& ended) {
  if (ended.empty()) return;
  if (phase_ == Phase::kRunning && first_failed_ == nullptr) {
    lost_.replace(ended, [&](const Rank& rank) { return describe_exit(rank) + cause_of(rank); });
  }
  if (first_failed_ == nullptr) {
    // If several exited together, the one killed by a signal is the cause; the others reacted to
    // it.
    for (const Rank* rank : ended) {
      if (!rank->failed()) continue;
      if (first_failed_ == nullptr ||
          (rank->exited_by_signal && !first_failed_->exited_by_signal)) {
        first_failed_ = rank;
      }
    }
    if (first_failed_ != nullptr) {
      failed_at_ = now();
      if (options_.on_failure) {
        options_.on_failure(first_failed_->number, describe_exit(*first_failed_));
      }
    }
    if (first_failed_ != nullptr && phase_ == Phase::kRunning) {
      phase_ = Phase::kGrace;
      deadline_ = failed_at_ + options_.grace;
    }
  }
  if (ranks_.running() == 0) {
    deadline_ = kNever;
    drain_deadline_ = now() + kDrain;
  }
}

void Launch::handle_signals() {
  signalfd_siginfo info{};
  while (::read(signal_fd_.get(), &info, sizeof info) == sizeof info) {
    const int signal = static_cast<int>(info.ssi_signo);
    switch (signal) {
      case SIGCHLD: break;  // run_loop() checks all ranks
      case SIGUSR1:
      case SIGUSR2: ranks_.send(signal); break;
      case SIGTSTP:
        ranks_.send_groups(SIGSTOP);
        ::kill(::getpid(), SIGSTOP);
        ranks_.send_groups(SIGCONT);
        break;
      default:
        if (++stop_signals_ == 1) {
          stop_signal_ = signal;
          ranks_.send_groups(signal);
          if (phase_ == Phase::kRunning) {
            phase_ = Phase::kStopping;
            deadline_ = now() + options_.stop_grace;
          }
        } else {
          kill_all();
        }
    }
  }
}

void Launch::poll_once() {
  std::vector<pollfd> polls = {{signal_fd_.get(), POLLIN, 0},
                               {options_.recovery.reports_fd, POLLIN, 0}};
  output_.add_to(polls);
  stdin_pump_.add_to(polls);
  double until = std::min({deadline_, drain_deadline_, lost_.due()});
  if (options_.timeout > 0 && phase_ == Phase::kRunning) {
    until = std::min(until, started_ + options_.timeout);
  }
  int wait_ms = -1;
  if (until != kNever) {
    wait_ms = static_cast<int>(std::clamp(std::ceil((until - now()) * 1000), 0.0, 1e6));
  }
  if (::poll(polls.data(), polls.size(), wait_ms) <= 0) return;
  output_.act_on(polls);
  stdin_pump_.act_on(polls);
  if (polls[0].revents != 0) handle_signals();
}

bool Launch::finished() const {
  if (ranks_.running() > 0) return abandoned_;
  if (stop_signals_ > 1) return true;  // do not wait for an output that is not read
  return (!output_.relaying() || now() >= drain_deadline_) && output_.written();
}

LaunchResult Launch::result() {
  LaunchResult result;
  result.asked = stop_signals_ > 0;
  const Rank* rank = first_failed_;
  if (timed_out_) {
    result.status = kTimeoutStatus;
    result.summary = str("reached the timeout of ", format_time(options_.timeout), "; ",
                         terminated_, " of ", ranks_.all().size(), " ranks had to be terminated");
    return result;
  }
  if (rank == nullptr) {
    result.status = abandoned_ ? 1 : 0;
    return result;
  }
  result.status = rank->status();
  result.failed_rank = rank->number;
  result.summary = summary_of(*rank);
  for (const Rank& each : ranks_.all()) {
    if (!each.failed() || each.terminated) continue;
    result.failures.push_back(
        {each.number, each.status(), each.exited_by_signal, summary_of(each)});
  }
  const auto when = [&](const RankFailure& failure) {
    return nth(ranks_.all(), failure.rank - ranks_.all().front().number).ended_at;
  };
  std::stable_sort(result.failures.begin(), result.failures.end(),
                   [&](const auto& a, const auto& b) { return when(a) < when(b); });
  return result;
}

std::string Launch::describe_exit(const Rank& rank) const {
  return str("rank ", rank.number, " (pid ", rank.pid, ") ",
             rank.exited_by_signal ? "was killed by " + signal_name(rank.code)
                                   : str("exited with status ", rank.code),
             " after ", format_time(rank.ended_at - started_));
}

// Returns the likely cause of a SIGKILL that the launcher did not send.
std::string Launch::cause_of(const Rank& rank) const {
  const bool explain = rank.exited_by_signal && rank.code == SIGKILL && !rank.terminated;
  return explain ? ", " + out_of_memory_.verdict() : "";
}

std::string Launch::summary_of(const Rank& rank) const {
  std::string text = describe_exit(rank) + cause_of(rank);
  if (terminated_ > 0) {
    text += str("; ", terminated_, terminated_ == 1 ? " other" : " others", " did not exit within ",
                format_time(options_.grace), " and had to be terminated");
  }
  return text;
}

void Launch::run_loop() {
  while (true) {
    if (phase_ == Phase::kRunning) lost_.handle_reports(now());
    handle_exits(ranks_.reap(now()));
    advance_phase();
    if (finished()) return;
    poll_once();
  }
}

LaunchResult Launch::run() {
  std::string search_path = "/usr/local/bin:/usr/bin:/bin";
  for (const std::string& entry : options_.environment) {
    if (entry.starts_with("PATH=")) search_path = entry.substr(5);
  }
  const std::string& program = options_.command.front();
  const std::string path = find_program(program, search_path);
  std::optional<LaunchResult> failure;
  if (path.empty()) {
    const bool here =
        program.find('/') == std::string::npos && ::access(program.c_str(), X_OK) == 0;
    failure =
        LaunchResult{127, -1,
                     str("cannot find the program ", quote(program),
                         here ? "; did you mean ./" + program + "?" : "",
                         program.find('/') == std::string::npos ? " (searched in PATH)" : "")};
  } else {
    failure = start_all(path);
  }
  run_loop();
  // The summary comes after the last output of the ranks.
  output_.finish();
  LaunchResult answer = failure ? *failure : result();
  if (const int error = output_.error(); error != 0) {
    if (answer.status == 0) answer.status = 1;
    say(str("cannot write the output: ", std::strerror(error),
            error == EFBIG ? " (see ulimit -f)" : ""));
  }
  if (options_.report && !answer.summary.empty()) say(answer.summary);
  run_loop();
  return answer;
}

}  // namespace

LaunchResult launch(const LaunchOptions& options, const BlockedSignals& signals) {
  if (options.command.empty()) throw UsageError("no program to run was given");
  return Launch(options, signals).run();
}

}  // namespace tessera::process
