#include "tessera/planner/pipeline_time.h"

#include <algorithm>

namespace tessera::planner {

PipelineTime pipeline_time(std::string_view schedule, const std::vector<RankTime>& ranks,
                           std::int64_t micros, int chunks, double hop) {
  const double p = static_cast<double>(ranks.size()), k = static_cast<double>(micros);
  RankTime sum, most;
  double slowest = 0;
  for (const RankTime& rank : ranks) {
    sum.forward += rank.forward;
    sum.backward_input += rank.backward_input;
    sum.backward_weight += rank.backward_weight;
    most.forward = std::max(most.forward, rank.forward);
    most.backward_input = std::max(most.backward_input, rank.backward_input + rank.backward_weight);
    slowest = std::max(slowest, rank.total());
  }
  PipelineTime time;
  if (ranks.size() == 1) {
    time.total = k * slowest;
    return time;
  }
  const double fill = 2 * (p - 1) * hop;
  const double f = sum.forward / p, bi = sum.backward_input / p, bw = sum.backward_weight / p;
  if (schedule == "gpipe") {
    time.hops = fill;
    time.total = sum.total() + (k - 1) * (most.forward + most.backward_input);
  } else if (schedule == "interleaved") {
    // The pipeline fills by chunks; the rest is as busy as its slowest rank.
    time.hops = fill + (k * chunks - 1) * hop;
    time.total = k * slowest + (p - 1) * sum.total() / p / chunks;
  } else if (schedule == "zb-h1") {
    // Weight gradients that were put off run while 1F1B would wait.
    time.hops = fill + (k - 1) * hop;
    time.total = k * slowest + (p - 1) * (f + std::max(0.0, bi - bw)) +
                 std::max(0.0, p - k) * std::min(bi, bw);
  } else if (schedule == "zb-v") {
    // The order of a V is made for three parts of equal length; each slot waits for what a longer
    // backward of inputs takes more than the others.
    const double late = std::max(0.0, bi - bw) + std::max(0.0, bi - f);
    time.hops = fill + (2 * k - 1) * hop;
    time.total = k * slowest + (p - 1) * (f / 2 + std::max(0.0, bi - bw)) +
                 std::max(0.0, k - p) * late * (p == 2 ? 0.5 : 1) +
                 std::max(0.0, p - k) * std::min(bi, bw);
  } else {
    time.hops = fill + (k - 1) * hop;
    time.total = sum.total() + (k - 1) * slowest;
  }
  time.total += time.hops;
  return time;
}

}  // namespace tessera::planner
