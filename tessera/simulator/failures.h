#pragma once

#include <cstdint>

namespace tessera::simulator {

// A long run on devices that fail, each after `mtbf` seconds in the mean and without memory. Work
// stops for `checkpoint` seconds to save it. After a failure the job takes `restart` seconds, in
// which it may fail again, and goes on from the last checkpoint.
struct Reliability {
  double mtbf = 0;
  int devices = 1;
  double checkpoint = 0;
  double restart = 0;

  double system_mtbf() const { return mtbf / devices; }
};
void check(const Reliability& reliability);  // throws UsageError

// The part of all time that is work which lasts, with a checkpoint after each `interval` seconds of
// work. Exact: a stretch of t seconds without failure takes M·(e^(t/M) - 1) in the mean, and each
// failure e^(restart/M) as much.
double expected_goodput(const Reliability& reliability, double interval);

// The interval that makes it largest: exactly, and as Young (1974) and Daly (2006) approximate it.
double best_interval(const Reliability& reliability);
double young_interval(const Reliability& reliability);
double daly_interval(const Reliability& reliability);

// The same by events: from failure to failure, `failures` times.
struct Goodput {
  double fraction = 0;
  double error = 0;  // one standard deviation of `fraction`
};
Goodput simulated_goodput(const Reliability& reliability, double interval, std::uint64_t seed,
                          int failures = 20000);

}  // namespace tessera::simulator
