#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tessera/core/axes.h"
#include "tessera/core/state_layout.h"
#include "tessera/planner/places.h"
#include "tessera/planner/run_config.h"
#include "tessera/planner/topology.h"
#include "tessera/schedule/schedule.h"

namespace tessera::planner {

struct StepBuckets;

// Cost of one pipeline chunk on one rank for one micro-batch, and the bytes that data parallelism
// moves for it.
struct StepChunk {
  double forward = 0;         // seconds, communication along tp and cp included
  double backward_input = 0;  // includes recomputation, if any
  double backward_weight = 0;
  PerAxis<double> forward_comm, backward_comm;  // communication included in these, by axis
  double grad_bytes = 0;                        // of the chunk's parameters on this rank
  double param_bytes = 0;
  // Of the experts, in addition. The ranks with the same experts reduce and gather them.
  double expert_grad_bytes = 0, expert_param_bytes = 0;
  int units = 1;  // number of units that stage 3 gathers separately
  // Buckets of its gradients; null: equal pieces of Step::bucket_bytes.
  std::shared_ptr<const StepBuckets> buckets;

  double backward() const { return backward_input + backward_weight; }
  double total() const { return forward + backward(); }
  friend bool operator==(const StepChunk&, const StepChunk&) = default;
};

// Sequence of collectives of one kind.
struct Transfers {
  // Bytes and cost of one collective.
  struct Each {
    double bytes = 0;
    double expert_bytes = 0;  // of the collective of experts that follows it; 0: none
    CollectiveCost cost;      // of both
    double seconds = 0;       // alone on the network
    // All-reduce of the resulting shard over the replicas: [Note: two queues].
    CollectiveCost across;
    double across_seconds = 0;
  };
  Collective kind = Collective::all_gather;
  int count = 0;
  std::vector<Each> sizes;  // distinct sizes
  // Size and ready time of each collective; null: all are equal and evenly spaced.
  std::shared_ptr<const StepBuckets> buckets;

  // Returns the index into `sizes` of the i-th collective.
  std::size_t size_of(int i) const;
  // Returns the size of the i-th collective.
  const Each& each(int i) const { return sizes[size_of(i)]; }
  // Returns the fraction of a computation after which the i-th collective may begin.
  double ready(int i) const;
  // Return the totals over all collectives.
  double bytes() const;
  double expert_bytes() const;
  double seconds() const;
  double across_seconds() const;
};

// Difference between the ranks of neighbors along each axis.
struct RankStrides {
  PerAxis<int> of{1};
  int shards = 1;  // data-parallel ranks of a replica
  // Returns the global rank of pipeline rank p and data-parallel rank d, the first along tp and cp.
  int rank(int p, int d) const {
    return p * of[Axis::pp] + d / shards * of[Axis::dp_replicate] + d % shards * of[Axis::dp_shard];
  }
};

// [Note: a step] Description of one optimizer step: the computation of every pipeline rank, its
// communication, when each collective may begin and what waits for it. It is the only input of the
// closed forms (step_time.h) and of the event simulator, so they differ only in method.
//
// Ranks along tp and cp work on the same micro-batches in lockstep, so one of them represents all.
// Their communication is part of the duration of the computation.
//
// Along ep, the all-to-alls of experts are part of the duration of the computation too.
//
// Along dp (with cp, over both), a group runs its collectives one at a time, in the order in which
// they are issued, concurrently with the computation:
// - gathers of stage 3: each unit before forward needs it, and again before backward unless
//   parameters are kept. With overlap, the gather of the next unit is issued when a unit begins;
//   otherwise each is issued when it is needed.
// - gathers of stages 1 and 2: the parameters updated by the previous step, issued at the start of
//   the step. With overlap, forward proceeds bucket by bucket as they arrive; otherwise it waits
//   for all of them.
// - reductions: of a bucket when backward has computed its gradients ([Note: buckets of a step]),
//   or of a unit (stage 3 in software that reduces units); for every micro-batch, or only for the
//   last. Without overlap they begin after backward, and the next computation waits for them.
// Gradients and parameters of experts go over fewer ranks. Each collective is followed by the one
// of the experts' share of its bytes, and the two count as one. Each second of a collective slows
// the concurrent computation by `interference` seconds.
//
// [Note: two queues] With replicas, a bucket is reduce-scattered inside each replica, and its sums
// are then all-reduced over the replicas. These are different groups, and each runs its collectives
// in order: the all-reduce of a bucket overlaps the reduce-scatter of the next if the two use
// different links. If they share links, all collectives run one after another: the next collective
// of a replica begins when the sums of the previous bucket have arrived. The end of the step, and
// any computation that waits for a reduction, waits for the sums. Such a wait counts as dp until
// the replica's own collectives are done, and as dp_replicate after that. On shared links,
// all-reduces that run during the wait count as dp_replicate.
//
// Along pp, outputs and their gradients go from stage to stage, and sends do not block. At the end,
// the first and the last rank sum the gradient of a tied embedding. The optimizer runs when all
// gradients are complete, because their norm covers all of them.
struct Step {
  ScheduleChoice schedule = ScheduleChoice::one_f_one_b;
  std::int64_t micros = 1;
  std::vector<std::vector<StepChunk>> chunks;  // [pipeline rank][chunk]
  Axes axes;                                   // pp is taken from `chunks` instead
  std::string order = std::string(kUsualOrder);
  Topology topology;
  double interference = 0;
  double replica_interference = 0;  // for all-reduces over replicas

  double hop_bytes = 0;    // sent to the next stage, and the same number back
  double hop_latency = 0;  // seconds in addition to the network's, or in total if hop_bytes is 0
  double tied_bytes = 0;   // gradient of a parameter on the first and the last pipeline rank
  double optimizer = 0;    // seconds on the rank with the most work

  int zero = 0;
  ReducePolicy policy = ReducePolicy::last;
  bool keep_params = false;
  bool overlap_grad_reduce = true;
  bool overlap_param_gather = true;
  // Tessera's engine gathers units and reduces buckets at every stage. Other software gathers
  // buckets at stages 1 and 2, and reduces units at stage 3.
  bool gather_units = false;
  bool reduce_units = true;
  double bucket_bytes = 25e6;  // for chunks without `buckets`

  int dp() const { return axes.dp(); }
  // Number of data-parallel ranks that share state, and number of such groups: [Note: replicas] in
  // core/axes.h.
  int shard_dp() const { return axes.size(Axis::dp_shard); }
  int replicas() const { return axes.size(Axis::dp_replicate); }
  // Number of ranks that shard state: those along dp and cp.
  int shards() const { return axes.shards(); }
  // Number of ranks that shard the state of an expert.
  int expert_shards() const { return shards() / axes.size(Axis::ep); }
  int tp() const { return axes.tp(); }
  int pp() const { return static_cast<int>(chunks.size()); }
  bool pipelined() const { return pp() > 1; }
  bool averages_gradients() const { return axes.ranks(kTokenAxes) > 1; }  // as in RunConfig
  int chunks_per_rank() const { return static_cast<int>(chunks.front().size()); }
  Axes mesh() const { return axes.with(Axis::pp, pp()); }
  int world() const { return static_cast<int>(mesh().world()); }
  // Returns the axes, innermost first; places() returns their placement on the nodes.
  std::vector<AxisSize> ordered() const;
  Places places() const;
  RankStrides strides() const;
  // As RankStrides::rank().
  int rank(int p, int d) const { return strides().rank(p, d); }
  // Returns the node of a rank.
  int node(int rank) const { return rank / topology.per_node; }
  // Returns the seconds to send from one stage to the next at that placement.
  double hop_seconds(const GroupPlace& place) const;

  // Returns its schedule with another number of micro-batches.
  schedule::Schedule make_schedule(std::int64_t of_micros) const {
    return schedule::make(schedule, pp(), static_cast<int>(of_micros), chunks_per_rank());
  }
  // Returns the parameter gathers of one pass over the chunk (stage 3), or of the updated
  // parameters (stages 1 and 2). Empty at stage 0.
  Transfers gathers(const StepChunk& chunk, const Places& places) const;
  // Returns the reductions of one micro-batch's gradients.
  Transfers reductions(const StepChunk& chunk, const Places& places) const;
  // Returns whether gathers and reductions of a replica use the links that all-reduces over the
  // replicas use: [Note: two queues].
  bool shares_links(const Places& places) const;
  int prefetch() const { return zero == 3 && overlap_param_gather ? 1 : 0; }
};

// Returns equal chunks on all ranks.
std::vector<std::vector<StepChunk>> equal_chunks(int ranks, int chunks, const StepChunk& chunk);

// Throws UsageError if only the model's size is known, or for invalid numbers.
Step describe_step(const RunConfig& resolved);
// Throws UsageError for invalid numbers.
void check(const Step& step);

// [Note: shared cores] CPU rates are measured with all ranks of a node busy. With fewer cores than
// threads, a rank that waits for another stage leaves its core to the computing ranks, which become
// faster. The number of busy ranks is averaged over the step; this is exact as long as no core is
// idle. Scales the computation of the step's chunks accordingly and changes nothing else.
void share_cores(Step& step, const Hardware& hardware);

}  // namespace tessera::planner
