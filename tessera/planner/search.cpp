#include "tessera/planner/search.h"

#include <algorithm>
#include <array>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/planner/places.h"
#include "tessera/schedule/schedule.h"

namespace tessera::planner {
namespace {

std::vector<std::int64_t> divisors(std::int64_t n) {
  std::vector<std::int64_t> low, high;
  for (std::int64_t d = 1; d * d <= n; ++d) {
    if (n % d != 0) continue;
    low.push_back(d);
    if (d != n / d) high.push_back(n / d);
  }
  low.insert(low.end(), high.rbegin(), high.rend());
  return low;
}

double tokens_per_s(const Question& q, double step) {
  const double tokens = static_cast<double>(q.global_batch) * static_cast<double>(q.seq);
  return step > 0 ? tokens / step : 0;
}

// Orders that differ only in where axes of one rank stand are the same.
bool same_places(const Question& a, const Question& b) {
  const auto long_axes = [](const Question& q) {
    std::string names;
    for (const AxisSize& axis : axis_order(q)) names += axis.size > 1 ? axis.name : "";
    return names;
  };
  return long_axes(a) == long_axes(b);
}

// A configuration that fits: what a table of the best needs to be made again.
struct Found {
  double tokens_per_s;  // at most, until it is one of the best
  double memory;
  Question question;
};

class Search {
 public:
  explicit Search(const SearchQuestion& question) : ask_(question), base_(question.base) {
    if (base_.state_only()) {
      throw UsageError("--search: needs a model with sizes; --params gives none");
    }
    check(base_.model);
    check_lora(base_.model);
    if (base_.schedule == "1f1b" && base_.chunks > 1) base_.schedule = "interleaved";
    if (base_.gpus == 0) {
      const int cut = base_.tp() * base_.pp();
      if (base_.dp() > 0) base_.gpus = base_.dp() * cut;
      if (base_.gpus == 0) base_.gpus = base_.nodes * std::max(1, node_size());
      if (base_.gpus == 0) base_.gpus = std::max(1, node_size());
    }
    if (base_.global_batch == 0) base_.global_batch = std::max(512, base_.gpus);
  }

  std::vector<Axes> meshes();
  void try_mesh(const Axes& mesh);
  SearchResult finish();

 private:
  int node_size() const { return base_.per_node > 0 ? base_.per_node : base_.hardware.per_node; }
  std::vector<std::pair<std::string, int>> schedules(const Axes& mesh) const;
  void try_schedule(Question q);
  void try_memory(Question q);
  void try_orders(Found& found) const;
  void rule_out(const char* reason) { ++result_.ruled_out[reason]; }

  const SearchQuestion& ask_;
  Question base_;
  SearchResult result_;
  std::vector<Found> found_;
};

std::vector<Axes> Search::meshes() {
  std::vector<Axes> all;
  for (const std::int64_t tp : divisors(base_.gpus)) {
    if (ask_.fixed.tp && tp != base_.tp()) continue;
    const bool kv = base_.model.kv_heads % tp == 0 || tp % base_.model.kv_heads == 0;
    if (base_.model.heads % tp != 0 || !kv) {
      rule_out("tp does not divide the heads");
      continue;
    }
    for (const std::int64_t pp : divisors(base_.gpus / tp)) {
      const std::int64_t dp = base_.gpus / tp / pp;
      if (ask_.fixed.pp && pp != base_.pp()) continue;
      if (base_.dp() > 0 && dp != base_.dp()) continue;
      if (pp > base_.model.layers) {
        rule_out("fewer layers than pp · chunks");
      } else if (base_.global_batch % dp != 0) {
        rule_out("dp does not divide the global batch");
      } else {
        all.push_back(Axes::of(static_cast<int>(dp), static_cast<int>(tp), static_cast<int>(pp)));
      }
    }
  }
  return all;
}

// Interleaving is tried with as many chunks as divide the layers, and with two.
std::vector<std::pair<std::string, int>> Search::schedules(const Axes& mesh) const {
  if (mesh.pp() == 1) return {{"1f1b", 1}};
  std::vector<std::pair<std::string, int>> all;
  for (const std::string& name : schedule::names()) {
    if (ask_.fixed.schedule && name != base_.schedule) continue;
    if (name != "interleaved") {
      all.emplace_back(name, name == "zb-v" ? 2 : 1);
      continue;
    }
    const std::int64_t each = std::max<std::int64_t>(2, base_.model.layers / mesh.pp());
    for (std::int64_t v = 2; v <= each; ++v) {
      const bool even = base_.model.layers % (v * mesh.pp()) == 0;
      if (even || v == 2 || ask_.fixed.chunks) all.emplace_back(name, static_cast<int>(v));
    }
  }
  if (ask_.fixed.chunks && base_.chunks > 0) {
    std::erase_if(all, [&](const auto& each) { return each.second != base_.chunks; });
  }
  return all;
}

void Search::try_mesh(const Axes& mesh) {
  Question q = base_;
  q.axes = mesh;
  q.grad_accum = 0;
  const std::int64_t each = base_.global_batch / mesh.dp();
  for (const auto& [name, chunks] : schedules(mesh)) {
    if (base_.model.layers < std::int64_t{chunks} * mesh.pp()) {
      rule_out("fewer layers than pp · chunks");
      continue;
    }
    q.schedule = name, q.chunks = chunks;
    for (const std::int64_t micro : divisors(each)) {
      if (ask_.fixed.micro_batch && micro != base_.micro_batch) continue;
      if (mesh.pp() > 1 && (each / micro > 65'536)) {
        rule_out("more than 65,536 micro-batches");
        continue;
      }
      if (name == "interleaved" && each / micro < mesh.pp()) {
        rule_out("interleaved with fewer micro-batches than pp");
        continue;
      }
      q.micro_batch = micro;
      try_schedule(q);
    }
  }
}

void Search::try_schedule(Question q) {
  const bool scores = q.attention == Attention::unfused;
  for (const Recompute what : {Recompute::none, Recompute::selective, Recompute::full}) {
    if (ask_.fixed.recompute ? what != base_.recompute : what == Recompute::selective && !scores) {
      continue;  // fused attention keeps nothing that selective recomputation would drop
    }
    q.recompute = what;
    for (const bool sequence : {false, true}) {
      if (ask_.fixed.sequence_parallel ? sequence != base_.sequence_parallel
                                       : sequence && q.tp() == 1) {
        continue;
      }
      q.sequence_parallel = sequence;
      for (int zero = 0; zero <= 3; ++zero) {
        if (ask_.fixed.zero ? zero != base_.zero : zero > 0 && q.dp() == 1) continue;
        q.zero = zero;
        try_memory(q);
      }
    }
  }
}

void Search::try_memory(Question q) {
  ++result_.tried;
  const bool by_hand = q.split != "even" && q.split != "work";
  if (by_hand && std::count(q.split.begin(), q.split.end(), ',') + 1 != q.pp() * q.chunks) {
    rule_out("--split is for another number of stages");
    return;
  }
  q = settle(std::move(q));
  const double memory = memory_of(q).total();
  if (memory > usable_memory(q.hardware)) {
    rule_out("does not fit");
    return;
  }
  const double rate = tokens_per_s(q, least_step_time(describe_step(q)));
  found_.push_back({rate, memory, std::move(q)});
}

// The best are tried in other orders of the axes on the nodes, too. One that is quicker by less
// than a thousandth is not worth a rank order of its own.
void Search::try_orders(Found& found) const {
  constexpr double kWorth = 1.001;
  std::array<std::string_view, kAxes> names = kAxisNames;
  std::sort(names.begin(), names.end());
  do {
    Question q = found.question;
    q.order = str(names[0], ",", names[1], ",", names[2]);
    if (same_places(q, found.question)) continue;
    const double rate = tokens_per_s(q, step_time(q).step());
    if (rate < kWorth * found.tokens_per_s) continue;
    found.tokens_per_s = rate;
    found.question = std::move(q);
  } while (std::next_permutation(names.begin(), names.end()));
}

// In the order of what they could reach at most, until none of the others can be among the best.
SearchResult Search::finish() {
  result_.fitting = static_cast<std::int64_t>(found_.size());
  const auto better = [](const Found& a, const Found& b) {
    return a.tokens_per_s != b.tokens_per_s ? a.tokens_per_s > b.tokens_per_s : a.memory < b.memory;
  };
  std::sort(found_.begin(), found_.end(), better);
  const auto top = static_cast<std::size_t>(std::max(1, ask_.top));
  std::vector<Found> best;
  for (Found& each : found_) {
    if (best.size() == top && each.tokens_per_s < best.back().tokens_per_s) break;
    each.tokens_per_s = tokens_per_s(each.question, step_time(each.question).step());
    best.insert(std::upper_bound(best.begin(), best.end(), each, better), std::move(each));
    if (best.size() > top) best.pop_back();
  }
  if (!ask_.fixed.order) {
    for (Found& each : best) try_orders(each);
    std::stable_sort(best.begin(), best.end(), better);
  }
  for (const Found& each : best) result_.best.push_back(plan_numbers(each.question));
  return std::move(result_);
}

}  // namespace

SearchQuestion search_question(const Settings& settings, const Catalogue& catalogue) {
  SearchQuestion ask;
  ask.base = settings.question(catalogue);
  ask.fixed.tp = settings.has("tp");
  ask.fixed.pp = settings.has("pp");
  ask.fixed.zero = settings.has("zero");
  ask.fixed.micro_batch = settings.has("micro-batch");
  ask.fixed.schedule = settings.has("schedule");
  ask.fixed.chunks = settings.has("chunks");
  ask.fixed.recompute = settings.has("recompute");
  ask.fixed.sequence_parallel = settings.has("sequence-parallel");
  ask.fixed.order = settings.has("order");
  if (settings.has("grad-accum")) {
    throw UsageError("--grad-accum: --search chooses it; give --global-batch and --micro-batch");
  }
  return ask;
}

SearchResult search(const SearchQuestion& question, const SearchProgress& progress) {
  Search search(question);
  const std::vector<Axes> meshes = search.meshes();
  for (std::size_t i = 0; i < meshes.size(); ++i) {
    search.try_mesh(meshes[i]);
    if (progress) {
      progress(static_cast<std::int64_t>(i) + 1, static_cast<std::int64_t>(meshes.size()));
    }
  }
  return search.finish();
}

}  // namespace tessera::planner
