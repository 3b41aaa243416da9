#include "tessera/process/lost_ranks.h"

#include <signal.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "tessera/core/text.h"

namespace tessera::process {
namespace {

// Seconds for a rank to end that others have reported as lost. A rank that was killed has ended
// already, and one that failed by itself is about to.
constexpr double kEnding = 1;
constexpr int kUsageStatus = 2;  // of an error that would recur

}  // namespace

LostRanks::LostRanks(const Recovery& recovery, Launcher launcher)
    : recovery_(recovery), launcher_(std::move(launcher)) {}

void LostRanks::begin() {
  if (recovery_.coordinator) recovery_.publish(recovery_.coordinator->current());
}

void LostRanks::publish_if(Coordinator::Change change) {
  if (change == Coordinator::Change::next) recovery_.publish(recovery_.coordinator->current());
}

void LostRanks::replace(const std::vector<const Rank*>& ended, const Describe& describe) {
  if (!recovery_.coordinator) return;
  for (const Rank* rank : ended) {
    if (rank->failed()) replace(*rank, describe);
  }
}

void LostRanks::replace(const Rank& rank, const Describe& describe) {
  Coordinator& coordinator = *recovery_.coordinator;
  const int number = rank.number;
  if (coordinator.current().over) {
    // Everything is done when one rank has finished.
    if (rank.exited_by_signal) launcher_.ranks.excuse(number);
    return;
  }
  if (rank.status() == kUsageStatus) return;
  heard_.erase(number);
  const Coordinator::Change change = coordinator.lost(number);
  if (change == Coordinator::Change::failed) return;
  publish_if(change);
  launcher_.say(str(describe(rank), ". Recovery ", coordinator.losses(), " of ",
                    coordinator.most_losses(), ": ", coordinator.current().replicas, " of ",
                    plural(coordinator.replicas(), "replica"), " continue",
                    coordinator.current().replicas == 1 ? "s" : "",
                    ", and the rank is started again"));
  const int error = launcher_.restart(number);
  if (error == 0) return;
  launcher_.say(str("cannot start rank ", number, " again: ", std::strerror(error)));
  launcher_.ranks.excuse(number);
}

void LostRanks::handle_reports(double now) {
  if (!recovery_.coordinator) return;
  Coordinator& coordinator = *recovery_.coordinator;
  const int processes = static_cast<int>(launcher_.ranks.all().size());
  for (const comm::MemberReport& report : recovery_.take_reports()) {
    using Kind = comm::MemberReport::Kind;
    if (report.process < 0 || report.process >= processes || report.culprit >= processes) continue;
    heard_[report.process] = report.generation;
    switch (report.kind) {
      case Kind::ready: publish_if(coordinator.ready(report.process)); break;
      case Kind::established:
        publish_if(coordinator.established(report.process, report.generation));
        break;
      case Kind::finished: publish_if(coordinator.finish()); break;
      case Kind::lost: suspicions_.push_back({now + kEnding, report});
    }
  }
  for (const Suspicion& suspicion : suspicions_) {
    if (now >= suspicion.due) act_on(suspicion.report);
  }
  std::erase_if(suspicions_, [&](const Suspicion& suspicion) { return now >= suspicion.due; });
}

void LostRanks::act_on(const comm::MemberReport& report) {
  Coordinator& coordinator = *recovery_.coordinator;
  if (report.generation != coordinator.current().number) return;  // the loss was handled
  if (report.culprit >= 0) return kill(report.culprit, report.text);
  bool is_any_silent = false;
  for (const int process : coordinator.current().members) {
    const auto heard = heard_.find(process);
    if (heard != heard_.end() && heard->second == report.generation) continue;
    is_any_silent = true;
    kill(process, report.text);
  }
  if (!is_any_silent) publish_if(coordinator.retry());
}

// The end of the process is then handled as any other loss.
void LostRanks::kill(int number, const std::string& why) {
  const Rank& rank = launcher_.ranks.all()[static_cast<std::size_t>(number)];
  if (!rank.running) return;
  launcher_.say(str("rank ", number, " (pid ", rank.pid, ") is killed: ", why));
  ::kill(-rank.pid, SIGKILL);
}

double LostRanks::due() const {
  double first = std::numeric_limits<double>::infinity();
  for (const Suspicion& suspicion : suspicions_) first = std::min(first, suspicion.due);
  return first;
}

}  // namespace tessera::process
