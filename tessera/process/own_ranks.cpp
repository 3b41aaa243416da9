#include "tessera/process/own_ranks.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>

#include "tessera/core/errors.h"
#include "tessera/core/index.h"
#include "tessera/core/log.h"
#include "tessera/core/text.h"
#include "tessera/process/cpu_topology.h"
#include "tessera/process/failure_notes.h"
#include "tessera/process/launcher.h"
#include "tessera/process/rendezvous.h"

namespace tessera::process {
namespace {

std::string own_program() {
  std::string path(4096, '\0');
  const ssize_t length = ::readlink("/proc/self/exe", path.data(), path.size());
  if (length <= 0) throw Error(str("cannot read /proc/self/exe: ", std::strerror(errno)));
  path.resize(as_size(length));
  return path;
}

}  // namespace

void check_given_ranks(std::int64_t given, const std::string& launcher, int started) {
  if (given == started) return;
  throw UsageError(Flag("ranks"), str("got ", given, ", but ", launcher, " started ", started,
                                      " ranks. Omit --ranks."));
}

std::vector<std::string> own_command(int argc, char** argv) {
  std::vector<std::string> words = {own_program()};
  words.insert(words.end(), argv, argv + argc);
  return words;
}

namespace {

LaunchResult launch_once(const OwnRanks& own, const std::optional<RecoveryOptions>& recovery,
                         const std::vector<std::string>& command, const FailureNotes& notes,
                         const BlockedSignals& signals) {
  const Topology machine = topology();
  LaunchOptions options;
  options.command = command;
  options.ranks = recovery ? recovery->processes() : own.ranks;
  if (recovery) options.recovery.coordinator = std::make_shared<Coordinator>(*recovery);
  options.threads =
      own.threads > 0 ? own.threads : threads_per_rank(machine, cpu_quota(), own.ranks);
  options.cpus = divide_cores(machine, own.ranks);
  // A spare waits on the cores of a rank, and has them if it replaces that one.
  for (int spare = 0; !options.cpus.empty() && own.ranks + spare < options.ranks; ++spare) {
    options.cpus.push_back(nth(options.cpus, spare % own.ranks));
  }
  options.name = "tessera " + own.name;
  options.report = false;  // this file prints a more detailed report
  options.prefix = false;
  options.grace = own.grace;
  options.stop_grace = own.stop_grace;
  options.run_id = str("tessera-", own.name, "-", ::getpid());
  for (char** entry = environ; *entry != nullptr; ++entry) {
    options.environment.emplace_back(*entry);
  }
  options.environment.push_back(notes.environment());
  const Rendezvous rendezvous(options, {});
  return launch(options, signals);
}

// Selects the failure to report as the cause: a rank killed by a signal without reporting an error,
// otherwise the first that reported its own failure. The order in which ranks exit is arbitrary.
LaunchResult with_root_cause(LaunchResult result, const FailureNotes::Report& noted) {
  const auto contains = [](const std::vector<int>& ranks, int rank) {
    return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
  };
  const auto caused_by = [&](const RankFailure& failure) {
    result.status = failure.status;
    result.failed_rank = failure.rank;
    result.summary = failure.summary;
    return result;
  };
  for (const RankFailure& failure : result.failures) {
    const bool reported = contains(noted.own, failure.rank) || contains(noted.others, failure.rank);
    if (failure.by_signal && !reported) return caused_by(failure);
  }
  for (const int rank : noted.own) {
    for (const RankFailure& failure : result.failures) {
      if (failure.rank == rank) return caused_by(failure);
    }
  }
  return result;
}

void report(const OwnRanks& own, const LaunchResult& result, const FailureNotes::Report& noted,
            const std::optional<std::string>& checkpoint) {
  if (result.asked && noted.text.empty()) {
    write_all(
        2, str("tessera ", own.name, ": stopped by a signal, with status ", result.status, "\n"));
    return;
  }
  std::string text = str("tessera ", own.name, ": ", result.summary, "\n", noted.text);
  if (checkpoint) {
    text += str("  last step: ",
                noted.last_step >= 0 ? str(noted.last_step)
                : noted.text.empty() ? "unknown, no rank reported it"
                                     : "none, training had not started",
                "\n  last good checkpoint: ", checkpoint->empty() ? "none" : *checkpoint, "\n");
  }
  write_all(2, text);
}

}  // namespace

int start_ranks(const OwnRanks& own, std::vector<std::string> command) {
  return start_ranks(own, {}, std::move(command));
}

int start_ranks(OwnRanks own, const Restarts& restarts, std::vector<std::string> command) {
  const std::vector<std::string> original_command = command;
  check_open_files(own.ranks);
  const BlockedSignals signals;  // before the store starts its thread
  for (int attempt = 0;; ++attempt) {
    const FailureNotes notes;
    const LaunchResult launched =
        launch_once(own, restarts.recovery ? restarts.recovery(own.ranks) : std::nullopt, command,
                    notes, signals);
    if (launched.status == 0) return 0;
    if (launched.status == restarts.told_status) return 1;
    const FailureNotes::Report noted = notes.read();
    if (launched.status == restarts.final_status && noted.text.empty()) {
      return launched.status;
    }
    const LaunchResult result = with_root_cause(launched, noted);
    std::optional<std::string> checkpoint;
    if (restarts.checkpoint) checkpoint = restarts.checkpoint();
    report(own, result, noted, checkpoint);
    const auto give_up = [&] {
      if (restarts.on_failure) restarts.on_failure(result.summary);
      return result.status;
    };
    // No restart after a stop signal, nor after status 2 (usage error), which would recur.
    if (result.status == 2 || result.asked) return give_up();
    if (attempt == restarts.most) {
      if (restarts.most > 0) {
        write_all(2, str("tessera ", own.name, ": gave up after ", restarts.most, " restarts\n"));
      }
      return give_up();
    }
    if (restarts.fit) own.ranks = restarts.fit(own.ranks - 1);
    if (own.ranks == 0) {
      write_all(2, str("tessera ", own.name, ": too few ranks are left to continue\n"));
      return give_up();
    }
    const bool resumes = checkpoint && !checkpoint->empty();
    command = original_command;
    command.insert(command.end(), restarts.words.begin(), restarts.words.end());
    if (resumes) command.insert(command.end(), restarts.resume.begin(), restarts.resume.end());
    write_all(2, str("tessera ", own.name, ": restart ", attempt + 1, " of ", restarts.most, " on ",
                     own.ranks, own.ranks == 1 ? " rank" : " ranks", ", from ",
                     resumes ? *checkpoint : restarts.otherwise, "\n"));
  }
}

}  // namespace tessera::process
