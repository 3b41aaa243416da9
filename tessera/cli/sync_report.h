#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace tessera::cli {

// Options of `tessera explain sync`. The network has `layers` layers of `width` × `width`.
struct SyncArguments {
  int ranks = 2;
  int width = 512;
  int layers = 8;
  int rounds = 9;
  std::int64_t bucket_bytes = 2'000'000;
  bool json = false;
};

// Times of one rank in one pass. All ranks read the same steady clock.
struct RankTimes {
  using Time = std::chrono::steady_clock::time_point;
  // Collective call, or a wait for one on the computing thread.
  struct Call {
    std::string op, what;  // "all-reduce", "bucket 0"
    std::int64_t bytes = 0;
    Time begin, end;
  };
  Time begin, forward, backward, synchronized, end;  // start of the pass, then ends of its phases
  std::vector<Call> calls = {}, waits = {};
  std::map<std::string, Time> ready = {};  // when the gradient of a parameter was computed
  std::int64_t sent_bytes = 0;             // as if by rings
};

// Activity of a rank, in seconds since the first rank began the pass.
struct SyncSpan {
  int rank = 0;
  std::string lane, op, what;  // op: "" for computation
  std::int64_t bytes = 0;
  double begin = 0, end = 0;
};

// One pass of all ranks, on one clock.
struct SyncPass {
  double seconds = 0;                        // until the last rank ended
  double forward = 0, backward = 0;          // mean over ranks, without waits
  double wait = 0, optimizer = 0;            // wait: exposed communication, in any phase
  std::vector<SyncSpan> spans = {};          // of one lane: disjoint, in order
  std::map<std::string, double> ready = {};  // of a gradient, on the last rank
  std::int64_t sent_bytes = 0;               // by rank 0
};
// Converts the times of all ranks to seconds since the first of them began. Waits split the phase
// in which they occur.
SyncPass on_one_clock(const std::vector<RankTimes>& ranks);

// Parameters that one collective reduces.
struct SyncBucket {
  std::vector<std::string> params;
  std::int64_t bytes = 0;
};

// Method of synchronization, with its timed passes.
struct SyncWay {
  std::string name, text;  // "overlapped", and a description
  std::vector<SyncBucket> buckets = {};
  std::vector<SyncPass> passes = {};
  // Pass with the median duration. Every reported time of the method is of this pass.
  const SyncPass& median() const;
  double best_seconds() const;
};

// Gradients of each parameter by rank: the first values.
struct SyncGradients {
  using Values = std::map<std::string, std::vector<double>>;
  std::vector<Values> before, after;  // [rank]
  std::map<std::string, std::int64_t> elements;
};

// Everything that `tessera explain sync` measures. The ways include "per-parameter", "bucketed" and
// "overlapped".
struct SyncReport {
  SyncArguments arguments;
  SyncGradients gradients;
  std::vector<SyncWay> ways;
  int cores = 1;
  const SyncWay& way(const std::string& name) const;
};

// Compares per-parameter synchronization with buckets. Gives the reason if it was faster.
std::string sync_comparison(const SyncReport& report);
std::string sync_text(const SyncReport& report);
nlohmann::ordered_json sync_json(const SyncReport& report);

}  // namespace tessera::cli
