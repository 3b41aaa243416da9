#include "tessera/core/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera {
double LrSchedule::factor(std::int64_t step) const {
  if (step < warmup) return static_cast<double>(step + 1) / static_cast<double>(warmup + 1);
  // The decay starts after step `start` and ends at the last step.
  std::int64_t start = warmup;
  if (kind == Kind::wsd) {
    const double decay = std::round(decay_share * static_cast<double>(total));
    start = std::max(warmup, total - static_cast<std::int64_t>(decay));
  }
  const double length = static_cast<double>(std::max<std::int64_t>(1, total - 1 - start));
  const double progress = std::clamp(static_cast<double>(step - start) / length, 0.0, 1.0);
  double left = 1;  // fraction of (1 - min_ratio) that remains
  if (kind == Kind::linear || kind == Kind::wsd) left = 1 - progress;
  if (kind == Kind::cosine) left = 0.5 * (1 + std::cos(std::numbers::pi * progress));
  return min_ratio + (1 - min_ratio) * left;
}

void check(const LrSchedule& schedule) {
  if (schedule.total < 1) throw UsageError(str("steps is ", schedule.total, "; must be above 0"));
  if (schedule.warmup < 0 || schedule.warmup > schedule.total) {
    throw UsageError(
        str("warmup is ", schedule.warmup, "; must be 0 to the number of steps, ", schedule.total));
  }
  const auto check_fraction = [](const char* what, double value) {
    if (!(value >= 0 && value <= 1)) throw UsageError(str(what, " is ", value, "; must be 0 to 1"));
  };
  check_fraction("decay-share", schedule.decay_share);
  check_fraction("min-lr-ratio", schedule.min_ratio);
}

}  // namespace tessera
