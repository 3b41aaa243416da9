#include <algorithm>
#include <functional>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/schedule/build.h"
#include "tessera/schedule/schedule.h"

namespace tessera::schedule {
namespace {

using Order = std::vector<Action>;  // compute actions of one rank

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
  static const std::vector<std::string> all = {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"};
  return all;
}

Schedule make(std::string_view name, int ranks, int micros, int chunks) {
  if (name == "gpipe") return gpipe(ranks, micros);
  if (name == "1f1b") return one_f_one_b(ranks, micros);
  if (name == "interleaved") return interleaved(ranks, micros, chunks == 0 ? 2 : chunks);
  if (name == "zb-h1") return zero_bubble_h1(ranks, micros);
  if (name == "zb-v") return zero_bubble_v(ranks, micros);
  throw UsageError(str("schedule ", quote(name), " is unknown", did_you_mean(name, names()),
                       "; must be one of ", join(names(), ", ")));
}

}  // namespace tessera::schedule
