// What a rank of Tessera's own runs holds.

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/core/bucket_size.h"
#include "tessera/core/shard.h"
#include "tessera/planner/grad_travel.h"
#include "tessera/planner/parameters.h"
#include "tessera/planner/program_cost.h"
#include "tessera/planner/rank_load.h"
#include "tessera/planner/run.h"
#include "tessera/planner/run_parts.h"
#include "tessera/planner/whole_matrices.h"
#include "tessera/schedule/schedule.h"

namespace tessera::planner {
namespace {

// Schedules with more actions than this are counted by their closed form, which is no less.
constexpr std::int64_t kMostActions = 1 << 20;

// A parameter as the engine lays it out, in elements.
struct Placed {
  std::int64_t padded = 0;  // over all ranks
  int model_chunk = 0;      // which chunk of the model it is in
  bool block = false;
  bool down = false;  // the second matrix of an MLP, whose gradient is the first of its block
  bool frozen = false;
};

// What a part of the model has in no block, and in each of its blocks, which are alike: elements of
// each parameter on this rank.
struct PartParams {
  struct Param {
    std::int64_t elements = 0;
    bool down = false;
    bool frozen = false;
  };
  std::vector<Param> outside, block;
  std::int64_t layers = 0;
};
PartParams params_of(const RunQuestion& q, const ModelPart& part) {
  PartParams params;
  const ProgramInput in = program_input(q);
  params.layers = part.last_layer - part.first_layer;
  const bool frozen = q.model.lora.any();
  const auto add = [&](ProgramPart which, bool adapters, std::vector<PartParams::Param>& to) {
    for (const Operation& op : layer_program(in, which).operations) {
      for (const Param& param : op.params) {
        if ((op.adapter >= 0) != adapters || (param.tied && part.embedding)) continue;
        const std::int64_t columns = param.columns > 0 ? param.columns_on_rank(q.tp()) : 1;
        to.push_back({param.rows_on_rank(q.tp()) * columns,
                      std::string_view(param.name) == "proj2.weight", frozen && !adapters});
      }
    }
  };
  if (part.embedding) add(ProgramPart::embedding, false, params.outside);
  if (params.layers > 0) add(ProgramPart::layer, false, params.block);
  if (params.layers > 0 && frozen) add(ProgramPart::layer, true, params.block);
  if (part.head) add(ProgramPart::head, false, params.outside);
  return params;
}

// [Note: placement] In the order of the engine: of each chunk first what is in no block, then block
// after block.
std::vector<Placed> placed_params(const RunQuestion& q) {
  std::vector<Placed> all;
  int model_chunk = 0;
  for (const ModelPart& part : parts_on_rank(q)) {
    const PartParams params = params_of(q, part);
    const auto place = [&](const PartParams::Param& param, bool block) {
      all.push_back({shard_size(param.elements, q.shards()) * q.shards(), model_chunk, block,
                     param.down, param.frozen});
    };
    for (const PartParams::Param& param : params.outside) place(param, false);
    for (std::int64_t layer = 0; layer < params.layers; ++layer) {
      for (const PartParams::Param& param : params.block) place(param, true);
    }
    ++model_chunk;
  }
  return all;
}

// How large a bucket has to be to be closed, [Note: bucket size].
double bucket_limit(const RunQuestion& q, const std::vector<Placed>& params) {
  if (q.bucket_bytes > 0) return q.bucket_bytes;
  std::int64_t elements = 0;
  for (const Placed& param : params) elements += param.frozen ? 0 : param.padded;
  return static_cast<double>(default_bucket_bytes(elements * q.travel()));
}

// Elements of each bucket. Gradients come in the reverse order; a bucket is closed once it is large
// enough.
std::vector<std::int64_t> bucket_elements(const RunQuestion& q, const std::vector<Placed>& params) {
  const double limit = bucket_limit(q, params);
  std::vector<std::int64_t> buckets;
  std::int64_t elements = 0;
  const auto close = [&] {
    if (elements > 0) buckets.push_back(std::exchange(elements, 0));
  };
  for (std::size_t i = params.size(); i-- > 0;) {
    if (i + 1 < params.size() && params[i + 1].model_chunk != params[i].model_chunk) close();
    elements += params[i].frozen ? 0 : params[i].padded;
    if (static_cast<double>(elements * q.travel()) >= limit) close();
  }
  close();
  return buckets;
}

std::int64_t largest_bucket(const RunQuestion& q, const std::vector<Placed>& params) {
  const std::vector<std::int64_t> buckets = bucket_elements(q, params);
  return buckets.empty() ? 0 : *std::max_element(buckets.begin(), buckets.end());
}

// What stage 3 has gathered at most: what is in no block, which stays while a pass goes on, and the
// block in use with the next; or all of it, if it is kept.
std::int64_t gathered(const RunQuestion& q, const std::vector<Placed>& params) {
  std::int64_t most = 0, all = 0;
  const std::vector<ModelPart> parts = parts_on_rank(q);
  for (std::size_t c = 0; c < parts.size(); ++c) {
    std::int64_t outside = 0, inside = 0;
    for (const Placed& param : params) {
      if (param.model_chunk == static_cast<int>(c))
        (param.block ? inside : outside) += param.padded;
    }
    const std::int64_t layers = parts[c].last_layer - parts[c].first_layer;
    const std::int64_t at_once = std::min<std::int64_t>(layers, q.prefetch ? 2 : 1);
    most = std::max(most, outside + (layers > 0 ? inside / layers * at_once : 0));
    all += outside + inside;
  }
  return (q.keep_params ? all : most) * q.layout.param;
}

std::int64_t gathered_buffers(const RunQuestion& q, const std::vector<Placed>& params) {
  const bool copies = sharding_of_stage(q.stage).params && q.gather == Gather::copy;
  return copies ? gathered(q, params) : 0;
}

bool sends_on(const ModelPart& part) { return !part.head; }
bool sends_on(const RunQuestion& q) {
  const std::vector<ModelPart> parts = parts_on_rank(q);
  return std::any_of(parts.begin(), parts.end(),
                     [](const ModelPart& part) { return sends_on(part); });
}

std::int64_t boundary(const RunQuestion& q) {
  const std::int64_t rows = q.micro_batch * q.seq / (q.sequence_parallel ? q.tp() : 1);
  return rows * q.model.hidden * q.layout.param;
}

// [Note: engine buffers] Two lanes of the largest bucket where gradients are reduced each
// micro-batch or travel in other bits than they are kept in; with replicas two shards of it for the
// sums that are all-reduced, [Note: hybrid sharding]; PowerSGD's factors and errors; the units that
// stage 3 has gathered; and the gradients that a pipeline receives: one in use, one on its way.
std::int64_t buffer_bytes(const RunQuestion& q, const std::vector<Placed>& params) {
  std::int64_t bytes = 0;
  if (q.policy == ReducePolicy::each || q.travel() != q.layout.grad) {
    bytes += 2 * largest_bucket(q, params) * q.travel();
  }
  if (q.replicas() > 1) bytes += 2 * largest_bucket(q, params) / q.shards() * q.travel();
  if (q.low_rank()) {
    const LowRank low = low_rank_of(q, parts_on_rank(q));
    bytes += 4 * (low.traveling + low.errors);
  }
  bytes += gathered_buffers(q, params);
  if (sends_on(q)) bytes += 2 * boundary(q);
  return bytes;
}

std::int64_t block_bytes(const RunQuestion& q, Recompute recompute) {
  return kept_bytes(q, {0, 1, false, false}, recompute);
}

std::int64_t kept_in_flight(const RunQuestion& q) {
  std::vector<std::int64_t> each;  // of a micro-batch, by chunk
  for (const ModelPart& part : parts_on_rank(q)) {
    each.push_back(kept_bytes(q, part, q.recompute));
  }
  if (q.pp() == 1) return each.front();
  const Question pipeline = pipeline_question(q);
  const std::int64_t closed =
      in_flight(pipeline, q.place.pp()) * *std::max_element(each.begin(), each.end());
  const std::int64_t actions = std::int64_t{q.pp()} * q.accumulation * pipeline.chunks;
  if (each.size() == 1 || actions > kMostActions) return closed;
  std::int64_t now = 0, most = 0;
  const auto schedule = schedule::make(q.schedule, q.pp(), q.accumulation, q.chunks);
  for (const schedule::Action& action : schedule.actions[static_cast<std::size_t>(q.place.pp())]) {
    using schedule::Kind;
    const std::int64_t bytes = each[static_cast<std::size_t>(action.chunk)];
    if (action.kind == Kind::forward) most = std::max(most, now += bytes);
    if (action.kind == Kind::backward || action.kind == Kind::backward_weight) now -= bytes;
  }
  return most;
}

// Returns true if the input of another micro-batch arrives while the most are in flight.
bool receives_ahead(const RunQuestion& q) {
  return q.place.pp() > 0 && q.chunks <= 1 &&
         q.accumulation > in_flight(pipeline_question(q), q.place.pp());
}

// Activations at the end of a forward pass: those kept for backward, the output that is sent on,
// and the input that is arriving.
std::int64_t activation_bytes(const RunQuestion& q) {
  return kept_in_flight(q) + (sends_on(q) ? boundary(q) : 0) +
         (receives_ahead(q) ? boundary(q) : 0);
}

// Values of the tensors that backward makes on one rank.
struct Widths {
  explicit Widths(const RunQuestion& q) : e(q.layout.param) {
    const std::int64_t rows = q.micro_batch * q.seq, h = q.model.hidden;
    stream = rows / (q.sequence_parallel ? q.tp() : 1) * h;
    entered = rows * h;
    wide = rows * (q.model.ffn / q.tp());
    up = (q.model.swiglu ? 2 : 1) * wide;
    const std::int64_t heads =
        q.model.heads / q.tp() + 2 * std::max<std::int64_t>(1, q.model.kv_heads / q.tp());
    qkv = rows * heads * q.model.head_dim();
    logits = rows * ((q.model.vocab + q.tp() - 1) / q.tp());
    table = (q.model.vocab + q.tp() - 1) / q.tp() * h;
    down_weight = h * (q.model.ffn / q.tp());
    up_weight = (q.model.swiglu ? 2 : 1) * down_weight;
    batch = 16 * rows * q.accumulation;
    if (q.model.lora.any()) kept_weights = 0;
  }
  // Bytes of the gradients that a product of x with a weight makes from dy; where values have 16
  // bits, with the fp32 copies of a processor that multiplies no others.
  std::int64_t product(std::int64_t x, std::int64_t dy, std::int64_t weight) const {
    return e * (x + kept_weights * weight) + (e < 4 ? 4 * (dy + x + weight) : 0);
  }
  std::int64_t loss() const {
    const std::int64_t own = kept_weights * table;
    return e < 4 ? e * (entered + own) + 4 * (logits + 2 * entered + table)
                 : e * (2 * entered + own);
  }
  // Of GELU, or of SwiGLU, which computes in fp32.
  std::int64_t function(bool swiglu) const {
    if (!swiglu) return e * 2 * wide;
    return e * 3 * wide + 4 * (e < 4 ? 6 : 3) * wide;
  }
  std::int64_t e;
  std::int64_t stream, entered, wide, up, qkv, logits, table, down_weight, up_weight;
  std::int64_t batch;             // bytes of ids and targets
  std::int64_t kept_weights = 1;  // 0: weights are frozen, and have no gradients
};

// [Note: a run's temporary] Backward of a part: of the loss; of each block, from the last, the
// second product of its MLP, the function, the first product; of the embedding. Each beside the
// gradient that came in, what the block recomputes, the gradient of a table that waits (a tied one
// for its other half; where gradients are reduced each micro-batch, one of the head for its bucket,
// which is the last), and gradients that wait until their bucket is full. A selective checkpoint
// lets two products go that no backward reads, and a third where attention reads what is turned.
std::vector<Moment> moments_of_part(const RunQuestion& q, const std::vector<Placed>& params,
                                    int model_chunk, const ModelPart& part) {
  const Widths w(q);
  const std::int64_t e = w.e, sent = sent_on(q, part);
  const std::int64_t head = part.head ? kept_bytes(q, {0, 0, false, true}, q.recompute) : 0;
  const std::int64_t block = block_bytes(q, q.recompute);
  const bool each = q.policy == ReducePolicy::each, again = q.recompute != Recompute::none;
  const bool selective = q.recompute == Recompute::selective;
  const bool frozen = q.model.lora.any();
  const bool table_waits = !frozen && part.head && (each || (q.model.tied && part.embedding));
  const std::int64_t always = w.batch + (table_waits ? e * w.table : 0);
  const std::int64_t turned = selective && q.model.positions == 0 ? e * w.qkv : 0;
  const std::int64_t recomputed =
      again ? block_bytes(q, Recompute::none) - block + e * w.stream * (selective ? 3 : 1) + turned
            : 0;
  const std::int64_t dropped = selective ? 2 * e * w.stream + turned : 0;
  std::vector<Moment> all = {{w.batch, 0}};
  if (part.head) all.push_back({w.batch + w.loss(), 0});
  const double limit = bucket_limit(q, params);
  std::int64_t open = 0, gone = head + sent;  // elements that wait
  for (std::size_t i = params.size(); i-- > 0;) {
    if (params[i].model_chunk != model_chunk) continue;
    const std::int64_t came = gone == sent ? 0 : e * w.stream;  // the first is a buffer's
    const std::int64_t beside = always + recomputed + came;
    if (params[i].down) {
      all.push_back(
          {beside + e * open + w.product(w.wide, w.stream, w.down_weight), gone + dropped});
    }
    open += each && !params[i].frozen ? params[i].padded : 0;
    if (static_cast<double>(open * q.travel()) >= limit) open = 0;
    if (!params[i].down) continue;
    // What the products have read goes: of what is recomputed, or of what was kept.
    const std::int64_t read = e * w.wide, before = e * w.up;
    all.push_back({beside + e * open + w.function(q.model.swiglu) - (again ? read : 0),
                   gone + dropped + (again ? 0 : read)});
    const bool full = q.recompute == Recompute::full;
    all.push_back({beside + e * (open + w.up) + w.product(w.entered, w.up, w.up_weight) -
                       (again ? read : 0) - (full ? before : 0),
                   gone + dropped + (again ? 0 : read) + (full ? 0 : before)});
    gone += block;
  }
  if (part.embedding && !frozen) all.push_back({always + e * (open + w.stream + w.table), gone});
  return all;
}

}  // namespace

std::int64_t replica_traffic(const RunQuestion& q) {
  if (q.replicas() == 1) return 0;
  const std::int64_t reductions = q.policy == ReducePolicy::each ? q.accumulation : 1;
  std::int64_t sent = 0;
  for (const std::int64_t elements : bucket_elements(q, placed_params(q))) {
    const std::int64_t part = (elements / q.shards() + q.replicas() - 1) / q.replicas();
    sent += 2 * (q.replicas() - 1) * part * q.travel() * reductions;
  }
  return sent;
}

std::int64_t sent_on(const RunQuestion& q, const ModelPart& part) {
  return sends_on(part) ? boundary(q) : 0;
}

std::int64_t kept_bytes(const RunQuestion& q, const ModelPart& part, Recompute recompute) {
  ProgramInput in = program_input(q);
  in.recompute = recompute;
  in.layers = part.last_layer - part.first_layer;
  in.embedding = part.embedding;
  in.head = part.head;
  return held_bytes(in);
}

RunMemory run_memory(const RunQuestion& q) {
  const Sharding sharded = sharding_of_stage(q.stage);
  const std::vector<Placed> params = placed_params(q);
  std::int64_t whole = 0, trained = 0;
  for (const Placed& param : params) {
    whole += param.padded;
    trained += param.frozen ? 0 : param.padded;
  }
  const bool grads_cut = sharded.grads && q.policy == ReducePolicy::each;
  RunMemory memory;
  const auto share = [&](std::int64_t all, bool cut) { return cut ? all / q.shards() : all; };
  memory.params = share(whole, sharded.params) * q.layout.param;
  memory.grads = share(trained, grads_cut) * q.layout.grad;
  memory.optimizer = share(trained, sharded.optimizer) * q.layout.optimizer();
  if (needs_whole_matrices(q)) {
    for (const HiddenMatrix& matrix : hidden_matrices(q)) {
      memory.optimizer -= shard_size(matrix.elements, q.shards()) *
                          (sharded.optimizer ? 1 : q.shards()) *
                          (q.layout.moments - q.layout.matrix_moments);
    }
  }
  memory.activations = activation_bytes(q);
  memory.buffers = buffer_bytes(q, params);
  std::int64_t most = 0;  // beside all activations
  const auto consider = [&](const Moment& moment) {
    memory.temporary = std::max(memory.temporary, moment.temporary);
    most = std::max(most, moment.temporary - moment.gone);
  };
  int model_chunk = 0;
  for (const ModelPart& each : parts_on_rank(q)) {
    for (const Moment& moment : q.light_activations
                                    ? light_moments(q, each)
                                    : moments_of_part(q, params, model_chunk, each)) {
      consider(moment);
    }
    ++model_chunk;
  }
  if (needs_whole_matrices(q)) {
    // After the passes: what they kept, and what stage 3 had gathered for them, is gone.
    consider({Widths(q).batch + matrix_update_bytes(q),
              memory.activations + gathered_buffers(q, params)});
  }
  memory.not_at_once = memory.temporary - most;
  return memory;
}

}  // namespace tessera::planner
