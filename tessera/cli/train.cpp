// tessera train: trains a model, on ranks that it starts or on the ranks of a launcher.

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/lock.h"
#include "tessera/cli/command_line.h"
#include "tessera/cli/commands.h"
#include "tessera/cli/plan_flags.h"
#include "tessera/cli/scratch_folder.h"
#include "tessera/comm/backend_kind.h"
#include "tessera/comm/bootstrap.h"
#include "tessera/comm/launch.h"
#include "tessera/core/errors.h"
#include "tessera/core/fd.h"
#include "tessera/core/index.h"
#include "tessera/core/log.h"
#include "tessera/core/message_of.h"
#include "tessera/core/most_ranks.h"
#include "tessera/core/text.h"
#include "tessera/process/cpu_topology.h"
#include "tessera/process/failure_notes.h"
#include "tessera/process/host_memory.h"
#include "tessera/process/launcher.h"
#include "tessera/process/own_ranks.h"
#include "tessera/train/config.h"
#include "tessera/train/config_checks.h"
#include "tessera/train/memory_check.h"
#include "tessera/train/metrics.h"
#include "tessera/train/recovery.h"
#include "tessera/train/session.h"

namespace tessera::cli {
namespace {

constexpr const char* kTrainExamples =
    "  tessera train                                    trains to sort digits, on 2 ranks\n"
    "  tessera train --zero 3 --ranks 4 --layout bf16\n"
    "  tessera train --layers 6 --hidden 512 --heads 8 --vocab 8192 --seq 256 --micro-batch 4\n"
    "  tessera train --data book.txt --seq 256 --steps 2000 --metrics out.jsonl\n"
    "  tessera train --data book.txt --val-fraction 0.2 --seq 64 --eval-every 100 --tensorboard "
    "tb\n"
    "  tessera train --global-batch 256 --micro-batch 8 --zero 1 --trace trace.json\n"
    "  tessera train --dp 2 --tp 2 --pp 2 --zero 1 --grad-accum 8 --threads 1\n"
    "  tessera train --zero 2 --print-config > run.toml; tessera train --config run.toml\n"
    "  mpirun -n 4 tessera train --zero 2               (joins the ranks of a launcher)\n"
    "  tessera train --backend dry --ranks 64 --zero 3 --steps 3    memory of one rank of 64\n"
    "\n"
    "Flags override the file of --config. Ctrl-C ends the run after the current step.";

struct Given {
  std::vector<std::pair<std::string, std::string>> flags;  // in the order of the command line
  std::string config;
  bool print_config = false;
  bool dashboard = false;
};

// Exit status of a run whose last save failed, but that was configured to continue.
constexpr int kNotSaved = 3;
// Exit status of a rank that could not write its report and has printed the error. The status of
// the job is 1.
constexpr int kNotReported = 4;

// Checks before training that the --save folder is writable, and locks it against other writers
// while the result exists ([Note: one writer]).
std::optional<checkpoint::FolderLock> claim_folder(const train::RunConfig& config) {
  if (config.save.empty()) return std::nullopt;
  try {
    std::optional<checkpoint::FolderLock> lock(std::in_place, config.save, "tessera train");
    if (!lock->missing().empty()) {
      write_all(2, str("tessera train: warning: --save: ", lock->missing(), "\n"));
    }
    checkpoint::try_folder(*checkpoint::local_files(), config.save);
    return lock;
  } catch (const Error& error) {
    throw UsageError(Flag("save"), error.what());
  }
}

// Signal that requested a stop, or 0. Set by the handler, read between steps.
std::atomic<int>& stop_signal() {
  static std::atomic<int> signal{0};
  return signal;
}
static_assert(std::atomic<int>::is_always_lock_free);

void finish_the_step_on(int signal) {
  struct sigaction action {};
  // Under nohup the signal must stay ignored.
  const bool may_be_ignored = signal == SIGHUP || signal == SIGQUIT;
  ::sigaction(signal, nullptr, &action);
  if (may_be_ignored && action.sa_handler == SIG_IGN) return;
  action = {};
  action.sa_handler = [](int number) { stop_signal().store(number); };
  // A second Ctrl-C ends the program immediately. SIGTERM may arrive twice unintentionally: from a
  // service manager and from the launcher.
  action.sa_flags = SA_RESTART | (signal == SIGINT ? SA_RESETHAND : 0);
  ::sigaction(signal, &action, nullptr);
}

// 1 if a checkpoint was requested since the last step.
std::atomic<int>& save_requested() {
  static std::atomic<int> requested{0};
  return requested;
}

void save_on(int signal) {
  struct sigaction action {};
  action.sa_handler = [](int) { save_requested().store(1); };
  action.sa_flags = SA_RESTART;
  ::sigaction(signal, &action, nullptr);
}

// Returns true if `tessera train` itself started this rank and can restart it.
bool started_here() {
  const char* const run = std::getenv("TORCHELASTIC_RUN_ID");
  return run != nullptr && std::string_view(run).starts_with("tessera-train-");
}

int train_on_rank(train::RunConfig config, const train::Resolved& resolved) {
  if (config.max_restarts > 0 && !started_here()) {
    if (comm::detect_launch().rank == 0) {
      write_all(2,
                "tessera train: warning: --max-restarts: has no effect; ranks are restarted only "
                "if tessera train itself starts several on this machine\n");
    }
    config.max_restarts = 0;
  }
  if (config.recover > 0 && !started_here()) {
    throw UsageError(Flag("recover"),
                     str("got ", config.recover, ", but lost ranks are replaced only if tessera ",
                         "train itself starts the ranks, several of them. Omit --recover, or start "
                         "without a launcher."));
  }
  ::signal(SIGPIPE, SIG_IGN);  // a closed pipe must not end the training
  stop_signal().store(0);      // initialize the statics before the handlers use them
  save_requested().store(0);
  save_on(SIGUSR1);
  const auto request = [] {
    if (stop_signal().load() != 0) return train::RunRequest::stop;
    return save_requested().exchange(0) != 0 ? train::RunRequest::save : train::RunRequest::none;
  };
  train::Ended ended = train::Ended::done;
  std::atomic<std::int64_t> last_step{-1};
  try {
    comm::InitOptions init;
    init.backend = std::string(name(config.backend));
    init.cuda = config.device == Device::cuda;
    init.comm.link = train::link_options(config);
    init.comm.timeout = std::chrono::milliseconds(std::llround(config.peer_timeout * 1000));
    init.dry_ranks = train::ranks_wanted(config);
    init.dry_rank = train::dry_rank(config);
    const auto giving_up = [&](const std::string& why) {
      process::note_failure(comm::detect_launch().rank, last_step, why);
    };
    // Installed after init: until then signals end the process, since there is nothing to save.
    const auto joined = [] {
      for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) finish_the_step_on(signal);
    };
    const train::SessionNotes notes{&last_step, giving_up};
    if (config.recover > 0) {
      ended = train::run_recoverable(config, resolved, init, joined, request, notes);
    } else {
      const comm::Group world = comm::init(init);
      joined();
      ended = train::run_session(config, world, request, notes);
    }
  } catch (const std::exception& error) {
    const bool own = dynamic_cast<const PeerError*>(&error) == nullptr;
    const int rank = comm::detect_launch().rank;
    if (!process::note_failure(rank, last_step, message_of(error), own)) throw;
    return dynamic_cast<const UsageError*>(&error) != nullptr ? 2 : 1;
  }
  if (ended == train::Ended::unsaved) return kNotSaved;
  if (ended == train::Ended::untold) return started_here() ? kNotReported : 1;
  if (ended != train::Ended::stopped) return 0;
  const int signal = stop_signal().load();  // 0 if only another rank received it
  return 128 + (signal != 0 ? signal : SIGINT);
}

void warn_of_oversubscription(int ranks, int threads) {
  const auto cores = static_cast<int>(process::topology().cores.size());
  const int needed = ranks * std::max(1, threads);
  if (needed <= cores) return;
  write_all(2, str("tessera train: warning: ", plural(ranks, "rank"),
                   threads > 1 ? str(" of ", threads, " threads") : std::string(), " on ",
                   plural(cores, "core"),
                   ": they share cores, and every step waits for the slowest rank\n"));
}

// Throws if the ranks do not fit into host memory, before the OOM killer ends one of them.
void check_memory(const train::RunConfig& config, const train::Resolved& resolved, int ranks) {
  train::check_offload_folder(config, resolved, ranks);
  if (const auto free = process::free_host_memory()) {
    train::check_host_memory(config, resolved, ranks, free->bytes,
                             str("this host (", free->bound, ")"));
  }
}

// Returns the options for continuing with whole replicas: [Note: recovery].
process::RecoveryOptions recovery_of(const train::RunConfig& config,
                                     const train::Resolved& resolved, int ranks) {
  const Axis axis = config.zero == 0 ? Axis::dp_shard : Axis::dp_replicate;
  const auto axes_with = [=](int replicas) {
    return train::with_replicas(config, resolved, replicas).axes;
  };
  const auto each = static_cast<int>(axes_with(1).world());  // ranks of a replica
  const Axes all = axes_with(ranks / each);
  // Position of a rank in its replica: its rank in a mesh with one replica.
  const auto position = [one = axes_with(1), axis](Coordinate at) {
    at.set(axis, 0);
    return as_size(one.rank_of(at));
  };
  process::RecoveryOptions options;
  options.most = static_cast<int>(config.recover);
  options.spares = static_cast<int>(config.spares);
  options.replicas.resize(as_size(ranks / each), std::vector<int>(as_size(each)));
  for (int rank = 0; rank < ranks; ++rank) {
    const Coordinate at = all.coordinate_of(rank);
    options.replicas[as_size(at[axis])][position(at)] = rank;
  }
  options.fit = [=](int whole) { return train::replicas_that_fit(config, resolved, whole); };
  options.by_rank = [=](const std::vector<std::vector<int>>& replicas) {
    const Axes axes = axes_with(static_cast<int>(replicas.size()));
    std::vector<int> processes;
    for (int rank = 0; rank < axes.world(); ++rank) {
      const Coordinate at = axes.coordinate_of(rank);
      processes.push_back(replicas[as_size(at[axis])][position(at)]);
    }
    return processes;
  };
  return options;
}

// Returns the restart options: a restarted job resumes with the same global batch on any number of
// ranks.
process::Restarts restarts(const train::RunConfig& config, const train::Resolved& resolved,
                           int ranks) {
  process::Restarts again;
  again.most = static_cast<int>(config.max_restarts);
  again.words = {"--ranks",      "0", "--dp",           "0",
                 "--grad-accum", "0", "--global-batch", str(resolved.global_batch)};
  again.resume = {"--resume", "auto"};
  if (config.resume != "none" && config.resume != "auto") again.otherwise = config.resume;
  again.fit = [=](int left) { return train::ranks_that_fit(config, resolved, ranks, left); };
  again.final_status = kNotSaved;
  again.told_status = kNotReported;
  if (config.recover > 0) {
    again.recovery = [=](int started) -> std::optional<process::RecoveryOptions> {
      return recovery_of(config, resolved, started);
    };
  }
  again.on_failure = [path = config.metrics](const std::string& why) {
    train::write_failure(path, why);
  };
  again.checkpoint = [folder = config.save] {
    return folder.empty() ? std::string() : checkpoint::find_latest(folder).folder;
  };
  return again;
}

// Checked run that is ready to start.
struct Ready {
  train::RunConfig config;
  train::Resolved resolved;
  int ranks = 1;
  Fd held;                                       // see check_run
  std::optional<checkpoint::FolderLock> folder;  // of checkpoints
  bool dashboard = false;                        // start a dashboard for the run
  std::unique_ptr<ScratchFolder> scratch;        // for metrics that only the dashboard reads
  std::vector<std::string> words;                // additional arguments of the ranks
};

// Warns once for all ranks.
void warn_of_idle_settings(const Ready& ready, const comm::Launch& launch) {
  if (launch.rank != 0) return;
  for (const std::string& line : train::idle_settings(ready.config, ready.resolved)) {
    write_all(2, str("tessera train: warning: ", line, "\n"));
  }
}

// Prepares --dashboard. The page reads the metrics, so sets --metrics if it is empty.
void follow_run(Ready& ready) {
  if (::access(sibling("tessera-dashboard").c_str(), X_OK) != 0) {
    throw UsageError(Flag("dashboard"),
                     "this build has no tessera-dashboard. `make build` builds it; this needs "
                     "zlib (Debian: zlib1g-dev). Without it use --metrics FILE");
  }
  ready.dashboard = true;
  if (!ready.config.metrics.empty()) return;
  ready.scratch = std::make_unique<ScratchFolder>("tessera-run");
  ready.config.metrics = ready.scratch->file("run.jsonl").string();
  ready.words = {"--metrics", ready.config.metrics};
}

// Starts a dashboard that ends with this process in all cases, but not on a Ctrl-C meant for the
// run.
void start_dashboard(const std::string& metrics) {
  std::string program = sibling("tessera-dashboard"), flag = "--runs", path = metrics;
  char* const arguments[] = {program.data(), flag.data(), path.data(), nullptr};
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid != 0) return;  // if fork() failed, the run continues without it
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(0);
  ::dup2(2, 1);  // stdout is for the results of the run
  ::execv(program.c_str(), arguments);
  ::_exit(127);
}

// Returns nullopt if --help or --print-config was printed.
std::optional<Ready> prepare(int argc, char** argv, const comm::Launch& launch) {
  Given given;
  CommandLine line("train",
                   "Trains a GPT or a Llama with data, tensor and pipeline parallelism and ZeRO.",
                   kTrainExamples);
  CLI::App& app = line.app();
  const CLI::Option* const file =
      app.add_option("--config", given.config, "read settings from a TOML file")
          ->type_name("FILE")
          ->take_last();
  app.add_flag("--print-config", given.print_config, "print the settings as such a file and exit");
  app.add_flag("--dashboard", given.dashboard,
               "serve a web page with this run until it ends; prints the address");
  add_setting_flags(app, train::fields(), planner::Command::train,
                    [&given](const std::string& name, const std::string& text) {
                      given.flags.emplace_back(name, text);
                    });
  if (!line.parse(argc, argv)) return std::nullopt;

  Ready ready;
  train::RunConfig& config = ready.config;
  std::vector<std::string> named;  // flags given: a launcher overrides the ranks of a file only
  if (file->count() > 0) train::read_config(config, given.config, nullptr);
  for (const auto& [name, text] : given.flags) {
    config.set(name, text);
    named.push_back(name);
    if (name == "steps" && config.steps == 0) {
      throw UsageError(Flag("steps"),
                       "got 0; must be at least 1. Omit it for --epochs, or 240 steps.");
    }
  }
  if (launch.launcher != "alone") {
    const bool given_ranks = std::find(named.begin(), named.end(), "ranks") != named.end();
    // Spare processes are not ranks yet.
    const int started = launch.size - (started_here() ? static_cast<int>(config.spares) : 0);
    if (given_ranks && config.ranks != 0) {
      process::check_given_ranks(config.ranks, launch.launcher, started);
    }
    config.ranks = started;
  } else if (config.ranks == 0 && std::find(named.begin(), named.end(), "ranks") != named.end()) {
    throw UsageError(Flag("ranks"), str("got 0; must be 1 to ", kMaxRanks,
                                        ". Omit it for the product of the axes, or 2."));
  }
  ready.ranks = train::ranks_wanted(config);
  // Reports errors once, before ranks are started.
  ready.resolved = train::resolve(config, ready.ranks);
  if (given.print_config) {
    config.lr = ready.resolved.base_lr;
    if (launch.rank == 0) print_out(train::to_toml(config));
    return std::nullopt;
  }
  if (started_here()) return ready;  // the parent has checked the rest
  if (given.dashboard && launch.rank == 0) follow_run(ready);
  // Number of processes on this host.
  const int here = comm::backend_kind(config.backend).simulated ? 1
                   : launch.launcher == "alone"                 ? ready.ranks
                                                                : launch.local_size;
  if (launch.launcher == "alone") {
    if (here > 1) process::check_open_files(here);  // first: the rest opens files
    warn_of_oversubscription(here, static_cast<int>(config.threads));
  }
  ready.held = train::check_run(config, ready.resolved, ready.ranks, launch.rank);
  check_memory(config, ready.resolved, here);
  warn_of_idle_settings(ready, launch);
  // If tessera train starts the ranks, it holds the lock itself, across restarts.
  if (launch.rank == 0) ready.folder = claim_folder(config);
  return ready;
}

}  // namespace

int train_command(int argc, char** argv) {
  ::signal(SIGXFSZ, SIG_IGN);  // writes beyond the file size limit then fail with EFBIG
  const comm::Launch launch = comm::detect_launch();
  std::optional<Ready> ready;
  try {
    ready = prepare(argc, argv, launch);
  } catch (const Error& error) {
    // All ranks of a launcher find the same error: one per host reports it.
    if (launch.local_rank == 0) throw;
    return dynamic_cast<const UsageError*>(&error) != nullptr ? 2 : 1;
  }
  if (!ready) return 0;
  const train::RunConfig& config = ready->config;
  const int ranks = ready->ranks;
  const bool dry = comm::backend_kind(config.backend).simulated;
  if (ready->dashboard) start_dashboard(config.metrics);
  std::vector<std::string> again = process::own_command(argc, argv);
  again.insert(again.end(), ready->words.begin(), ready->words.end());
  if (launch.launcher != "alone" || dry || (ranks == 1 && config.max_restarts == 0)) {
    try {
      return train_on_rank(config, ready->resolved);
    } catch (const std::exception& error) {
      if (launch.launcher == "alone") train::write_failure(config.metrics, message_of(error));
      throw;
    }
  }
  // After a signal a run finishes its step and saves, which may take minutes.
  return process::start_ranks({.ranks = ranks,
                               .threads = static_cast<int>(config.threads),
                               .name = "train",
                               .grace = 30,
                               .stop_grace = 600},
                              restarts(config, ready->resolved, ranks), again);
}

}  // namespace tessera::cli
