#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::comm {

// Processes that train together until one of them is lost or another one joins.
//
// [Note: generations] A run that continues after a loss (`tessera train --recover`) passes through
// generations. The launcher decides the members of each one, because it starts the processes and
// learns first that one has ended. It writes the current generation to the store, under
// kGenerationKey. A process whose collectives fail waits for the next generation there; rank 0
// looks for one after every step. The members of a generation connect again, so nothing that was
// sent in an earlier one can reach them: keys of a generation have its prefix, and when the
// launcher publishes the next one it answers all requests for the old keys with the failure.
// Processes report to the launcher with keys under kReportPrefix, which the store passes on and
// does not keep.
struct Generation {
  std::int64_t number = 0;   // from 1
  int replicas = 0;          // copies of the state that the members hold together
  bool trained = false;      // some members have the state of the run, the others get it from them
  bool over = false;         // training has ended; there are no members
  std::vector<int> members;  // processes (launch ranks), by rank

  // Returns the rank of a process; -1 if it is not a member.
  int rank_of(int process) const;
};

inline constexpr const char* kGenerationKey = "tessera/generation";
inline constexpr std::string_view kReportPrefix = "tessera/report/";
// Returns the prefix of the keys of one generation of a run.
std::string generation_prefix(const std::string& run, std::int64_t number);

// Returns the text of a generation, which parse_generation() reads.
std::string to_text(const Generation& generation);
// Throws DataError.
Generation parse_generation(const std::string& text);

// Message of a process to the launcher.
struct MemberReport {
  // Subject of a report.
  enum class Kind : std::uint8_t {
    ready,        // waits to become a member
    established,  // has the state of the run, as all members of the generation
    lost,         // collectives of the generation fail
    finished      // training has ended on this process
  };
  Kind kind = Kind::ready;
  int process = -1;
  std::int64_t generation = 0;
  int culprit = -1;  // process that is the cause of `lost`; -1: unknown
  std::string text;  // reason of `lost`
};
// Returns the key under which a report is sent.
std::string report_key(const MemberReport& report);
// Returns the value of a report, which parse_report() reads.
std::string to_text(const MemberReport& report);
// Parses the key and the value of a report. Throws DataError.
MemberReport parse_report(std::string_view key, const std::string& text);

}  // namespace tessera::comm
