#include "tessera/simulator/failures.h"

#include <cmath>

#include "tessera/core/errors.h"
#include "tessera/core/philox.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"

namespace tessera::simulator {
namespace {

void check_seconds(const char* what, double seconds, bool zero_too) {
  if (std::isfinite(seconds) && (seconds > 0 || (zero_too && seconds == 0))) return;
  throw UsageError(
      str(what, ": got ", seconds, " s, must be ", zero_too ? "0 s or more" : "more than 0 s"));
}

}  // namespace

void check(const Reliability& r) {
  check_seconds("mean time between failures", r.mtbf, false);
  check_seconds("cost of a checkpoint", r.checkpoint, true);
  check_seconds("cost of a restart", r.restart, true);
  if (r.devices < 1) throw UsageError(str("devices: got ", r.devices, ", must be at least 1"));
  // A restart needs e^(restart / M) attempts on average. Beyond this limit the simulation would not
  // end, and less than 1% of the time would be useful.
  constexpr double kMaxRestarts = 5;
  if (r.restart > kMaxRestarts * r.system_mtbf()) {
    throw UsageError(str("mean time between failures: got ", format_time(r.mtbf),
                         " a device, a failure every ", format_time(r.system_mtbf()), " in ",
                         plural(r.devices, "device"), ", but a restart takes ",
                         format_time(r.restart),
                         ", so the run makes no progress. Failures must be rarer or restarts "
                         "faster."));
  }
}

double expected_goodput(const Reliability& r, double interval) {
  const double m = r.system_mtbf();
  return interval / (m * std::exp(r.restart / m) * std::expm1((interval + r.checkpoint) / m));
}

// Finds the zero of the derivative: (1 - t/M)·e^((t + checkpoint)/M) = 1. The left side decreases
// with t.
double best_interval(const Reliability& r) {
  const double m = r.system_mtbf();
  double low = 0, high = m;
  for (int i = 0; i < 200; ++i) {
    const double t = (low + high) / 2;
    const bool below = std::log1p(-t / m) + (t + r.checkpoint) / m > 0;
    (below ? low : high) = t;
  }
  return (low + high) / 2;
}

double young_interval(const Reliability& r) {
  return std::sqrt(2 * r.checkpoint * r.system_mtbf());
}

double daly_interval(const Reliability& r) {
  const double m = r.system_mtbf(), ratio = r.checkpoint / (2 * m);
  if (ratio >= 1) return m;
  return young_interval(r) * (1 + std::sqrt(ratio) / 3 + ratio / 9) - r.checkpoint;
}

Goodput simulated_goodput(const Reliability& r, double interval, std::uint64_t seed, int failures) {
  const Philox random(seed, stream_of("failures"));
  std::uint64_t drawn = 0;
  const auto until_failure = [&] {
    return -r.system_mtbf() * std::log((random.bits(drawn++) + 0.5) * 0x1p-32);
  };
  const double period = interval + r.checkpoint;
  double time = 0, work = 0, time2 = 0, work2 = 0, both = 0;
  for (int i = 0; i < failures; ++i) {
    // Work saved before the failure is kept. Then restarts are attempted until one succeeds.
    const double up = until_failure();
    const double saved = std::floor(up / period) * interval;
    double cycle = up;
    for (double next = until_failure();; next = until_failure()) {
      if (next >= r.restart) break;
      cycle += next;
    }
    cycle += r.restart;
    time += cycle;
    work += saved;
    time2 += cycle * cycle;
    work2 += saved * saved;
    both += cycle * saved;
  }
  Goodput goodput;
  goodput.fraction = work / time;
  const double g = goodput.fraction;
  const double residual = work2 - 2 * g * both + g * g * time2;
  goodput.error = std::sqrt(std::max(0.0, residual)) / time;
  return goodput;
}

}  // namespace tessera::simulator
