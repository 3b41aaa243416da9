#include <algorithm>
#include <limits>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/schedule/build.h"

namespace tessera::schedule {
namespace {

constexpr int kUnknownSlot = std::numeric_limits<int>::max();

// State of one rank during construction. A slot has one action per rank.
struct Rank {
  int forwards[2] = {0, 0};  // number of micro-batches done, by chunk
  int inputs[2] = {0, 0};
  int weights[2] = {0, 0};
  std::vector<Action> order;

  int held() const { return forwards[0] + forwards[1] - weights[0] - weights[1]; }
};

}  // namespace

// Rank r has stage r on the way down and stage 2·ranks-1-r on the way up, so the first rank also
// has the last stage, and backward starts where forward did. The schedule is built slot by slot;
// each action takes one slot. Forwards have priority as far as memory allows (the way up before the
// way down, because it enables backwards), then input gradients, then weight gradients. With equal
// durations a rank is idle only until its first micro-batch arrives.
Schedule zero_bubble_v(int ranks, int micros) {
  if (ranks < 1 || micros < 1 || ranks > 4096 || micros > 65536) {
    throw UsageError(str("schedule zb-v of ", ranks, " ranks and ", micros,
                         " micro-batches; must be 1 to 4096 ranks and 1 to 65536 micro-batches"));
  }
  const auto n = static_cast<std::size_t>(ranks), k = static_cast<std::size_t>(micros);
  const std::size_t stage_count = 2 * n;
  std::vector<std::vector<int>> stages;
  for (int r = 0; r < ranks; ++r) stages.push_back({r, 2 * ranks - 1 - r});
  // First slot in which a forward or input gradient may be used: [stage][micro].
  std::vector<std::vector<int>> forward(stage_count, std::vector<int>(k, kUnknownSlot));
  std::vector<std::vector<int>> input(stage_count, std::vector<int>(k, kUnknownSlot));
  std::vector<Rank> all(n);
  const int limit = 2 * ranks;

  std::size_t left = n * k * 6;
  for (int slot = 0; left > 0; ++slot) {
    for (std::size_t r = 0; r < n; ++r) {
      Rank& rank = all[r];
      const auto stage = [&](int chunk) {
        return static_cast<std::size_t>(stages[r][static_cast<std::size_t>(chunk)]);
      };
      const auto forward_ready = [&](int chunk) {
        const auto m = static_cast<std::size_t>(rank.forwards[chunk]);
        if (m == k) return false;
        return stage(chunk) == 0 || forward[stage(chunk) - 1][m] <= slot;
      };
      const auto input_ready = [&](int chunk) {
        const auto m = static_cast<std::size_t>(rank.inputs[chunk]);
        if (m == k || forward[stage(chunk)][m] > slot) return false;
        return stage(chunk) + 1 == stage_count || input[stage(chunk) + 1][m] <= slot;
      };
      const auto take = [&](Kind kind, int chunk, int& count) {
        rank.order.push_back({kind, count, chunk});
        const auto m = static_cast<std::size_t>(count++);
        if (kind == Kind::forward) forward[stage(chunk)][m] = slot + 1;
        if (kind == Kind::backward_input) input[stage(chunk)][m] = slot + 1;
        --left;
      };
      // There are 2 · (ranks-1-r) slots between the two forwards of a micro-batch on a rank. More
      // micro-batches in flight would only use memory.
      const bool room = rank.held() < limit;
      const int in_flight = rank.forwards[0] - rank.forwards[1];
      if (forward_ready(1) && room) {
        take(Kind::forward, 1, rank.forwards[1]);
      } else if (forward_ready(0) && room && in_flight <= 2 * (ranks - 1 - static_cast<int>(r))) {
        take(Kind::forward, 0, rank.forwards[0]);
      } else if (input_ready(0)) {
        take(Kind::backward_input, 0, rank.inputs[0]);
      } else if (input_ready(1)) {
        take(Kind::backward_input, 1, rank.inputs[1]);
      } else if (rank.weights[1] < rank.inputs[1]) {
        take(Kind::backward_weight, 1, rank.weights[1]);
      } else if (rank.weights[0] < rank.inputs[0]) {
        take(Kind::backward_weight, 0, rank.weights[0]);
      }
    }
  }
  std::vector<std::vector<Action>> orders;
  for (Rank& rank : all) orders.push_back(std::move(rank.order));
  return with_transfers("zb-v", micros, std::move(stages), orders);
}

}  // namespace tessera::schedule
