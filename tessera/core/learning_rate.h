#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "tessera/core/enum_names.h"

namespace tessera {

// Learning-rate schedule: linear warm-up, then decay of the given kind.
struct LrSchedule {
  // Rate after the warm-up.
  enum class Kind : std::uint8_t {
    constant,
    linear,  // linear decay to the last step
    cosine,  // half a cosine to the last step
    wsd,     // warm-up, stable, decay: constant, then linear over the last steps
  };
  Kind kind = Kind::cosine;
  std::int64_t warmup = 0;   // steps before the full rate is reached
  std::int64_t total = 1;    // total number of steps
  double decay_share = 0.2;  // wsd: fraction of `total` in which the rate decays, 0 to 1
  double min_ratio = 0.1;    // factor at the last step, 0 to 1; unused by constant

  // Returns the factor that multiplies the rate in step `step` (from 0). A pure function, so
  // resumed runs get the same factors. After the last step it keeps its last value.
  double factor(std::int64_t step) const;

  friend bool operator==(const LrSchedule&, const LrSchedule&) = default;
};

// Names on the command line.
template <>
struct EnumNames<LrSchedule::Kind> {
  static constexpr std::array<std::string_view, 4> kNames{"constant", "linear", "cosine", "wsd"};
};
// Throws UsageError if the warm-up is longer than the run or a fraction is outside [0, 1].
void check(const LrSchedule& schedule);

}  // namespace tessera
