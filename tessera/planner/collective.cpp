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

using Trace = CollectiveTrace;

class CollectiveTracer {
 public:
  explicit CollectiveTracer(const CollectiveInput& ask) : ask_(ask) {
    trace_.ranks = trace_.chunks = ask.ranks;
    trace_.start.resize(static_cast<std::size_t>(ask.ranks));
    for (int r = 0; r < ask.ranks; ++r) {
      for (int c = 0; c < ask.ranks; ++c) {
        trace_.start[static_cast<std::size_t>(r)].push_back(1 + (5 * r + 3 * c) % 9);
      }
    }
    now_ = trace_.start;
    sent_.resize(static_cast<std::size_t>(ask.ranks));
  }

  // All transfers of a step read the values from before the step.
  void step(const std::string& phase, std::vector<Trace::Transfer> transfers) {
    if (transfers.empty()) return;
    Trace::Step step;
    step.phase = phase;
    const std::vector<std::vector<int>> before = now_;
    const double chunk = ask_.bytes / trace_.chunks;
    std::map<std::pair<int, int>, double> loads;  // bytes by (from, to)
    std::map<int, double> out;
    for (const Trace::Transfer& t : transfers) {
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
    trace_.seconds += step.seconds;
    trace_.steps.push_back(std::move(step));
  }

  // Parallel rings, each over its `members`; a piece is a list of chunks. After reduce-scatter,
  // member i holds the complete sum of piece i + 1, from which all-gather starts.
  struct Ring {
    std::vector<int> members;
    std::vector<std::vector<int>> pieces;
  };
  void rings(const std::string& phase, const std::vector<Ring>& all, bool adds) {
    const int n = static_cast<int>(all.front().members.size());
    for (int k = 0; k + 1 < n; ++k) {
      std::vector<Trace::Transfer> transfers;
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

  Trace finish() {
    trace_.bytes_per_rank = *std::max_element(sent_.begin(), sent_.end());
    trace_.sent = sent_;
    return std::move(trace_);
  }

 private:
  CollectiveInput ask_;
  Trace trace_;
  std::vector<std::vector<int>> now_;
  std::vector<double> sent_;
};

void trace_ring(CollectiveTracer& tracer, int n) {
  CollectiveTracer::Ring ring;
  for (int i = 0; i < n; ++i) ring.members.push_back(i), ring.pieces.push_back({i});
  tracer.rings("reduce-scatter", {ring}, true);
  tracer.rings("all-gather", {ring}, false);
}

// Binary tree over the ranks: sums go up to rank 0, and the result goes back down.
void trace_tree(CollectiveTracer& tracer, int n) {
  const auto level = [&](const char* phase, int distance, bool up) {
    std::vector<Trace::Transfer> transfers;
    for (int low = 0; low + distance < n; low += 2 * distance) {
      for (int c = 0; c < n; ++c) {
        transfers.push_back(up ? Trace::Transfer{low + distance, low, c, true}
                               : Trace::Transfer{low, low + distance, c, false});
      }
    }
    tracer.step(phase, std::move(transfers));
  };
  int top = 1;
  for (; top < n; top *= 2) level("reduce", top, true);
  for (int d = top / 2; d >= 1; d /= 2) level("broadcast", d, false);
}

// Reduce-scatter inside each node, all-reduce of each member's piece between nodes, and all-gather
// inside each node.
void trace_two_levels(CollectiveTracer& tracer, int n, int m) {
  const int nodes = n / m;
  std::vector<CollectiveTracer::Ring> inside, between;
  for (int node = 0; node < nodes; ++node) {
    CollectiveTracer::Ring ring;
    for (int i = 0; i < m; ++i) {
      ring.members.push_back(node * m + i);
      std::vector<int> piece;
      for (int c = 0; c < nodes; ++c) piece.push_back(i * nodes + c);
      ring.pieces.push_back(piece);
    }
    inside.push_back(ring);
  }
  for (int i = 0; i < m; ++i) {
    CollectiveTracer::Ring ring;
    const int owned = (i + 1) % m;  // piece that member i holds after the first phase
    for (int node = 0; node < nodes; ++node) {
      ring.members.push_back(node * m + i);
      ring.pieces.push_back({owned * nodes + node});
    }
    between.push_back(ring);
  }
  tracer.rings("reduce-scatter", inside, true);
  tracer.rings("reduce-scatter between nodes", between, true);
  tracer.rings("all-gather between nodes", between, false);
  tracer.rings("all-gather", inside, false);
}

}  // namespace

std::vector<std::string> collective_algorithms() { return {"ring", "tree", "two-level"}; }

CollectiveTrace trace_collective(const CollectiveInput& a) {
  CollectiveTracer tracer(a);
  const int n = a.ranks;
  const bool leaves = n > a.per_node;
  const double bandwidth = leaves ? std::min(a.bandwidth, a.between_bandwidth) : a.bandwidth;
  const double latency = leaves ? std::max(a.latency, a.between_latency) : a.latency;
  double formula = ring_all_reduce_time(a.bytes, n, bandwidth, latency);
  if (a.algorithm == "tree") {
    trace_tree(tracer, n);
    const int levels = std::bit_width(static_cast<unsigned>(n - 1));
    // Partners at a distance of 2^k are on one node if 2^(k+1) divides its ranks.
    const int inside =
        leaves ? std::min(levels, std::countr_zero(static_cast<unsigned>(a.per_node))) : levels;
    formula = 2 * inside * (a.bytes / a.bandwidth + a.latency) +
              2 * (levels - inside) * (a.bytes / a.between_bandwidth + a.between_latency);
  } else if (a.algorithm == "two-level") {
    const int m = std::min(a.per_node, n);
    if (n % m != 0) {
      throw UsageError(str("--per-node ", m, ": must divide the ", n, " ranks"), "per-node");
    }
    trace_two_levels(tracer, n, m);
    formula = ring_all_reduce_time(a.bytes, m, a.bandwidth, a.latency) +
              ring_all_reduce_time(a.bytes / m, n / m, a.between_bandwidth, a.between_latency);
  } else {
    trace_ring(tracer, n);
  }
  CollectiveTrace trace = tracer.finish();
  trace.closed_form = formula;
  return trace;
}

std::string to_json(const CollectiveInput& ask, const CollectiveTrace& trace) {
  using Json = nlohmann::ordered_json;
  Json steps = Json::array();
  for (const Trace::Step& step : trace.steps) {
    Json transfers = Json::array();
    for (const Trace::Transfer& t : step.transfers) {
      transfers.push_back({{"from", t.from}, {"to", t.to}, {"chunk", t.chunk}, {"adds", t.adds}});
    }
    steps.push_back({{"phase", step.phase},
                     {"transfers", std::move(transfers)},
                     {"values", step.values},
                     {"seconds", step.seconds},
                     {"bytes", step.bytes}});
  }
  return Json{{"algorithm", ask.algorithm},
              {"ranks", trace.ranks},
              {"chunks", trace.chunks},
              {"start", trace.start},
              {"steps", std::move(steps)},
              {"bytes_per_rank", trace.bytes_per_rank},
              {"bytes_by_rank", trace.sent},
              {"seconds", trace.seconds},
              {"closed_form_seconds", trace.closed_form}}
      .dump();
}

}  // namespace tessera::planner
