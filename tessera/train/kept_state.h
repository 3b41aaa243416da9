#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/train/metrics.h"
#include "tessera/zero/engine_recovery.h"

namespace tessera::train {

// State of one rank of a run between two generations: [Note: recovery] in recovery.h.
struct KeptState {
  std::int64_t steps = 0;  // finished steps of the whole run
  std::int64_t sample_shift = 0;
  bool found_non_finite = false;
  zero::StepCounts counts;
  std::vector<zero::StateShard> shards;  // copies
  // For reports: these are not sent to other ranks.
  std::vector<StepMetrics> history;
  std::optional<Evaluation> evaluation;

  // Converts the numbers, without shards, history and evaluation, for ranks that need them.
  std::string numbers() const;
  // Throws Error if the text is not a result of numbers().
  static KeptState from_numbers(const std::string& text);
};

// Progress of a rank, which others compare with their own.
struct StepStatus {
  std::int64_t steps = 0;   // finished steps of the whole run
  bool is_waiting = false;  // the next step waits for its outcome: [Note: decided steps]
  // Last outcome that this rank has, with the number of its step in the whole run: `steps`, or the
  // next one if this rank has not made its update.
  std::optional<zero::StepOutcome> outcome = std::nullopt;

  std::string text() const;
  static StepStatus parse(const std::string& text);
};

}  // namespace tessera::train
