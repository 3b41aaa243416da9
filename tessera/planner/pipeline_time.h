#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace tessera::planner {

// What one pipeline rank computes for one micro-batch, all its chunks together.
struct RankTime {
  double forward = 0, backward_input = 0, backward_weight = 0;
  double total() const { return forward + backward_input + backward_weight; }
};

// [Note: closed forms] Seconds from the first forward to the last backward, without running the
// schedule's clock. They are the clock's for stages of equal cost (zb-v: within 5%); for unequal
// ones, the first micro-batch passes all stages and the others follow at the slowest one's pace.
// `hop` is what a transfer to the next stage takes: 1F1B waits for one in every slot, where a send
// and a receive go at the same time, and for all of them while the pipeline fills and drains.
struct PipelineTime {
  double total = 0;
  double hops = 0;  // part of it
};
PipelineTime pipeline_time(std::string_view schedule, const std::vector<RankTime>& ranks,
                           std::int64_t micros, int chunks, double hop);

}  // namespace tessera::planner
