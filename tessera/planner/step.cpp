#include "tessera/planner/step.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/planner/plan_parts.h"
#include "tessera/planner/program_cost.h"
#include "tessera/planner/rank_load.h"
#include "tessera/planner/step_buckets.h"
#include "tessera/planner/step_time.h"

namespace tessera::planner {
namespace {

// Limit on listed pieces. Beyond it they are counted in groups, as buckets are.
constexpr double kMostPieces = 1024;

// Times a part of the model. `reduce` is one collective along tp.
StepChunk part_time(const SoftwareFigures& figures, const PartWork& part, const Work& reduce) {
  StepChunk time;
  // Returns the duration of work with its communication, which it splits by axis.
  const auto with_comm = [&](const Work& own, const Work& tp, const Work& cp, const Work& ep,
                             PerAxis<double>& comm) {
    const double alone = elapsed(figures, own), reduced = elapsed(figures, own + tp);
    const double context = elapsed(figures, own + tp + cp);
    const double all = elapsed(figures, own + tp + cp + ep);
    comm[Axis::tp] = reduced - alone;
    comm[Axis::cp] = context - reduced;
    comm[Axis::ep] = all - context;
    return all;
  };
  time.forward = with_comm(part.forward, reduce * part.forward_reduces, part.forward_context,
                           part.forward_experts, time.forward_comm);
  const double all = with_comm(part.recompute + part.backward_input + part.backward_weight,
                               reduce * (part.recompute_reduces + part.backward_reduces),
                               part.recompute_context + part.backward_context,
                               part.recompute_experts + part.backward_experts, time.backward_comm);
  // Splits backward in proportion to the time that each half takes alone.
  const double weight = elapsed(figures, part.backward_weight);
  const double input = elapsed(figures, part.recompute + part.backward_input);
  const double own = all - sum(time.backward_comm);
  time.backward_weight = weight + input > 0 ? own * weight / (weight + input) : 0;
  time.backward_input = all - time.backward_weight;
  return time;
}

void add(StepChunk& to, const StepChunk& part, double times) {
  to.forward += times * part.forward;
  to.backward_input += times * part.backward_input;
  to.backward_weight += times * part.backward_weight;
  for (const Axis axis : kAllAxes) {
    to.forward_comm[axis] += times * part.forward_comm[axis];
    to.backward_comm[axis] += times * part.backward_comm[axis];
  }
}

// Returns the figures as this run uses them: a CUDA graph has no launch cost per kernel.
SoftwareFigures as_launched(const RunConfig& q) {
  SoftwareFigures figures = q.hardware;
  if (!q.launches()) figures.launch = 0;
  return figures;
}

// Counts reading and writing the state, every pass over the gradients (norm, clipping, clearing)
// and writing the parameters.
double optimizer_time(const RunConfig& q, const SoftwareFigures& figures, double params,
                      double experts) {
  const Sharding sharded = sharding_of_stage(q.zero);
  const auto share = [&](bool cut) {
    if (!cut) return params;
    return (params - experts) / q.shards() + experts / q.expert_shards();
  };
  const double state = (2.0 * q.layout.optimizer() + q.layout.param) * share(sharded.optimizer);
  // A rank that keeps the whole gradient passes over all of it.
  const bool whole = !sharded.grads || q.policy() == ReducePolicy::last;
  const double grads = q.hardware.gradient_passes * q.layout.grad * share(!whole);
  const double launches = q.fused_activations() ? 4 : 30;
  return elapsed(figures, {pass_time(q.hardware, state + grads), launches});
}

bool alike(const StageLayers& a, const StageLayers& b) {
  return a.layers == b.layers && a.embedding == b.embedding && a.head == b.head &&
         a.dense == b.dense;
}

StepChunk chunk_of(const RunConfig& q, const PartTimes& parts, const StageLayers& share) {
  StepChunk chunk;
  const bool frozen = q.model.lora.any() && share.embedding && share.layers > 0;
  const bool first_is_dense = frozen && share.dense > 0;
  const double dense = real(share.dense) - (first_is_dense ? 1 : 0);
  add(chunk, parts.layer, real(share.layers - share.dense) - (frozen && !first_is_dense ? 1 : 0));
  if (dense > 0) add(chunk, parts.dense, dense);
  if (frozen) add(chunk, parts.first, 1);
  if (share.embedding) add(chunk, parts.embedding, 1);
  if (share.head) add(chunk, parts.head, 1);
  const std::vector<StageLayers> alone = {share};
  const SentParams sent = sent_params(q, alone);
  chunk.grad_bytes = sent.trained * q.travel();
  chunk.param_bytes = sent.gathered * q.layout.param;
  chunk.expert_grad_bytes = sent.trained_experts * q.travel();
  chunk.expert_param_bytes = sent.gathered_experts * q.layout.param;
  chunk.units = std::max(
      1, static_cast<int>(share.layers) + (share.embedding ? 1 : 0) + (share.head ? 1 : 0));
  return chunk;
}

// Returns whether gradients are reduced in buckets. Software other than Tessera reduces units at
// stage 3.
bool has_buckets(const RunConfig& q) {
  return q.averages_gradients() && (q.zero < 3 || q.software == Software::tessera);
}

// Reuses the previous chunk or rank where it is equal, as most are.
void add_chunks(const RunConfig& q, const PartTimes& parts, Step& step) {
  const SoftwareFigures figures = as_launched(q);
  std::optional<GradSizes> grads;
  if (has_buckets(q)) grads.emplace(q, parts.programs);
  step.bucket_bytes = 0;
  const std::vector<std::vector<StageLayers>> all = chunk_layers(q);
  step.chunks.reserve(all.size());
  const StageLayers* last = nullptr;
  double limit = 0;  // bucket limit of the previous chunk
  StepChunk chunk;
  for (std::size_t r = 0; r < all.size(); ++r) {
    const std::vector<StageLayers>& shares = all[r];
    if (r > 0 && std::equal(shares.begin(), shares.end(), all[r - 1].begin(), alike)) {
      step.chunks.push_back(step.chunks.back());
      continue;
    }
    const double params = trained_on_rank(q, shares);
    const double own_limit = grads ? grads->limit(shares) : bucket_bytes(q, params);
    std::vector<StepChunk>& rank = step.chunks.emplace_back();
    for (const StageLayers& share : shares) {
      const bool fresh = last == nullptr || !alike(share, *last);
      if (fresh) chunk = chunk_of(q, parts, share);
      if (grads && (fresh || own_limit != limit)) {
        const BackwardParts backward{share.head ? parts.head.backward() : 0, parts.layer.backward(),
                                     parts.dense.backward(), chunk.backward()};
        chunk.buckets = std::make_shared<StepBuckets>(grads->fill(share, own_limit, backward));
      }
      last = &share;
      limit = own_limit;
      rank.push_back(chunk);
    }
    step.bucket_bytes = std::max(step.bucket_bytes, own_limit);
    step.optimizer = std::max(
        step.optimizer, optimizer_time(q, figures, params, trained_experts_on_rank(q, shares)));
  }
}

// Returns the cost of one collective after another.
CollectiveCost in_turn(CollectiveCost a, const CollectiveCost& b) {
  if (b.far_bytes > 0) {
    const double seconds =
        (a.far_bytes > 0 ? a.far_bytes / a.far_bandwidth : 0) + b.far_bytes / b.far_bandwidth;
    a.far_bytes += b.far_bytes;
    a.far_bandwidth = a.far_bytes / seconds;
  }
  a.latency += b.latency;
  a.inside_bytes += b.inside_bytes;
  return a;
}

// Bytes of a collective and of the one of experts that follows it.
struct SentBytes {
  double others = 0, experts = 0;
};

Transfers::Each one_of(const Step& step, const Places& places, Collective kind,
                       const SentBytes& bytes, double calls) {
  Transfers::Each each;
  each.bytes = bytes.others;
  each.expert_bytes = bytes.experts;
  const bool across = kind == Collective::reduce_scatter && step.replicas() > 1;
  const GroupPlace& over = places.along[Axis::dp_replicate];
  if (bytes.others > 0 || bytes.experts == 0) {
    each.cost = collective_cost(step.topology, kind, bytes.others, places.shard);
    if (across) {
      each.across = collective_cost(step.topology, Collective::all_reduce,
                                    bytes.others / step.shards(), over);
    }
  }
  if (bytes.experts > 0) {
    const CollectiveCost experts =
        collective_cost(step.topology, kind, bytes.experts, places.expert_shard);
    each.cost = in_turn(each.cost, experts);
    if (across) {
      each.across =
          in_turn(each.across, collective_cost(step.topology, Collective::all_reduce,
                                               bytes.experts / step.expert_shards(), over));
    }
  }
  each.cost.latency *= calls;
  each.seconds = each.cost.seconds(step.topology);
  if (across) {
    each.across.latency *= calls;
    each.across_seconds = each.across.seconds(step.topology);
  }
  return each;
}

// Returns collectives of equal size.
Transfers in_pieces(const Step& step, const Places& places, Collective kind, const SentBytes& bytes,
                    double pieces) {
  Transfers all;
  all.kind = kind;
  all.count = static_cast<int>(std::min(pieces, kMostPieces));
  const SentBytes each{bytes.others / all.count, bytes.experts / all.count};
  all.sizes = {one_of(step, places, kind, each, pieces / all.count)};
  return all;
}

Transfers in_buckets(const Step& step, const Places& places, Collective kind,
                     std::shared_ptr<const StepBuckets> buckets) {
  Transfers all;
  all.kind = kind;
  all.count = buckets->count();
  all.sizes.reserve(buckets->sizes.size());
  for (const StepBuckets::Size& size : buckets->sizes) {
    const SentBytes bytes = size.of_experts ? SentBytes{0, size.bytes} : SentBytes{size.bytes, 0};
    all.sizes.push_back(one_of(step, places, kind, bytes, size.calls));
  }
  all.buckets = std::move(buckets);
  return all;
}

// `rule` continues the sentence "<what> <value>: must …".
void require(bool good, std::string_view what, double value, const char* rule) {
  if (!good) throw UsageError(str(what, " ", value, ": must ", rule));
}

void check_chunk(const StepChunk& chunk) {
  std::vector<double> durations = {chunk.forward, chunk.backward_input, chunk.backward_weight};
  for (const PerAxis<double>* comm : {&chunk.forward_comm, &chunk.backward_comm}) {
    durations.insert(durations.end(), comm->begin(), comm->end());
  }
  for (const double seconds : durations) {
    require(seconds >= 0 && std::isfinite(seconds), "chunk duration", seconds, "be at least 0 s");
  }
  for (const double bytes :
       {chunk.grad_bytes, chunk.param_bytes, chunk.expert_grad_bytes, chunk.expert_param_bytes}) {
    require(bytes >= 0 && std::isfinite(bytes), "chunk bytes", bytes, "be at least 0");
  }
  require(chunk.units >= 1, "units of a chunk", chunk.units, "be at least 1");
  const double forward = sum(chunk.forward_comm), backward = sum(chunk.backward_comm);
  require(forward <= chunk.forward, "communication in forward", forward,
          "not exceed the time of forward");
  require(backward <= chunk.backward(), "communication in backward", backward,
          "not exceed the time of backward");
}

void check_link(const Link& link, const std::string& what) {
  require(link.bandwidth > 0 && std::isfinite(link.bandwidth), what + ": bandwidth", link.bandwidth,
          "be greater than 0 B/s");
  require(link.latency >= 0 && std::isfinite(link.latency), what + ": latency", link.latency,
          "be at least 0 s");
}

// Returns the share of a core that each thread has while `busy` ranks compute.
double core_share(const Hardware& hardware, double busy) {
  return std::min(1.0, hardware.cores / std::max(1.0, busy * hardware.units));
}

// Returns the mean share of the step during which ranks are busy. Waiting for collectives counts as
// busy, because CPU ranks move the bytes themselves.
double busy_share(const Step& step) {
  if (!step.pipelined()) return 1;
  const PlayedStep played = play_step(step, step.places());
  double busy = 0;
  for (std::size_t r = 0; r < step.chunks.size(); ++r) {
    for (const StepChunk& chunk : step.chunks[r]) {
      busy += static_cast<double>(step.micros) * chunk.total();
    }
    busy += played.ranks[r].comm[Axis::dp_shard] + played.ranks[r].comm[Axis::dp_replicate];
  }
  return played.end > 0 ? std::min(1.0, busy / (played.end * real(step.mesh().size(Axis::pp)))) : 1;
}

}  // namespace

std::vector<AxisSize> Step::ordered() const { return in_order(order, mesh()); }

Places Step::places() const { return places_on(topology, ordered(), axes.size(Axis::ep)); }

RankStrides Step::strides() const {
  RankStrides strides;
  int inner = 1;
  for (const AxisSize& axis : ordered()) {
    strides.of[axis.axis] = inner;
    inner *= axis.size;
  }
  strides.shards = shard_dp();
  return strides;
}

double Step::hop_seconds(const GroupPlace& place) const {
  if (hop_bytes <= 0) return hop_latency;
  return hop_latency +
         collective_cost(topology, Collective::send, hop_bytes, place).seconds(topology);
}

namespace {

// Returns the sum over all collectives of a member of Transfers::Each.
double sum_of(const Transfers& transfers, double Transfers::Each::*member) {
  if (transfers.count == 0) return 0;
  if (transfers.buckets == nullptr) return transfers.count * (transfers.sizes.front().*member);
  double all = 0;
  for (std::size_t i = 0; i < transfers.sizes.size(); ++i) {
    all += transfers.buckets->sizes[i].count * (transfers.sizes[i].*member);
  }
  return all;
}

}  // namespace

double Transfers::bytes() const { return sum_of(*this, &Each::bytes); }
double Transfers::expert_bytes() const { return sum_of(*this, &Each::expert_bytes); }
double Transfers::seconds() const { return sum_of(*this, &Each::seconds); }
double Transfers::across_seconds() const { return sum_of(*this, &Each::across_seconds); }

// Software that gathers by buckets has as many of them as for gradients, modeled as equal pieces of
// forward.
Transfers Step::gathers(const StepChunk& chunk, const Places& places) const {
  if (shards() == 1 || zero == 0) return {};
  double pieces = 1;  // without overlap, one collective
  if (zero == 3 || (gather_units && overlap_param_gather)) {
    pieces = chunk.units;
  } else if (overlap_param_gather) {
    pieces = chunk.buckets
                 ? chunk.buckets->calls()
                 : std::ceil((chunk.param_bytes + chunk.expert_param_bytes) / bucket_bytes);
  }
  return in_pieces(*this, places, Collective::all_gather,
                   {chunk.param_bytes, chunk.expert_param_bytes}, std::max(1.0, pieces));
}

Transfers Step::reductions(const StepChunk& chunk, const Places& places) const {
  if (!averages_gradients()) return {};
  const Collective kind = zero > 0 ? Collective::reduce_scatter : Collective::all_reduce;
  double pieces = 1;
  if (zero == 3 && reduce_units) {
    pieces = chunk.units;
  } else if (overlap_grad_reduce) {
    if (chunk.buckets && chunk.buckets->count() > 0) {
      return in_buckets(*this, places, kind, chunk.buckets);
    }
    pieces = std::ceil((chunk.grad_bytes + chunk.expert_grad_bytes) / bucket_bytes);
  }
  return in_pieces(*this, places, kind, {chunk.grad_bytes, chunk.expert_grad_bytes},
                   std::max(1.0, pieces));
}

bool Step::shares_links(const Places& places) const {
  const GroupPlace& own = places.shard;
  const GroupPlace& across = places.along[Axis::dp_replicate];
  if (own.ranks == 1 || across.ranks == 1) return false;
  const auto inside = [](const GroupPlace& place) { return place.in_node > 1; };
  const auto leaves = [](const GroupPlace& place) { return place.nodes() > 1; };
  return (inside(own) && inside(across)) || (leaves(own) && leaves(across));
}

std::vector<std::vector<StepChunk>> equal_chunks(int ranks, int chunks, const StepChunk& chunk) {
  return std::vector(static_cast<std::size_t>(ranks),
                     std::vector(static_cast<std::size_t>(chunks), chunk));
}

std::size_t Transfers::size_of(int i) const {
  return buckets == nullptr ? 0 : buckets->size_of[static_cast<std::size_t>(i)];
}

double Transfers::ready(int i) const {
  return buckets == nullptr ? (i + 1.0) / count : buckets->ready[static_cast<std::size_t>(i)];
}

PartTimes part_times(const RunConfig& q) {
  if (q.state_only()) {
    throw UsageError(
        "--params does not determine the step time. Give --model, or --layers, --hidden, --heads "
        "and --vocab",
        "params");
  }
  const SoftwareFigures figures = as_launched(q);
  const Work reduce = tensor_reduce(q);
  PartTimes parts;
  parts.programs = all_programs(program_input(q));
  const auto time_of = [&](const Program& program) {
    return part_time(figures, part_work(q, program), reduce);
  };
  parts.layer = time_of(parts.programs.layer);
  parts.first = q.model.lora.any() ? time_of(parts.programs.first_layer) : parts.layer;
  if (!parts.programs.dense_layer.operations.empty()) {
    parts.dense = time_of(parts.programs.dense_layer);
  }
  parts.embedding = time_of(parts.programs.embedding);
  parts.head = time_of(parts.programs.head);
  return parts;
}

Step describe_step(const RunConfig& q) { return describe_step(q, part_times(q)); }

Step describe_step(const RunConfig& q, const PartTimes& parts) {
  Step step;
  step.schedule = q.schedule;
  step.micros = q.micros();
  step.axes = q.axes;
  step.order = q.order;
  step.topology = q.hardware.topology(q.per_node);
  const Places on = places(q);
  step.interference = q.hardware.interference * pace_of(step.topology, on.shard);
  step.replica_interference =
      q.hardware.interference * pace_of(step.topology, on.along[Axis::dp_replicate]);
  add_chunks(q, parts, step);
  if (q.pipelined()) {
    step.hop_bytes = hop_bytes(q);
    step.hop_latency = 2 * q.hardware.launch;
    if (q.schedule != ScheduleChoice::zb_v) step.tied_bytes = tied_bytes(q);
  }
  step.zero = q.zero;
  step.policy = q.policy();
  step.keep_params = q.keep_params;
  step.overlap_grad_reduce = q.overlap_grad_reduce;
  step.gather_units = q.software == Software::tessera;
  step.reduce_units = !step.gather_units;
  step.overlap_param_gather = q.overlap_param_gather && (q.zero < 3 || q.prefetch);
  share_cores(step, q.hardware);
  return step;
}

void check(const Step& s) {
  if (s.chunks.empty() || s.chunks.front().empty()) {
    throw UsageError("chunks: every pipeline rank must have at least one");
  }
  const Axes axes = s.mesh();
  for (const Axis axis : kAllAxes) {
    require(axes.size(axis) >= 1, axis_name(axis), axes.size(axis), "be at least 1");
  }
  require(axes.world() <= 1 << 24, str(axes.text(), ": number of ranks"),
          static_cast<double>(axes.world()), "be at most 16,777,216");
  require(s.micros >= 1, "micro-batches", static_cast<double>(s.micros), "be at least 1");
  require(s.zero >= 0 && s.zero <= 3, "ZeRO stage", s.zero, "be 0 to 3");
  require(s.bucket_bytes > 0, "bucket bytes", s.bucket_bytes, "be greater than 0");
  require(s.hop_bytes >= 0 && std::isfinite(s.hop_bytes), "bytes between stages", s.hop_bytes,
          "be at least 0");
  require(s.hop_latency >= 0 && std::isfinite(s.hop_latency), "latency between stages",
          s.hop_latency, "be at least 0 s");
  require(s.tied_bytes >= 0 && std::isfinite(s.tied_bytes), "bytes of a tied parameter",
          s.tied_bytes, "be at least 0");
  require(s.optimizer >= 0 && std::isfinite(s.optimizer), "optimizer time", s.optimizer,
          "be at least 0 s");
  for (const double seconds : {s.interference, s.replica_interference}) {
    require(seconds >= 0 && seconds <= 10, "interference", seconds, "be 0 to 10");
  }
  axes.check_experts();
  check_replicas_at(s.zero, axes);
  s.ordered();
  require(s.topology.per_node >= 1, "devices per node", s.topology.per_node, "be at least 1");
  require(s.topology.nics >= 1, "adapters of a node", s.topology.nics, "be at least 1");
  check_link(s.topology.inside, "link inside a node");
  check_link(s.topology.nic, "link between nodes");
  for (const auto& chunks : s.chunks) {
    if (chunks.size() != s.chunks.front().size()) {
      throw UsageError(str("chunks: all pipeline ranks must have the same number, but one has ",
                           chunks.size(), " and another ", s.chunks.front().size()));
    }
    for (const StepChunk& chunk : chunks) check_chunk(chunk);
  }
}

void share_cores(Step& step, const Hardware& hardware) {
  if (!hardware.cpu || hardware.cores < 1) return;
  const double measured = core_share(hardware, hardware.per_node);
  if (measured >= 1) return;  // every thread has a core
  const int ranks = std::min(step.world(), step.topology.per_node);
  const double factor = measured / core_share(hardware, ranks * busy_share(step));
  for (std::vector<StepChunk>& chunks : step.chunks) {
    for (StepChunk& chunk : chunks) {
      for (double* const seconds :
           {&chunk.forward, &chunk.backward_input, &chunk.backward_weight}) {
        *seconds *= factor;
      }
      for (const Axis axis : kAllAxes) {
        chunk.forward_comm[axis] *= factor;
        chunk.backward_comm[axis] *= factor;
      }
    }
  }
}

}  // namespace tessera::planner
