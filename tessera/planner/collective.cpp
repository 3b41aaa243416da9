#include "tessera/planner/collective.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/planner/formulas.h"

namespace tessera::planner {
namespace {

using Story = CollectiveStory;

class Teller {
 public:
  explicit Teller(const CollectiveAsk& ask) : ask_(ask) {
    story_.ranks = story_.chunks = ask.ranks;
    story_.start.resize(static_cast<std::size_t>(ask.ranks));
    for (int r = 0; r < ask.ranks; ++r) {
      for (int c = 0; c < ask.ranks; ++c) {
        story_.start[static_cast<std::size_t>(r)].push_back(1 + (5 * r + 3 * c) % 9);
      }
    }
    now_ = story_.start;
    sent_.resize(static_cast<std::size_t>(ask.ranks));
  }

  // All transfers of a step begin with what is there before it.
  void step(const std::string& phase, std::vector<Story::Transfer> transfers) {
    if (transfers.empty()) return;
    Story::Step step;
    step.phase = phase;
    const std::vector<std::vector<int>> before = now_;
    const double chunk = ask_.bytes / story_.chunks;
    std::map<std::pair<int, int>, double> loads;  // by way
    std::map<int, double> out;
    for (const Story::Transfer& t : transfers) {
      const int value = before[static_cast<std::size_t>(t.from)][static_cast<std::size_t>(t.chunk)];
      int& to = now_[static_cast<std::size_t>(t.to)][static_cast<std::size_t>(t.chunk)];
      to = t.adds ? to + value : value;
      loads[{t.from, t.to}] += chunk;
      out[t.from] += chunk;
      sent_[static_cast<std::size_t>(t.from)] += chunk;
    }
    for (const auto& [way, bytes] : loads) {
      const bool inside = way.first / ask_.per_node == way.second / ask_.per_node;
      const double takes = inside ? bytes / ask_.bandwidth + ask_.latency
                                  : bytes / ask_.between_bandwidth + ask_.between_latency;
      step.seconds = std::max(step.seconds, takes);
    }
    for (const auto& [rank, bytes] : out) step.bytes = std::max(step.bytes, bytes);
    step.transfers = std::move(transfers);
    step.values = now_;
    story_.seconds += step.seconds;
    story_.steps.push_back(std::move(step));
  }

  // Rings side by side, each over `members`, whose pieces are lists of chunks. After reduce-scatter
  // member i has piece (i + 1) whole; all-gather begins there.
  struct Ring {
    std::vector<int> members;
    std::vector<std::vector<int>> pieces;
  };
  void rings(const std::string& phase, const std::vector<Ring>& all, bool adds) {
    const int n = static_cast<int>(all.front().members.size());
    for (int k = 0; k + 1 < n; ++k) {
      std::vector<Story::Transfer> transfers;
      for (const Ring& ring : all) {
        for (int i = 0; i < n; ++i) {
          const int piece = ((adds ? i - k : i + 1 - k) % n + n) % n;
          for (const int chunk : ring.pieces[static_cast<std::size_t>(piece)]) {
            transfers.push_back({ring.members[static_cast<std::size_t>(i)],
                                 ring.members[static_cast<std::size_t>((i + 1) % n)], chunk, adds});
          }
        }
      }
      step(phase, std::move(transfers));
    }
  }

  Story finish() {
    story_.bytes_per_rank = *std::max_element(sent_.begin(), sent_.end());
    return std::move(story_);
  }

 private:
  CollectiveAsk ask_;
  Story story_;
  std::vector<std::vector<int>> now_;
  std::vector<double> sent_;
};

void tell_ring(Teller& teller, int n) {
  Teller::Ring ring;
  for (int i = 0; i < n; ++i) ring.members.push_back(i), ring.pieces.push_back({i});
  teller.rings("reduce-scatter", {ring}, true);
  teller.rings("all-gather", {ring}, false);
}

// A binary tree over the ranks: sums go up to rank 0, the result comes down.
void tell_tree(Teller& teller, int n) {
  const auto level = [&](const char* phase, int distance, bool up) {
    std::vector<Story::Transfer> transfers;
    for (int low = 0; low + distance < n; low += 2 * distance) {
      for (int c = 0; c < n; ++c) {
        transfers.push_back(up ? Story::Transfer{low + distance, low, c, true}
                               : Story::Transfer{low, low + distance, c, false});
      }
    }
    teller.step(phase, std::move(transfers));
  };
  int top = 1;
  for (; top < n; top *= 2) level("reduce", top, true);
  for (int d = top / 2; d >= 1; d /= 2) level("broadcast", d, false);
}

// Inside each node a reduce-scatter, between nodes an all-reduce of each member's part, and inside
// each node an all-gather.
void tell_two_levels(Teller& teller, int n, int m) {
  const int nodes = n / m;
  std::vector<Teller::Ring> inside, between;
  for (int node = 0; node < nodes; ++node) {
    Teller::Ring ring;
    for (int i = 0; i < m; ++i) {
      ring.members.push_back(node * m + i);
      std::vector<int> piece;
      for (int c = 0; c < nodes; ++c) piece.push_back(i * nodes + c);
      ring.pieces.push_back(piece);
    }
    inside.push_back(ring);
  }
  for (int i = 0; i < m; ++i) {
    Teller::Ring ring;
    const int owned = (i + 1) % m;  // what member i has whole after the first phase
    for (int node = 0; node < nodes; ++node) {
      ring.members.push_back(node * m + i);
      ring.pieces.push_back({owned * nodes + node});
    }
    between.push_back(ring);
  }
  teller.rings("reduce-scatter", inside, true);
  teller.rings("reduce-scatter between nodes", between, true);
  teller.rings("all-gather between nodes", between, false);
  teller.rings("all-gather", inside, false);
}

}  // namespace

std::vector<std::string> collective_algorithms() { return {"ring", "tree", "two-level"}; }

CollectiveStory tell_collective(const CollectiveAsk& a) {
  Teller teller(a);
  const int n = a.ranks;
  const bool leaves = n > a.per_node;
  const double bandwidth = leaves ? std::min(a.bandwidth, a.between_bandwidth) : a.bandwidth;
  const double latency = leaves ? std::max(a.latency, a.between_latency) : a.latency;
  double formula = ring_all_reduce_time(a.bytes, n, bandwidth, latency);
  if (a.algorithm == "tree") {
    tell_tree(teller, n);
    const int levels = std::bit_width(static_cast<unsigned>(n - 1));
    formula = 2 * levels * (a.bytes / bandwidth + latency);
  } else if (a.algorithm == "two-level") {
    const int m = std::min(a.per_node, n);
    if (n % m != 0) {
      throw UsageError(str("--per-node: got ", m, ", wanted a divisor of the ", n, " ranks"));
    }
    tell_two_levels(teller, n, m);
    formula = ring_all_reduce_time(a.bytes, m, a.bandwidth, a.latency) +
              ring_all_reduce_time(a.bytes / m, n / m, a.between_bandwidth, a.between_latency);
  } else {
    tell_ring(teller, n);
  }
  CollectiveStory story = teller.finish();
  story.closed_form = formula;
  return story;
}

std::string to_json(const CollectiveAsk& ask, const CollectiveStory& story) {
  using Json = nlohmann::ordered_json;
  Json steps = Json::array();
  for (const Story::Step& step : story.steps) {
    Json transfers = Json::array();
    for (const Story::Transfer& t : step.transfers) {
      transfers.push_back({{"from", t.from}, {"to", t.to}, {"chunk", t.chunk}, {"adds", t.adds}});
    }
    steps.push_back({{"phase", step.phase},
                     {"transfers", std::move(transfers)},
                     {"values", step.values},
                     {"seconds", step.seconds},
                     {"bytes", step.bytes}});
  }
  return Json{{"algorithm", ask.algorithm}, {"ranks", story.ranks},
              {"chunks", story.chunks},     {"start", story.start},
              {"steps", std::move(steps)},  {"bytes_per_rank", story.bytes_per_rank},
              {"seconds", story.seconds},   {"closed_form_seconds", story.closed_form}}
      .dump();
}

}  // namespace tessera::planner
