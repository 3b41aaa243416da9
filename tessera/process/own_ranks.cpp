#include "tessera/process/own_ranks.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <thread>

#include "tessera/core/errors.h"
#include "tessera/core/index.h"
#include "tessera/core/log.h"
#include "tessera/core/text.h"
#include "tessera/process/failure_notes.h"
#include "tessera/process/launcher.h"
#include "tessera/process/rendezvous.h"
#include "tessera/process/topology.h"

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
  throw UsageError(str("--ranks: got ", given, ", but ", launcher, " started ", started,
                       " ranks; leave --ranks out"));
}

std::vector<std::string> own_command(int argc, char** argv) {
  std::vector<std::string> words = {own_program()};
  words.insert(words.end(), argv, argv + argc);
  return words;
}

namespace {

LaunchResult launch_once(const OwnRanks& own, const std::vector<std::string>& command,
                         const FailureNotes& notes, const BlockedSignals& signals) {
  const Topology machine = topology();
  LaunchOptions options;
  options.command = command;
  options.ranks = own.ranks;
  options.threads =
      own.threads > 0 ? own.threads : threads_per_rank(machine, cpu_quota(), own.ranks);
  options.cpus = divide_cores(machine, own.ranks);
  options.name = "tessera " + own.name;
  options.report = false;  // ours says more
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

// Of ranks that failed, the one that did so by itself: one that died without a word, or else the
// first that said so. Which of them ended first is chance.
LaunchResult blamed(LaunchResult result, const FailureNotes::Report& said) {
  const auto among = [](const std::vector<int>& ranks, int rank) {
    return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
  };
  const auto blame = [&](const RankFailure& failure) {
    result.status = failure.status;
    result.failed_rank = failure.rank;
    result.summary = failure.summary;
    return result;
  };
  for (const RankFailure& failure : result.failures) {
    const bool spoke = among(said.own, failure.rank) || among(said.others, failure.rank);
    if (failure.by_signal && !spoke) return blame(failure);
  }
  for (const int rank : said.own) {
    for (const RankFailure& failure : result.failures) {
      if (failure.rank == rank) return blame(failure);
    }
  }
  return result;
}

void report(const OwnRanks& own, const LaunchResult& result, const FailureNotes::Report& said,
            const std::optional<std::string>& checkpoint) {
  if (result.asked && said.text.empty()) {
    write_all(2, str("tessera ", own.name, ": ended as asked, with status ", result.status, "\n"));
    return;
  }
  std::string text = str("tessera ", own.name, ": ", result.summary, "\n", said.text);
  if (checkpoint) {
    text += str("  last step: ",
                said.last_step >= 0 ? str(said.last_step)
                : said.text.empty() ? "not known, no rank was left to tell"
                                    : "none, the training had not begun",
                "\n  last good checkpoint: ", checkpoint->empty() ? "none" : *checkpoint, "\n");
  }
  write_all(2, text);
}

}  // namespace

int start_ranks(const OwnRanks& own, std::vector<std::string> command) {
  return start_ranks(own, {}, std::move(command));
}

int start_ranks(OwnRanks own, const Restarts& restarts, std::vector<std::string> command) {
  const std::vector<std::string> first = command;
  check_open_files(own.ranks);
  const BlockedSignals signals;  // before the store starts its thread
  for (int attempt = 0;; ++attempt) {
    const FailureNotes notes;
    const LaunchResult first_ended = launch_once(own, command, notes, signals);
    if (first_ended.status == 0) return 0;
    if (first_ended.status == restarts.told_status) return 1;
    const FailureNotes::Report said = notes.read();
    if (first_ended.status == restarts.final_status && said.text.empty()) {
      return first_ended.status;
    }
    const LaunchResult result = blamed(first_ended, said);
    std::optional<std::string> checkpoint;
    if (restarts.checkpoint) checkpoint = restarts.checkpoint();
    report(own, result, said, checkpoint);
    // Not what somebody ended on purpose, nor what would fail in the same way again: status 2 is a
    // wrong call.
    if (result.status == 2 || result.asked) return result.status;
    if (attempt == restarts.most) {
      if (restarts.most > 0) {
        write_all(2, str("tessera ", own.name, ": gave up after ", restarts.most, " restarts\n"));
      }
      return result.status;
    }
    if (restarts.fit) own.ranks = restarts.fit(own.ranks - 1);
    if (own.ranks == 0) {
      write_all(2, str("tessera ", own.name, ": too few ranks are left to go on\n"));
      return result.status;
    }
    const bool resumes = checkpoint && !checkpoint->empty();
    command = first;
    command.insert(command.end(), restarts.words.begin(), restarts.words.end());
    if (resumes) command.insert(command.end(), restarts.resume.begin(), restarts.resume.end());
    write_all(2, str("tessera ", own.name, ": restart ", attempt + 1, " of ", restarts.most, " on ",
                     own.ranks, own.ranks == 1 ? " rank" : " ranks", ", from ",
                     resumes ? *checkpoint : restarts.otherwise, "\n"));
  }
}

int become_mpirun(int ranks, const std::vector<std::string>& command) {
  std::vector<std::string> words = {"mpirun", "-n", std::to_string(ranks)};
  if (static_cast<unsigned>(ranks) > std::thread::hardware_concurrency()) {
    words.push_back("--oversubscribe");
  }
  if (::geteuid() == 0) words.push_back("--allow-run-as-root");
  words.insert(words.end(), command.begin(), command.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  ::execvp("mpirun", pointers.data());
  throw UsageError(str("cannot start mpirun: ", std::strerror(errno),
                       ". Install it (Debian: openmpi-bin), or choose --backend shm"));
}

}  // namespace tessera::process
