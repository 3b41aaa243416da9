#include "tessera/planner/search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <limits>
#include <numeric>
#include <tuple>

#include "tessera/core/errors.h"
#include "tessera/core/lora.h"
#include "tessera/core/text.h"
#include "tessera/planner/context_costs.h"
#include "tessera/planner/layer_program.h"
#include "tessera/planner/mesh_orders.h"
#include "tessera/planner/neighbors.h"
#include "tessera/planner/places.h"
#include "tessera/planner/plan_parts.h"
#include "tessera/planner/rank_load.h"
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

double tokens_per_s(const RunConfig& q, double step) {
  const double tokens = real(q.global_batch) * real(q.seq);
  return step > 0 ? tokens / step : 0;
}

// Number of replicas with which a configuration fits.
struct Sharded {
  int replicas;
  double memory;
  double tokens_per_s;  // upper bound
  const MeshOrders* mesh;
};

// Configuration that fits, with the data needed to rank it.
struct Found {
  double tokens_per_s;  // upper bound, until play_orders() computes it
  Candidate candidate;
  std::vector<Sharded> ways;  // plain sharding first, unless replicas are fixed
};

class Search {
 public:
  explicit Search(const SearchRequest& question) : ask_(question), base_(question.base) {
    if (base_.state_only()) {
      throw UsageError(Flag("search"),
                       "requires the shape of a model; --params gives only its size");
    }
    check(base_.model);
    check_lora(base_.model);
    if (ask_.fixed.zero) check_replicas_at(base_.zero, base_.axes);
    sequence_ = sequence_of(base_);
    base_.software = software_of(base_);
    base_.attention = attention_of(base_);
    if (base_.schedule == ScheduleChoice::one_f_one_b && base_.chunks > 1)
      base_.schedule = ScheduleChoice::interleaved;
    if (base_.gpus == 0) {
      if (base_.dp() > 0) base_.gpus = base_.world();
      if (base_.gpus == 0) base_.gpus = base_.nodes * std::max(1, node_size());
      if (base_.gpus == 0) base_.gpus = std::max(1, node_size());
    }
    if (base_.global_batch == 0) base_.global_batch = std::max(512, base_.gpus);
  }

  std::vector<Axes> meshes();
  void try_mesh(const Axes& mesh);
  SearchResult finish();

 private:
  void add_meshes(std::size_t chosen, std::int64_t devices, Axes mesh, std::vector<Axes>& all);
  void add_expert_meshes(Axes mesh, std::vector<Axes>& all);
  bool divides_heads(std::int64_t tp) const;
  bool shares_sequences(const Axes& mesh, std::int64_t cp) const;
  bool admits(const Axes& mesh);
  int node_size() const { return base_.per_node > 0 ? base_.per_node : base_.hardware.per_node; }
  std::vector<std::pair<ScheduleChoice, int>> schedules(const Axes& mesh) const;
  void try_schedule(RunConfig q);
  void try_memory(RunConfig q);
  Sharded bounded(RunConfig q, double memory);
  void play_orders(Found& found, double enough) const;
  bool lacks(const RunConfig& q) const;
  void rule_out(const char* reason) { ++result_.ruled_out[reason]; }

  const SearchRequest& ask_;
  RunConfig base_ = RunConfig::for_plan();
  std::int64_t sequence_ = 0;  // tokens of a sequence
  SearchResult result_;
  std::vector<Found> found_;
  std::optional<Candidate> closest_;       // does not fit, and needs least memory
  std::deque<MeshOrders> orders_;          // of the meshes with a fitting configuration
  std::map<int, const MeshOrders*> mesh_;  // of the current mesh, by replicas
  // Programs for the current mesh, by micro-batch and sequence parallelism.
  std::map<std::pair<std::int64_t, bool>, Programs> programs_;
  // Times for the current mesh, by order, micro-batch, recomputation and sequence parallelism.
  std::map<std::tuple<std::string, std::int64_t, Recompute, bool>, PartTimes> parts_;
};

std::vector<Axes> Search::meshes() {
  std::vector<Axes> all;
  add_meshes(0, base_.gpus, Axes(), all);
  return all;
}

// Chooses the size of the first axis of kTableAxes that is not chosen yet among the divisors of the
// devices that are left. Data-parallel axes get what the axes that cut the model leave.
void Search::add_meshes(std::size_t chosen, std::int64_t devices, Axes mesh,
                        std::vector<Axes>& all) {
  const Axis axis = kTableAxes.at(chosen);
  if (!multiplies_ranks(axis)) {
    add_meshes(chosen + 1, devices, mesh, all);
    return;
  }
  if (kDataAxes.contains(axis)) {
    mesh.set_dp(static_cast<int>(devices));
    mesh.set_given(Axis::dp_replicate, ask_.fixed.axes[Axis::dp_replicate] ? base_.replicas() : 1);
    if (admits(mesh)) add_expert_meshes(mesh, all);
    return;
  }
  for (const std::int64_t size : divisors(devices)) {
    if (ask_.fixed.axes[axis] && size != base_.axes.size(axis)) continue;
    if (axis == Axis::tp && !divides_heads(size)) {
      rule_out("tp does not divide the heads");
      continue;
    }
    if (axis == Axis::cp && size > 1 && !shares_sequences(mesh, size)) continue;
    mesh.set(axis, static_cast<int>(size));
    add_meshes(chosen + 1, devices / size, mesh, all);
  }
}

// Adds the mesh with each number of expert-parallel ranks that is asked for or worth trying. They
// are among the ranks that shard state: [Note: expert ranks].
void Search::add_expert_meshes(Axes mesh, std::vector<Axes>& all) {
  if (!ask_.fixed.axes[Axis::ep]) {
    for (const int ep : expert_rank_counts(base_.model, mesh)) {
      all.push_back(mesh.with(Axis::ep, ep));
    }
    return;
  }
  mesh.set(Axis::ep, base_.ep());
  if (mesh.experts_divide()) {
    all.push_back(mesh);
  } else {
    rule_out("ep does not divide dp · cp");
  }
}

bool Search::divides_heads(std::int64_t tp) const {
  const ModelShape& m = base_.model;
  return m.heads % tp == 0 && (m.kv_heads % tp == 0 || tp % m.kv_heads == 0);
}

// Returns whether context parallelism over `cp` ranks is proposed: the user asks for it, or each
// rank has enough tokens of a sequence to hide its messages; and attention can be shared so.
bool Search::shares_sequences(const Axes& mesh, std::int64_t cp) const {
  if (!ask_.fixed.axes[Axis::cp] && sequence_ / cp < kLeastContextTokens) return false;
  try {
    context_kind(base_, base_.cp_kind, mesh.with(Axis::cp, static_cast<int>(cp)));
  } catch (const UsageError&) {  // --cp-kind ulysses
    return false;
  }
  return sequence_ >= 2 * cp;
}

// Returns whether a mesh of all devices is possible. Counts it as rejected otherwise.
bool Search::admits(const Axes& mesh) {
  if (base_.dp() > 0 && mesh.dp() != base_.dp()) return false;
  const char* const problem = mesh.pp() > base_.model.layers ? "fewer layers than pp · chunks"
                              : base_.global_batch % mesh.dp() != 0
                                  ? "dp does not divide the global batch"
                              : !mesh.replicas_divide() ? "dp-replicate does not divide dp"
                                                        : nullptr;
  if (problem != nullptr) rule_out(problem);
  return problem == nullptr;
}

// Tries interleaving with two chunks and with every number that divides the layers evenly.
std::vector<std::pair<ScheduleChoice, int>> Search::schedules(const Axes& mesh) const {
  if (mesh.pp() == 1) return {{ScheduleChoice::one_f_one_b, 1}};
  std::vector<std::pair<ScheduleChoice, int>> all;
  for (std::size_t i = 0; i < EnumNames<ScheduleChoice>::kNames.size(); ++i) {
    const auto choice = static_cast<ScheduleChoice>(i);
    if (ask_.fixed.schedule && choice != base_.schedule) continue;
    if (choice != ScheduleChoice::interleaved) {
      all.emplace_back(choice, choice == ScheduleChoice::zb_v ? 2 : 1);
      continue;
    }
    const std::int64_t each = std::max<std::int64_t>(2, base_.model.layers / mesh.pp());
    for (std::int64_t v = 2; v <= each; ++v) {
      const bool even = base_.model.layers % (v * mesh.pp()) == 0;
      if (even || v == 2 || ask_.fixed.chunks) all.emplace_back(choice, static_cast<int>(v));
    }
  }
  if (ask_.fixed.chunks && base_.chunks > 0) {
    std::erase_if(all, [&](const auto& each) { return each.second != base_.chunks; });
  }
  return all;
}

void Search::try_mesh(const Axes& mesh) {
  RunConfig q = base_;
  q.axes = mesh;
  mesh_.clear();
  parts_.clear();
  programs_.clear();
  q.grad_accum = 0;
  const std::int64_t each = base_.global_batch / mesh.dp();
  for (const auto& [choice, chunks] : schedules(mesh)) {
    if (base_.model.layers < std::int64_t{chunks} * mesh.pp()) {
      rule_out("fewer layers than pp · chunks");
      continue;
    }
    q.schedule = choice, q.chunks = chunks;
    for (const std::int64_t micro : divisors(each)) {
      if (ask_.fixed.micro_batch && micro != base_.micro_batch) continue;
      // More data-parallel ranks with fewer sequences each have equal tokens and need no messages.
      if (!ask_.fixed.axes[Axis::cp] && std::gcd<std::int64_t>(q.cp(), micro) > 1) continue;
      if (mesh.pp() > 1 && (each / micro > 65'536)) {
        rule_out("more than 65,536 micro-batches");
        continue;
      }
      if (choice == ScheduleChoice::interleaved && each / micro < mesh.pp()) {
        rule_out("interleaved with fewer micro-batches than pp");
        continue;
      }
      q.micro_batch = micro;
      try_schedule(q);
    }
  }
}

void Search::try_schedule(RunConfig q) {
  const bool scores = q.attention == Attention::unfused;
  for (const Recompute what : {Recompute::none, Recompute::selective, Recompute::full}) {
    if (ask_.fixed.recompute ? what != base_.recompute : what == Recompute::selective && !scores) {
      continue;  // with fused attention, selective recomputation saves nothing
    }
    q.recompute = what;
    for (const bool sequence : {false, true}) {
      if (ask_.fixed.sequence_parallel ? sequence != base_.sequence_parallel
                                       : sequence && q.tp() == 1) {
        continue;
      }
      q.sequence_parallel = sequence;
      for (int zero = 0; zero <= 3; ++zero) {
        if (ask_.fixed.zero ? zero != base_.zero : zero > 0 && !q.averages_gradients()) continue;
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

// Returns whether the software lacks the stage or schedule. Settings fixed by the user are tried
// anyway.
bool Search::lacks(const RunConfig& q) const {
  switch (lack_of(q)) {
    case Lack::none:
    case Lack::state_on_gpu: return false;
    case Lack::stage_two:
    case Lack::kept_in_pp: return !ask_.fixed.zero;
    case Lack::schedule:
    case Lack::tied_on_one: return !ask_.fixed.schedule;
    case Lack::split_at_3: return !ask_.fixed.schedule || !ask_.fixed.zero;
  }
  return false;
}

void Search::try_memory(RunConfig q) {
  if (++result_.tried > ask_.most && ask_.most > 0) {
    throw UsageError(str("--gpus ", base_.gpus, ": with a global batch of ", base_.global_batch,
                         " there are more than ", ask_.most,
                         " ways to split the work. Use numbers with fewer divisors, such as powers "
                         "of two, or fix some of --tp, --pp and --zero"),
                     "gpus");
  }
  const bool by_hand = q.split != "even" && q.split != "work";
  if (by_hand && std::count(q.split.begin(), q.split.end(), ',') + 1 != q.stages()) {
    rule_out("--split is for another number of stages");
    return;
  }
  resolve_in_place(q);
  const auto [found, fresh] = programs_.try_emplace({q.micro_batch, q.sequence_parallel});
  if (fresh) found->second = programs_in_memory(q);
  const Programs& programs = found->second;
  const double memory = memory_of(q, programs).total();
  if (memory > usable_memory(q.hardware)) {
    rule_out("does not fit");
    if (!closest_ || memory < closest_->memory) {
      closest_ = Candidate::of_settled(std::move(q), memory);
    }
    return;
  }
  const int asked = q.replicas();
  std::vector<Sharded> ways = {bounded(q, memory)};
  if (q.zero > 0 && !ask_.fixed.axes[Axis::dp_replicate]) {
    for (const int replicas : replica_counts(q)) {
      q.axes.set_given(Axis::dp_replicate, replicas);
      if (!q.axes.experts_divide()) continue;
      const double more = memory_of(q, programs).total();
      if (more <= usable_memory(q.hardware)) ways.push_back(bounded(q, more));
    }
    q.axes.set_given(Axis::dp_replicate, asked);
  }
  double most = 0;
  for (const Sharded& way : ways) most = std::max(most, way.tokens_per_s);
  found_.push_back({most, Candidate::of_settled(std::move(q), memory), std::move(ways)});
}

// Returns a throughput bound over all orders of the mesh.
Sharded Search::bounded(RunConfig q, double memory) {
  const MeshOrders*& mesh = mesh_[q.replicas()];
  if (mesh == nullptr) {
    q.order = base_.order;
    orders_.push_back(mesh_orders(q, ask_.fixed.order));
    mesh = &orders_.back();
  }
  double least = std::numeric_limits<double>::infinity();
  for (const std::string& order : mesh->for_layers) {
    q.order = order;
    const auto [parts, fresh] =
        parts_.try_emplace({order, q.micro_batch, q.recompute, q.sequence_parallel});
    if (fresh) parts->second = part_times(q);
    least = std::min(least, least_step_time(describe_step(q, parts->second), mesh->replicas));
  }
  return {q.replicas(), memory, tokens_per_s(q, least), mesh};
}

// Computes the throughput of the best order and number of replicas that could reach `enough` tokens
// per second; 0 if none can. A gain of less than 0.1% does not justify another rank order or
// replicas.
void Search::play_orders(Found& found, double enough) const {
  constexpr double kWorth = 1.001, kUnlimited = std::numeric_limits<double>::infinity();
  Candidate& candidate = found.candidate;
  RunConfig& q = candidate.config;
  const Sharded* best_way = &found.ways.front();
  const std::string* best = &best_way->mesh->orders.front();
  const double tokens = real(q.global_batch) * real(q.seq);
  found.tokens_per_s = 0;
  for (const Sharded& way : found.ways) {
    q.axes.set_given(Axis::dp_replicate, way.replicas);
    for (const std::string& order : way.mesh->orders) {
      const double wanted = std::max(enough, kWorth * found.tokens_per_s);
      if (way.tokens_per_s < wanted) break;
      q.order = order;
      if (!candidate.time_step(wanted > 0 ? tokens / wanted : kUnlimited)) continue;
      const double rate = tokens_per_s(q, candidate.step);
      if (rate < wanted) continue;
      found.tokens_per_s = rate;
      best_way = &way;
      best = &order;
    }
  }
  q.axes.set_given(Axis::dp_replicate, best_way->replicas);
  q.order = *best;
  candidate.memory = best_way->memory;
}

// Evaluates configurations in the order of their bounds, until no other can be among the best.
SearchResult Search::finish() {
  result_.fitting = static_cast<std::int64_t>(found_.size());
  const auto better = [](const Found& a, const Found& b) {
    return a.tokens_per_s != b.tokens_per_s ? a.tokens_per_s > b.tokens_per_s
                                            : a.candidate.memory < b.candidate.memory;
  };
  std::vector<Found*> by_bound;  // pointers, because questions are large
  by_bound.reserve(found_.size());
  for (Found& each : found_) by_bound.push_back(&each);
  std::stable_sort(by_bound.begin(), by_bound.end(),
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
  for (const Found& each : best) result_.best.push_back(plan_numbers(each.candidate.config));
  if (found_.empty() && closest_) result_.closest = advised_plan(closest_->config);
  return std::move(result_);
}

}  // namespace

SearchRequest search_request(const RunConfig& settings, const Catalog& catalog) {
  SearchRequest ask;
  ask.base = look_up(settings, catalog);
  for (const Axis axis : kAllAxes) {
    ask.fixed.axes[axis] = settings.has(std::string_view(axis_flag(axis)).substr(2));
  }
  ask.fixed.zero = settings.has("zero");
  ask.fixed.micro_batch = settings.has("micro-batch");
  ask.fixed.schedule = settings.has("schedule");
  ask.fixed.chunks = settings.has("chunks");
  ask.fixed.recompute = settings.has("recompute");
  ask.fixed.sequence_parallel = settings.has("sequence-parallel");
  ask.fixed.order = settings.has("order");
  if (settings.has("grad-accum")) {
    throw UsageError(Flag("grad-accum"),
                     "cannot be combined with --search, which chooses it. Give --global-batch and "
                     "--micro-batch instead");
  }
  return ask;
}

namespace {

SearchResult search_once(const SearchRequest& question, const SearchProgress& progress) {
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

}  // namespace

SearchResult search(const SearchRequest& question, const SearchProgress& progress) {
  SearchResult result = search_once(question, progress);
  if (!result.closest) return result;
  SearchRequest larger = question;
  larger.top = 1;
  const std::int64_t devices = result.closest->question.world();
  larger.base.global_batch = result.closest->question.global_batch;
  for (std::int64_t times = 2; times <= 1024 && !result.nearest_fit; times *= 2) {
    if (devices * times > std::numeric_limits<int>::max()) break;
    larger.base.gpus = static_cast<int>(devices * times);
    try {
      const SearchResult more = search_once(larger, {});
      if (!more.best.empty()) result.nearest_fit = more.best.front();
    } catch (const UsageError&) {
      break;  // --nodes or the limit on configurations allow no more devices
    }
  }
  return result;
}

}  // namespace tessera::planner
