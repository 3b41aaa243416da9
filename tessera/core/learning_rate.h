#pragma once

#include <cstdint>
#include <string_view>

namespace tessera {

// How the learning rate goes: up in a straight line over the warm-up, then by the name.
struct LrSchedule {
  enum class Kind : std::uint8_t {
    constant,
    linear,  // falls in a straight line to the last step
    cosine,  // falls along half a cosine
    wsd,     // warm-up, stable, decay: constant, then a straight line over the last share
  };
  Kind kind = Kind::cosine;
  std::int64_t warmup = 0;   // steps before the full rate
  std::int64_t total = 1;    // steps in all
  double decay_share = 0.2;  // wsd: of `total`
  double min_ratio = 0.1;    // what is left at the last step; constant never falls

  // What step `step` (from 0) multiplies the rate by. A pure function: it is the same wherever a
  // run is continued. Past the end it stays where it ended.
  double factor(std::int64_t step) const;

  friend bool operator==(const LrSchedule&, const LrSchedule&) = default;
};

LrSchedule::Kind parse_lr_schedule(std::string_view text);  // throws UsageError
std::string_view name(LrSchedule::Kind kind);
// Throws UsageError: a warm-up longer than the run, shares outside [0, 1].
void check(const LrSchedule& schedule);

}  // namespace tessera
