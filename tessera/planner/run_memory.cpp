// What a rank of Tessera's own runs holds.

#include <algorithm>
#include <vector>

#include "tessera/core/bucket_size.h"
#include "tessera/planner/parameters.h"
#include "tessera/planner/rank_load.h"
#include "tessera/planner/run.h"
#include "tessera/planner/run_parts.h"
#include "tessera/schedule/schedule.h"

namespace tessera::planner {
namespace {

// Schedules with more actions than this are counted by their closed form, which is no less.
constexpr std::int64_t kMostActions = 1 << 20;

// A parameter as the engine lays it out, in elements.
struct Placed {
  std::int64_t padded = 0;  // over all ranks
  int section = 0;          // which chunk of the model it is in
  bool block = false;
};

// What a part of the model has in no block, and in each of its blocks, which are alike: elements of
// each parameter on this rank.
struct PartParams {
  std::vector<std::int64_t> outside, block;
  std::int64_t layers = 0;
};
PartParams params_of(const RunQuestion& q, const ModelPart& part) {
  PartParams params;
  params.layers = part.last_layer - part.first_layer;
  ModelPart first = part;
  first.last_layer = part.first_layer + std::min<std::int64_t>(1, params.layers);
  for (const ParamSpec& spec : model_params(q.model, q.tp, first)) {
    const bool block = spec.name.starts_with("blocks.");
    (block ? params.block : params.outside).push_back(elements_on_rank(q, spec));
  }
  return params;
}

// [Note: placement] In the order of the engine: of each chunk first what is in no block, then block
// after block.
std::vector<Placed> placed_params(const RunQuestion& q) {
  std::vector<Placed> all;
  int section = 0;
  for (const ModelPart& part : parts_on_rank(q)) {
    const PartParams params = params_of(q, part);
    const auto place = [&](std::int64_t elements, bool block) {
      all.push_back({chunk_elements(elements, q.dp) * q.dp, section, block});
    };
    for (const std::int64_t elements : params.outside) place(elements, false);
    for (std::int64_t layer = 0; layer < params.layers; ++layer) {
      for (const std::int64_t elements : params.block) place(elements, true);
    }
    ++section;
  }
  return all;
}

// How large a bucket has to be to be closed, [Note: bucket size].
double bucket_limit(const RunQuestion& q, const std::vector<Placed>& params) {
  if (q.bucket_bytes > 0) return q.bucket_bytes;
  std::int64_t elements = 0;
  for (const Placed& param : params) elements += param.padded;
  return static_cast<double>(default_bucket_bytes(elements * q.layout.grad));
}

// Elements of the largest. Gradients come in the reverse order; a bucket is closed once it is large
// enough.
std::int64_t largest_bucket(const RunQuestion& q, const std::vector<Placed>& params) {
  const double limit = bucket_limit(q, params);
  std::int64_t largest = 0, elements = 0;
  for (std::size_t i = params.size(); i-- > 0;) {
    const bool other = i + 1 < params.size() && params[i + 1].section != params[i].section;
    if (other) elements = 0;
    elements += params[i].padded;
    largest = std::max(largest, elements);
    if (static_cast<double>(elements * q.layout.grad) >= limit) elements = 0;
  }
  return largest;
}

// What stage 3 has gathered at most: what is in no block, which stays while a pass goes on, and the
// block in use with the next; or all of it, if it is kept.
std::int64_t gathered(const RunQuestion& q, const std::vector<Placed>& params) {
  std::int64_t most = 0, all = 0;
  const std::vector<ModelPart> parts = parts_on_rank(q);
  for (std::size_t c = 0; c < parts.size(); ++c) {
    std::int64_t outside = 0, inside = 0;
    for (const Placed& param : params) {
      if (param.section == static_cast<int>(c)) (param.block ? inside : outside) += param.padded;
    }
    const std::int64_t layers = parts[c].last_layer - parts[c].first_layer;
    const std::int64_t at_once = std::min<std::int64_t>(layers, q.prefetch ? 2 : 1);
    most = std::max(most, outside + (layers > 0 ? inside / layers * at_once : 0));
    all += outside + inside;
  }
  return (q.keep_params ? all : most) * q.layout.param;
}

std::int64_t boundary(const RunQuestion& q) {
  const std::int64_t rows = q.micro_batch * q.seq / (q.sequence_parallel ? q.tp : 1);
  return rows * q.model.hidden * q.layout.param;
}

// [Note: engine buffers] Two lanes of the largest bucket where gradients are reduced each
// micro-batch, the units that stage 3 has gathered, and the gradients that a pipeline receives.
std::int64_t buffer_bytes(const RunQuestion& q, const std::vector<Placed>& params) {
  std::int64_t bytes = 0;
  if (q.policy == ReducePolicy::each) bytes += 2 * largest_bucket(q, params) * q.layout.grad;
  if (sharding_of_stage(q.stage).params && q.gather == Gather::copy) bytes += gathered(q, params);
  if (q.pp > 1 && q.pp_rank + 1 < q.pp) bytes += boundary(q);
  return bytes;
}

std::int64_t activation_bytes(const RunQuestion& q) {
  std::vector<std::int64_t> each;  // of a micro-batch, by chunk
  for (const ModelPart& part : parts_on_rank(q)) {
    GptActivations kept;
    kept.model = q.model;
    kept.batch = q.micro_batch;
    kept.seq = q.seq;
    kept.element = q.layout.param;
    kept.recompute = q.recompute;
    kept.tp = q.tp;
    kept.sequence_parallel = q.sequence_parallel;
    kept.layers = part.last_layer - part.first_layer;
    kept.embedding = part.embedding;
    kept.head = part.head;
    each.push_back(gpt_activation_bytes(kept));
  }
  if (q.pp == 1) return each.front();
  const Question pipeline = pipeline_question(q);
  const std::int64_t closed =
      in_flight(pipeline, q.pp_rank) * *std::max_element(each.begin(), each.end());
  const std::int64_t actions = std::int64_t{q.pp} * q.accumulation * pipeline.chunks;
  if (each.size() == 1 || actions > kMostActions) return closed;
  std::int64_t now = 0, most = 0;
  const auto schedule = schedule::make(q.schedule, q.pp, q.accumulation, q.chunks);
  for (const schedule::Action& action : schedule.actions[static_cast<std::size_t>(q.pp_rank)]) {
    using schedule::Kind;
    const std::int64_t bytes = each[static_cast<std::size_t>(action.chunk)];
    if (action.kind == Kind::forward) most = std::max(most, now += bytes);
    if (action.kind == Kind::backward || action.kind == Kind::backward_weight) now -= bytes;
  }
  return most;
}

// What a block has again while backward recomputes it.
std::int64_t recomputed_bytes(const RunQuestion& q) {
  if (q.recompute == Recompute::none) return 0;
  GptActivations block;
  block.model = q.model;
  block.batch = q.micro_batch;
  block.seq = q.seq;
  block.element = q.layout.param;
  block.tp = q.tp;
  block.sequence_parallel = q.sequence_parallel;
  block.layers = 1;
  block.embedding = block.head = false;
  return gpt_activation_bytes(block);
}

// [Note: a run's temporary] The widest of three moments of backward, beside what forward kept.
// - The loss: gradients of the head's input, its scaled input, and the gradient of its weight.
// - A block: gradients before and after the function of its MLP and of what enters it, one of its
//   weights', and what it recomputes.
// - The end: the gradient of the embedding. A tied one meets that of the head, which has waited.
// Where gradients are reduced each micro-batch, those of a bucket wait until it is full.
std::int64_t temporary_bytes(const RunQuestion& q, const std::vector<Placed>& params) {
  const std::int64_t e = q.layout.param, h = q.model.hidden;
  const std::int64_t stream = q.micro_batch * q.seq * h * e;
  const std::int64_t wide = q.micro_batch * q.seq * (q.model.ffn / q.tp) * e;
  const std::int64_t table = (q.model.vocab + q.tp - 1) / q.tp * h * e;
  bool embedding = false, head = false;
  for (const ModelPart& part : parts_on_rank(q)) {
    embedding = embedding || part.embedding;
    head = head || part.head;
  }
  std::int64_t waiting = 0;
  if (q.policy == ReducePolicy::each) waiting = largest_bucket(q, params) * e;
  const std::int64_t weight = waiting > 0 ? 0 : h * (q.model.ffn / q.tp) * e;
  const std::int64_t of_head = head && q.model.tied && waiting == 0 ? table : 0;
  const std::int64_t loss = head ? 2 * stream + table : 0;
  const std::int64_t block = 2 * stream + (q.model.swiglu ? 3 : 2) * wide + weight +
                             recomputed_bytes(q) + of_head + waiting;
  const std::int64_t end = (embedding ? stream + table : 0) + of_head + waiting;
  return std::max({loss, block, end});
}

}  // namespace

RunMemory run_memory(const RunQuestion& q) {
  const Sharding sharded = sharding_of_stage(q.stage);
  const std::vector<Placed> params = placed_params(q);
  std::int64_t whole = 0;
  for (const Placed& param : params) whole += param.padded;
  const std::int64_t part = whole / q.dp;
  const bool grads_cut = sharded.grads && q.policy == ReducePolicy::each;
  RunMemory memory;
  memory.params = (sharded.params ? part : whole) * q.layout.param;
  memory.grads = (grads_cut ? part : whole) * q.layout.grad;
  memory.optimizer = (sharded.optimizer ? part : whole) * q.layout.optimizer();
  memory.activations = activation_bytes(q);
  memory.buffers = buffer_bytes(q, params);
  memory.temporary = temporary_bytes(q, params);
  return memory;
}

std::int64_t built_bytes(const RunQuestion& q) {
  std::int64_t elements = 0;
  for (const ModelPart& part : parts_on_rank(q)) {
    const PartParams params = params_of(q, part);
    for (const std::int64_t each : params.outside) elements += each;
    for (const std::int64_t each : params.block) elements += each * params.layers;
  }
  return 4 * elements;
}

}  // namespace tessera::planner
