#include "tessera/planner/search.h"

#include <algorithm>
#include <array>
#include <deque>
#include <limits>
#include <tuple>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/planner/places.h"
#include "tessera/planner/software.h"
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

// [Note: orders in a search] Where axes lie depends on the mesh alone, so its orders that differ in
// some place are found once. A configuration is bounded from below over all of them at once: its
// chunks with the order that is best for tp, data parallelism at the best of its places. Orders are
// then played for those configurations alone whose bound is good enough. Numbers of replicas are
// taken the same way: each that fits has orders and a bound of its own, and one that is not quicker
// than plain sharding is not proposed.
struct MeshOrders {
  std::vector<std::string> orders;  // the usual one first; no two of them with the same places
  std::vector<std::string> for_tp;  // whose chunks are least: one, unless none is in every way
  std::vector<ReplicaPlace> replicas;
};

bool same(const GroupPlace& a, const GroupPlace& b) {
  return a.ranks == b.ranks && a.in_node == b.in_node && a.crossing == b.crossing &&
         a.span == b.span;
}

// Whether no collective of any size takes longer there. Their time is a latency and a time per
// byte.
bool never_slower(const Topology& t, const GroupPlace& a, const GroupPlace& b) {
  constexpr double kMany = 1e15;
  for (const Collective kind :
       {Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather}) {
    const auto of = [&](const GroupPlace& place, double bytes) {
      return collective_cost(t, kind, bytes, place).seconds(t);
    };
    if (of(a, 0) > of(b, 0) || of(a, kMany) > of(b, kMany)) return false;
  }
  return true;
}

MeshOrders mesh_orders(const Question& q, bool fixed) {
  const Topology topology = q.hardware.topology(q.per_node);
  MeshOrders mesh;
  std::vector<Places> all;
  const auto add = [&](const std::string& order) {
    const Places places = places_on(topology, in_order(order, q.axes));
    for (const Places& other : all) {
      if (same(places.along[Axis::tp], other.along[Axis::tp]) &&
          same(places.along[Axis::dp_shard], other.along[Axis::dp_shard]) &&
          same(places.along[Axis::dp_replicate], other.along[Axis::dp_replicate]) &&
          same(places.hop, other.hop) && same(places.tied, other.tied)) {
        return;
      }
    }
    all.push_back(places);
    mesh.orders.push_back(order);
    const GroupPlace& own = places.along[Axis::dp_shard];
    const GroupPlace& across = places.along[Axis::dp_replicate];
    for (const ReplicaPlace& other : mesh.replicas) {
      if (same(own, other.dp) && same(across, other.across)) return;
    }
    mesh.replicas.push_back({own, q.hardware.interference * pace_of(topology, own), across,
                             q.hardware.interference * pace_of(topology, across)});
  };
  add(q.order);
  std::vector<std::string> names;
  for (const Axis axis : kAllAxes) {
    // Replicas are right outside the ranks that shard: in_order() puts them there.
    if (axis != Axis::dp_replicate) names.emplace_back(axis_name(axis));
  }
  std::sort(names.begin(), names.end());
  while (!fixed) {
    add(join(names, ","));
    if (!std::next_permutation(names.begin(), names.end())) break;
  }
  for (std::size_t i = 0; i < all.size() && mesh.for_tp.empty(); ++i) {
    const bool best = std::all_of(all.begin(), all.end(), [&](const Places& other) {
      return never_slower(topology, all[i].along[Axis::tp], other.along[Axis::tp]);
    });
    if (best) mesh.for_tp = {mesh.orders[i]};
  }
  if (mesh.for_tp.empty()) mesh.for_tp = mesh.orders;
  return mesh;
}

// A number of replicas with which a configuration fits.
struct Sharded {
  int replicas;
  double memory;
  double tokens_per_s;  // at most
  const MeshOrders* mesh;
};

// A configuration that fits: what a table of the best needs to be made again.
struct Found {
  double tokens_per_s;  // at most, until it is one of the best
  double memory;
  Question question;
  std::vector<Sharded> ways;  // plain sharding first, unless replicas are asked for
};

class Search {
 public:
  explicit Search(const SearchQuestion& question) : ask_(question), base_(question.base) {
    if (base_.state_only()) {
      throw UsageError("--search: needs a model with sizes; --params gives none");
    }
    check(base_.model);
    check_lora(base_.model);
    if (ask_.fixed.zero) check_replicas_at(base_.zero, base_.axes);
    base_.software = software_of(base_);
    base_.attention = attention_of(base_);
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
  Sharded bounded(Question q, double memory);
  void play_orders(Found& found, double enough) const;
  bool lacks(const Question& q) const;
  void rule_out(const char* reason) { ++result_.ruled_out[reason]; }

  const SearchQuestion& ask_;
  Question base_;
  SearchResult result_;
  std::vector<Found> found_;
  std::deque<MeshOrders> orders_;          // of the meshes with something that fits
  std::map<int, const MeshOrders*> mesh_;  // of the present mesh, by replicas
  // Of the present mesh: order, micro-batch, recomputation and sequence parallelism say it all.
  std::map<std::tuple<std::string, std::int64_t, Recompute, bool>, PartTimes> parts_;
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
        Axes mesh = {{Axis::tp, static_cast<int>(tp)}, {Axis::pp, static_cast<int>(pp)}};
        mesh.set_dp(static_cast<int>(dp));
        const int replicas = ask_.fixed.replicas ? base_.replicas() : 1;
        mesh.set_given(Axis::dp_replicate, replicas);
        if (dp % replicas == 0) {
          all.push_back(mesh);
        } else {
          rule_out("dp-replicate does not divide dp");
        }
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
  mesh_.clear();
  parts_.clear();
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
        if (zero == 0 && q.replicas() > 1) continue;
        q.zero = zero;
        if (lacks(q)) {
          rule_out("the software that runs it has no such stage or schedule");
        } else {
          try_memory(q);
        }
      }
    }
  }
}

// What was asked for is tried though its software has it not; nothing else is.
bool Search::lacks(const Question& q) const {
  switch (lack_of(q)) {
    case Lack::none: return false;
    case Lack::stage_two:
    case Lack::kept_in_pp: return !ask_.fixed.zero;
    case Lack::schedule:
    case Lack::tied_on_one: return !ask_.fixed.schedule;
    case Lack::split_at_3: return !ask_.fixed.schedule || !ask_.fixed.zero;
  }
  return false;
}

void Search::try_memory(Question q) {
  if (++result_.tried > ask_.most && ask_.most > 0) {
    throw UsageError(str("--gpus: got ", base_.gpus, " with a global batch of ", base_.global_batch,
                         ", which can be cut in more than ", ask_.most,
                         " ways; wanted numbers with fewer divisors, such as powers of two, or "
                         "less to choose (--tp, --pp, --zero)"));
  }
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
  const int asked = q.replicas();
  std::vector<Sharded> ways = {bounded(q, memory)};
  if (q.zero > 0 && !ask_.fixed.replicas) {
    for (const int replicas : replica_counts(q)) {
      q.axes.set_given(Axis::dp_replicate, replicas);
      const double more = memory_of(q).total();
      if (more <= usable_memory(q.hardware)) ways.push_back(bounded(q, more));
    }
    q.axes.set_given(Axis::dp_replicate, asked);
  }
  double most = 0;
  for (const Sharded& way : ways) most = std::max(most, way.tokens_per_s);
  found_.push_back({most, memory, std::move(q), std::move(ways)});
}

// A bound over all orders of its mesh.
Sharded Search::bounded(Question q, double memory) {
  const MeshOrders*& mesh = mesh_[q.replicas()];
  if (mesh == nullptr) {
    q.order = base_.order;
    orders_.push_back(mesh_orders(q, ask_.fixed.order));
    mesh = &orders_.back();
  }
  double least = std::numeric_limits<double>::infinity();
  for (const std::string& order : mesh->for_tp) {
    q.order = order;
    const auto [parts, fresh] =
        parts_.try_emplace({order, q.micro_batch, q.recompute, q.sequence_parallel});
    if (fresh) parts->second = part_times(q);
    least = std::min(least, least_step_time(describe_step(q, parts->second), mesh->replicas));
  }
  return {q.replicas(), memory, tokens_per_s(q, least), mesh};
}

// In all orders of its mesh, with each number of replicas, that could reach so many tokens a
// second; 0 if none can. One that is quicker than the usual order, or than plain sharding, by less
// than a thousandth is not worth a rank order or replicas of its own.
void Search::play_orders(Found& found, double enough) const {
  constexpr double kWorth = 1.001;
  Question& q = found.question;
  const Sharded* best_way = &found.ways.front();
  const std::string* best = &best_way->mesh->orders.front();
  found.tokens_per_s = 0;
  for (const Sharded& way : found.ways) {
    q.axes.set_given(Axis::dp_replicate, way.replicas);
    for (const std::string& order : way.mesh->orders) {
      const double wanted = std::max(enough, kWorth * found.tokens_per_s);
      if (way.tokens_per_s < wanted) break;
      q.order = order;
      const Step step = describe_step(q);
      if (tokens_per_s(q, least_step_time(step)) < wanted) continue;
      const double rate = tokens_per_s(q, step_time(step).step());
      if (rate < wanted) continue;
      found.tokens_per_s = rate;
      best_way = &way;
      best = &order;
    }
  }
  q.axes.set_given(Axis::dp_replicate, best_way->replicas);
  q.order = *best;
  found.memory = best_way->memory;
}

// In the order of what they could reach at most, until none of the others can be among the best.
SearchResult Search::finish() {
  result_.fitting = static_cast<std::int64_t>(found_.size());
  const auto better = [](const Found& a, const Found& b) {
    return a.tokens_per_s != b.tokens_per_s ? a.tokens_per_s > b.tokens_per_s : a.memory < b.memory;
  };
  std::vector<Found*> by_bound;  // a question is large to move
  by_bound.reserve(found_.size());
  for (Found& each : found_) by_bound.push_back(&each);
  std::sort(by_bound.begin(), by_bound.end(),
            [&](const Found* a, const Found* b) { return better(*a, *b); });
  const auto top = static_cast<std::size_t>(std::max(1, ask_.top));
  std::vector<Found> best;
  for (Found* const next : by_bound) {
    Found& each = *next;
    if (best.size() == top && each.tokens_per_s < best.back().tokens_per_s) break;
    play_orders(each, best.size() == top ? best.back().tokens_per_s : 0);
    if (each.tokens_per_s <= 0) continue;
    best.insert(std::upper_bound(best.begin(), best.end(), each, better), std::move(each));
    if (best.size() > top) best.pop_back();
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
  ask.fixed.replicas = settings.has("dp-replicate");
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
