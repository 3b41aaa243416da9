#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tessera/core/axes.h"
#include "tessera/core/state_layout.h"
#include "tessera/planner/places.h"
#include "tessera/planner/question.h"
#include "tessera/planner/step_buckets.h"
#include "tessera/planner/topology.h"
#include "tessera/schedule/schedule.h"

namespace tessera::planner {

// What one pipeline chunk costs a rank for one micro-batch, and what data parallelism moves for it.
struct StepChunk {
  double forward = 0;         // seconds, tensor-parallel communication included
  double backward_input = 0;  // with recomputation, if any
  double backward_weight = 0;
  double tp_forward = 0, tp_backward = 0;  // how much of that is communication
  double grad_bytes = 0;                   // of the parameters of the chunk on this rank
  double param_bytes = 0;
  int units = 1;  // that stage 3 gathers one by one
  // What its gradients travel in; null: equal pieces of Step::bucket_bytes.
  std::shared_ptr<const StepBuckets> buckets;

  double backward() const { return backward_input + backward_weight; }
  double total() const { return forward + backward(); }
  friend bool operator==(const StepChunk&, const StepChunk&) = default;
};

// Collectives of one kind that follow each other.
struct Transfers {
  // What one of them carries, and what that takes.
  struct Each {
    double bytes = 0;
    CollectiveCost cost;
    double seconds = 0;  // alone on the network
    // All-reduce of the shard that it leaves, over the replicas: [Note: two queues].
    CollectiveCost across;
    double across_seconds = 0;
  };
  Collective kind = Collective::all_gather;
  int count = 0;
  std::vector<Each> sizes;  // those that differ
  // Which of them each has, and when it is ready; null: all alike, and evenly.
  std::shared_ptr<const StepBuckets> buckets;

  // Which of `sizes` the i-th has.
  std::size_t size_of(int i) const {
    return buckets == nullptr ? 0 : buckets->size_of[static_cast<std::size_t>(i)];
  }
  // The i-th.
  const Each& each(int i) const { return sizes[size_of(i)]; }
  // After what share of a computation the i-th may begin.
  double ready(int i) const {
    return buckets == nullptr ? (i + 1.0) / count : buckets->ready[static_cast<std::size_t>(i)];
  }
  // Of all of them together.
  double bytes() const;
  double seconds() const;
  double across_seconds() const;
};

// Difference between the ranks of neighbors along each axis.
struct RankStrides {
  PerAxis<int> of{1};
  int shards = 1;  // data-parallel ranks of a replica
  // Rank of data-parallel rank d of pipeline stage p, tensor-parallel index t.
  int rank(int p, int d, int t = 0) const {
    return p * of[Axis::pp] + d / shards * of[Axis::dp_replicate] +
           d % shards * of[Axis::dp_shard] + t * of[Axis::tp];
  }
};

// [Note: a step] One optimizer step: what every pipeline rank computes, what it sends, when that
// may begin and what waits for it. The closed forms (step_time.h) and the simulator's events read
// this and nothing else, so what they differ by is how they reckon, not what.
//
// Along dp a group runs its collectives one after another, in the order in which they are asked
// for, beside the computation:
// - gathers of stage 3: a unit before it is needed in forward, and again in backward unless
//   parameters are kept. With overlap the next one is asked for when a unit begins, else each when
//   it is needed.
// - gathers of stages 1 and 2: what the last step has updated, asked for as the step begins. With
//   overlap forward goes on bucket by bucket as they come, else it waits for all of them.
// - reductions: of a bucket, [Note: buckets of a step], when backward has gone through so much of
//   the chunk, or of a unit (stage 3 of who reduces units); every micro-batch's, or the last
//   one's. Without overlap they begin when backward is through, and what follows waits for them.
// A second of a collective beside computation takes `interference` seconds from it.
//
// [Note: two queues] With replicas a bucket is reduce-scattered in each replica, and then its sums
// are all-reduced over the replicas. These are different groups, each of which runs its collectives
// in order: the all-reduce of a bucket runs beside the reduce-scatter of the next, if the two use
// different links. If they share links, all collectives follow one another: whatever a replica asks
// for after a bucket begins when the sums of that bucket are there. The end of the step, and what
// waits for a reduction, waits for the sums. Such a wait counts as dp until the replica's own
// collectives are done and as dp_replicate after that; on shared links all-reduces that run
// meanwhile count as dp_replicate.
//
// Along pp outputs and their gradients go from stage to stage without anybody waiting to send. At
// the end the first and the last rank add up the gradient of a tied embedding, and when all
// gradients are there (their norm is of all) the optimizer runs.
struct Step {
  std::string schedule = "1f1b";
  std::int64_t micros = 1;
  std::vector<std::vector<StepChunk>> chunks;  // [pipeline rank][chunk]
  Axes axes;                                   // pp: as many as `chunks` has
  std::string order = std::string(kUsualOrder);
  Topology topology;
  double interference = 0;
  double replica_interference = 0;  // of all-reduces over replicas

  double hop_bytes = 0;    // a rank sends to the next stage, and as much back
  double hop_latency = 0;  // seconds besides the network's; all of them if there are no bytes
  double tied_bytes = 0;   // gradient of a parameter on the first and the last pipeline rank
  double optimizer = 0;    // seconds, of the rank with most to do

  int zero = 0;
  ReducePolicy policy = ReducePolicy::last;
  bool keep_params = false;
  bool overlap_grad_reduce = true;
  bool overlap_param_gather = true;
  // Tessera's engine gathers units at any stage and reduces buckets at any. Others gather buckets
  // in stages 1 and 2, and reduce units in stage 3.
  bool gather_units = false;
  bool reduce_units = true;
  double bucket_bytes = 25e6;  // of chunks that do not say what their gradients travel in

  int dp() const { return axes.dp(); }
  // Ranks that shard state, and the number of groups of them: [Note: replicas] in core/axes.h.
  int shards() const { return axes.size(Axis::dp_shard); }
  int replicas() const { return axes.size(Axis::dp_replicate); }
  int tp() const { return axes.tp(); }
  int pp() const { return static_cast<int>(chunks.size()); }
  int chunks_per_rank() const { return static_cast<int>(chunks.front().size()); }
  int world() const { return static_cast<int>(axes.with(Axis::pp, pp()).world()); }
  // Its axes innermost first, and where they lie.
  std::vector<AxisSize> ordered() const;
  Places places() const;
  RankStrides strides() const;
  // Of replica d of pipeline rank p, and its neighbour t along tp.
  int rank(int p, int d, int t = 0) const { return strides().rank(p, d, t); }
  // On which node a rank lies.
  int node(int rank) const { return rank / topology.per_node; }
  // From a stage to the next: on one node, or as far as `place` says.
  double hop_seconds(const GroupPlace& place) const;

  // Stage 3's, for one pass over the chunk; of updated parameters in stages 1 and 2; else none.
  Transfers gathers(const StepChunk& chunk, const Places& places) const;
  // Of one micro-batch's gradients.
  Transfers reductions(const StepChunk& chunk, const Places& places) const;
  // Returns whether gathers and reductions of a replica use the links that all-reduces over the
  // replicas use: [Note: two queues].
  bool shares_links(const Places& places) const;
  int prefetch() const { return zero == 3 && overlap_param_gather ? 1 : 0; }
};

// All chunks alike.
std::vector<std::vector<StepChunk>> equal_chunks(int ranks, int chunks, const StepChunk& chunk);

// What one micro-batch takes in each part of the model. Neither ZeRO nor how a pipeline is cut and
// scheduled has a part in it: who describes many such steps reckons it once.
struct PartTimes {
  StepChunk layer, embedding, head;
  StepChunk first;  // layer behind the embedding
};
// Throws UsageError for a model known by its size alone.
PartTimes part_times(const Question& settled);

// Throws UsageError for a model known by its size alone, and for numbers that cannot be.
Step describe_step(const Question& settled);
// The same with parts that are known already.
Step describe_step(const Question& settled, const PartTimes& parts);
// Throws UsageError for numbers that cannot be.
void check(const Step& step);

}  // namespace tessera::planner
