#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tessera/process/launcher.h"
#include "tessera/process/running_ranks.h"

namespace tessera::process {

// The launcher's part of [Note: generations]: replaces lost ranks, publishes generations, and kills
// ranks that others do not reach. Does nothing without a coordinator.
class LostRanks {
 public:
  // Functions of the launcher.
  struct Launcher {
    std::function<void(const std::string& text)> say;
    std::function<int(int number)> restart;  // returns 0, or an errno
    RunningRanks& ranks;
  };
  LostRanks(const Recovery& recovery, Launcher launcher);

  // Publishes the first generation.
  void begin();
  // Replaces those of the ranks that have failed, if the job can continue; otherwise the failures
  // stand. `describe` describes a failure.
  using Describe = std::function<std::string(const Rank&)>;
  void replace(const std::vector<const Rank*>& ended, const Describe& describe);
  // Handles reports of ranks, and what is due at `now` (seconds).
  void handle_reports(double now);
  // Time at which handle_reports() must be called at the latest.
  double due() const;

 private:
  // Report that a rank is lost. It is killed if it has not ended by itself. If the report does not
  // name it, these are the members that have not reported anything.
  struct Suspicion {
    double due = 0;
    comm::MemberReport report;
  };

  void replace(const Rank& rank, const Describe& describe);
  void publish_if(Coordinator::Change change);
  void act_on(const comm::MemberReport& report);
  void kill(int number, const std::string& why);

  const Recovery& recovery_;
  const Launcher launcher_;
  std::vector<Suspicion> suspicions_;
  std::map<int, std::int64_t> heard_;  // generation of the last report of each process
};

}  // namespace tessera::process
