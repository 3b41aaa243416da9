#pragma once

#include <cstdint>

namespace tessera::simulator {

// Model of a long run on devices that fail. Times between failures are exponentially distributed.
// Training stops while a checkpoint is saved. After a failure the job restarts, may fail again
// meanwhile, and continues from the last checkpoint.
struct Reliability {
  double mtbf = 0;  // mean seconds between failures of one device
  int devices = 1;
  double checkpoint = 0;  // seconds to save a checkpoint
  double restart = 0;     // seconds of a restart

  double system_mtbf() const { return mtbf / devices; }
};
void check(const Reliability& reliability);  // throws UsageError

// Returns the fraction of all time that is work that is not lost, with a checkpoint after each
// `interval` seconds of work. Exact: with M = system_mtbf(), t seconds without a failure take
// M·(e^(t/M) - 1) seconds on average, and restarts multiply that by e^(restart/M).
double expected_goodput(const Reliability& reliability, double interval);

// Return the interval with the largest goodput: exact, and the approximations of Young (1974) and
// Daly (2006).
double best_interval(const Reliability& reliability);
double young_interval(const Reliability& reliability);
double daly_interval(const Reliability& reliability);

// Result of simulated_goodput().
struct Goodput {
  double fraction = 0;
  double error = 0;  // one standard deviation of `fraction`
};
// Simulates the goodput over a number of failures.
Goodput simulated_goodput(const Reliability& reliability, double interval, std::uint64_t seed,
                          int failures = 20000);

}  // namespace tessera::simulator
