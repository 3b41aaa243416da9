#include "tessera/schedule/schedule.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <stdexcept>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::schedule {

const char* name(Kind kind) noexcept {
  switch (kind) {
    case Kind::forward: return "forward";
    case Kind::backward: return "backward";
    case Kind::backward_input: return "backward_input";
    case Kind::backward_weight: return "backward_weight";
    case Kind::send_activation: return "send_activation";
    case Kind::receive_activation: return "receive_activation";
    case Kind::send_gradient: return "send_gradient";
    case Kind::receive_gradient: return "receive_gradient";
  }
  return "?";
}

bool splits_backward(const Schedule& schedule) {
  for (const auto& actions : schedule.actions) {
    for (const Action& action : actions) {
      if (action.kind == Kind::backward_weight) return true;
    }
  }
  return false;
}

Schedule::Home Schedule::home(int stage) const {
  for (int r = 0; r < ranks; ++r) {
    for (int c = 0; c < chunks; ++c) {
      if (this->stage(r, c) == stage) return {r, c};
    }
  }
  throw Error(str("schedule ", name, " has no stage ", stage));
}

namespace {

using Order = std::vector<Action>;  // compute actions of one rank

// Returns a schedule from the compute actions of each rank, `orders`. Inserts a receive before each
// action that needs a result of another rank, and a send after each result that another rank needs.
Schedule with_transfers(std::string name, int micros, std::vector<std::vector<int>> stages,
                        const std::vector<Order>& orders) {
  Schedule schedule;
  schedule.name = std::move(name);
  schedule.ranks = static_cast<int>(stages.size());
  schedule.micros = micros;
  schedule.chunks = static_cast<int>(stages.front().size());
  schedule.stages = std::move(stages);
  std::vector<int> rank_of(static_cast<std::size_t>(schedule.stage_count()));
  for (int r = 0; r < schedule.ranks; ++r) {
    for (int c = 0; c < schedule.chunks; ++c) {
      rank_of[static_cast<std::size_t>(schedule.stage(r, c))] = r;
    }
  }
  const auto on_other_rank = [&](int rank, int stage) {
    return stage >= 0 && stage < schedule.stage_count() &&
           rank_of[static_cast<std::size_t>(stage)] != rank;
  };
  for (int r = 0; r < schedule.ranks; ++r) {
    std::vector<Action> actions;
    for (const Action& action : orders[static_cast<std::size_t>(r)]) {
      const int stage = schedule.stage(r, action.chunk);
      const bool forward = action.kind == Kind::forward;
      const bool backward = action.kind == Kind::backward || action.kind == Kind::backward_input;
      const auto add = [&](Kind kind) { actions.push_back({kind, action.micro, action.chunk}); };
      if (forward && on_other_rank(r, stage - 1)) add(Kind::receive_activation);
      if (backward && on_other_rank(r, stage + 1)) add(Kind::receive_gradient);
      actions.push_back(action);
      if (forward && on_other_rank(r, stage + 1)) add(Kind::send_activation);
      if (backward && on_other_rank(r, stage - 1)) add(Kind::send_gradient);
    }
    schedule.actions.push_back(std::move(actions));
  }
  return schedule;
}

void check_sizes(const char* name, int ranks, int micros, int chunks) {
  if (ranks < 1 || micros < 1 || chunks < 1 || ranks > 65536 || micros > 65536 || chunks > 1024) {
    throw UsageError(str("schedule ", name, " of ", ranks, " ranks, ", micros,
                         " micro-batches and ", chunks,
                         " chunks; must be 1 to 65536 ranks and "
                         "micro-batches, and 1 to 1024 chunks"));
  }
}

// Puts stage s on rank s mod ranks, so that the next stage is always on the next rank.
std::vector<std::vector<int>> round_robin(int ranks, int chunks) {
  std::vector<std::vector<int>> stages(static_cast<std::size_t>(ranks));
  for (int r = 0; r < ranks; ++r) {
    for (int c = 0; c < chunks; ++c) stages[static_cast<std::size_t>(r)].push_back(c * ranks + r);
  }
  return stages;
}

// Returns `warmup` forwards, then alternating forwards and backwards, then the other backwards.
Order alternate(const Order& forwards, const Order& backwards, std::size_t warmup) {
  Order order(forwards.begin(), forwards.begin() + static_cast<std::ptrdiff_t>(warmup));
  std::size_t done = 0;
  for (std::size_t f = warmup; f < forwards.size(); ++f) {
    order.push_back(forwards[f]);
    order.push_back(backwards[done++]);
  }
  order.insert(order.end(), backwards.begin() + static_cast<std::ptrdiff_t>(done), backwards.end());
  return order;
}

Order in_sequence(Kind kind, int micros) {
  Order order;
  for (int m = 0; m < micros; ++m) order.push_back({kind, m, 0});
  return order;
}

}  // namespace

Schedule gpipe(int ranks, int micros) {
  check_sizes("gpipe", ranks, micros, 1);
  std::vector<Order> orders(
      static_cast<std::size_t>(ranks),
      alternate(in_sequence(Kind::forward, micros), in_sequence(Kind::backward, micros),
                static_cast<std::size_t>(micros)));
  return with_transfers("gpipe", micros, round_robin(ranks, 1), orders);
}

Schedule one_f_one_b(int ranks, int micros) {
  check_sizes("1f1b", ranks, micros, 1);
  std::vector<Order> orders;
  for (int r = 0; r < ranks; ++r) {
    const int warmup = std::min(ranks - 1 - r, micros);
    orders.push_back(alternate(in_sequence(Kind::forward, micros),
                               in_sequence(Kind::backward, micros),
                               static_cast<std::size_t>(warmup)));
  }
  return with_transfers("1f1b", micros, round_robin(ranks, 1), orders);
}

// Micro-batches are processed in groups of about `ranks`. A group passes through one chunk after
// another, so that the next chunk of a rank starts when the group returns to it.
Schedule interleaved(int ranks, int micros, int chunks) {
  check_sizes("interleaved", ranks, micros, chunks);
  if (micros < ranks) {
    throw UsageError(str("schedule interleaved: ", micros, " micro-batches for ", ranks,
                         " ranks; must be at least as many micro-batches as ranks"));
  }
  const int groups = micros / ranks;
  const auto first_of = [&](int group) {
    return static_cast<int>(static_cast<long long>(group) * micros / groups);
  };
  Order forwards, backwards;
  int largest = 0;
  for (int g = 0; g < groups; ++g) {
    largest = std::max(largest, first_of(g + 1) - first_of(g));
    for (int c = 0; c < chunks; ++c) {
      for (int m = first_of(g); m < first_of(g + 1); ++m) {
        forwards.push_back({Kind::forward, m, c});
        backwards.push_back({Kind::backward, m, chunks - 1 - c});
      }
    }
  }
  // Within a group, backwards start with the last chunk, but keep the order of micro-batches.
  std::vector<Order> orders;
  for (int r = 0; r < ranks; ++r) {
    const long long warmup =
        chunks == 1 ? ranks - 1 - r
                    : 2LL * (ranks - 1 - r) + static_cast<long long>(chunks - 1) * largest;
    orders.push_back(alternate(forwards, backwards,
                               static_cast<std::size_t>(std::min<long long>(
                                   warmup, static_cast<long long>(forwards.size())))));
  }
  return with_transfers("interleaved", micros, round_robin(ranks, chunks), orders);
}

// Same as 1F1B, but rank r delays its weight gradients by r micro-batches. They fill the bubble at
// the end. Rank r holds at most (ranks - r) + r activations, as many as the first rank of 1F1B.
Schedule zero_bubble_h1(int ranks, int micros) {
  check_sizes("zb-h1", ranks, micros, 1);
  std::vector<Order> orders;
  for (int r = 0; r < ranks; ++r) {
    const int warmup = std::min(ranks - 1 - r, micros);
    Order order;
    int weights = 0;
    const Order plain =
        alternate(in_sequence(Kind::forward, micros), in_sequence(Kind::backward_input, micros),
                  static_cast<std::size_t>(warmup));
    for (const Action& action : plain) {
      order.push_back(action);
      if (action.kind == Kind::backward_input && action.micro - weights >= r) {
        order.push_back({Kind::backward_weight, weights++, 0});
      }
    }
    while (weights < micros) order.push_back({Kind::backward_weight, weights++, 0});
    orders.push_back(std::move(order));
  }
  return with_transfers("zb-h1", micros, round_robin(ranks, 1), orders);
}

const std::vector<std::string>& names() {
  static const std::vector<std::string> all = names_of<ScheduleChoice>();
  return all;
}

Schedule make(ScheduleChoice choice, int ranks, int micros, int chunks) {
  switch (choice) {
    case ScheduleChoice::gpipe: return gpipe(ranks, micros);
    case ScheduleChoice::one_f_one_b: return one_f_one_b(ranks, micros);
    case ScheduleChoice::interleaved: return interleaved(ranks, micros, chunks == 0 ? 2 : chunks);
    case ScheduleChoice::zb_h1: return zero_bubble_h1(ranks, micros);
    case ScheduleChoice::zb_v: return zero_bubble_v(ranks, micros);
  }
  throw std::logic_error("unknown schedule");
}

Schedule make(std::string_view name, int ranks, int micros, int chunks) {
  if (const auto choice = find_named<ScheduleChoice>(name)) {
    return make(*choice, ranks, micros, chunks);
  }
  throw UsageError(str("schedule ", quote(name), " is unknown", did_you_mean(name, names()),
                       "; must be one of ", join(names(), ", ")));
}

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
