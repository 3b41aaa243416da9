// Memory of a rank of a Tessera run.

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/core/shard.h"
#include "tessera/planner/parameters.h"
#include "tessera/planner/program_cost.h"
#include "tessera/planner/rank_load.h"
#include "tessera/planner/run.h"
#include "tessera/planner/whole_matrices.h"
#include "tessera/schedule/schedule.h"

namespace tessera::planner {
namespace {

// Schedules with more actions than this use the closed form, which is an upper bound.
constexpr std::int64_t kMaxActions = 1 << 20;

// Parameter in the engine's layout, in elements.
struct Placed {
  std::int64_t padded = 0;  // total over all ranks
  int model_chunk = 0;      // index of its model chunk
  bool block = false;
  bool down = false;  // second matrix of an MLP, whose gradient is the first of its block
  bool frozen = false;
};

// Elements on this rank of each parameter of a part of the model: those outside blocks, and those
// of one block. All blocks are equal.
struct PartParams {
  struct Param {
    std::int64_t elements = 0;
    bool down = false;
    bool frozen = false;
  };
  std::vector<Param> outside, block;
  std::int64_t layers = 0;
};
PartParams params_of(const RunConfig& q, const Programs& programs, const ModelPart& part) {
  PartParams params;
  params.layers = part.last_layer - part.first_layer;
  const bool frozen = q.model.lora.any();
  const auto add = [&](const Program& program, bool adapters, std::vector<PartParams::Param>& to) {
    for (const Operation& op : program.operations) {
      for (const Param& param : op.params) {
        if ((op.adapter >= 0) != adapters || (param.tied && part.embedding)) continue;
        to.push_back({param.elements_on_rank(program.tp),
                      std::string_view(param.name) == "proj2.weight", frozen && !adapters});
      }
    }
  };
  if (part.embedding) add(programs.embedding, false, params.outside);
  if (params.layers > 0) add(programs.layer, false, params.block);
  if (params.layers > 0 && frozen) add(programs.layer, true, params.block);
  if (part.head) add(programs.head, false, params.outside);
  return params;
}

// [Note: placement] Parameters in the engine's order: for each chunk, first those outside blocks,
// then block by block.
std::vector<Placed> placed_params(const RunConfig& q, const Coordinate& at,
                                  const Programs& programs) {
  std::vector<Placed> all;
  int model_chunk = 0;
  for (const ModelPart& part : parts_on_rank(q, at)) {
    const PartParams params = params_of(q, programs, part);
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

// Returns the size in bytes at which a bucket is closed: [Note: bucket size].
double bucket_limit(const RunConfig& q, const std::vector<Placed>& params) {
  if (q.bucket_bytes > 0) return q.bucket_bytes;
  std::int64_t elements = 0;
  for (const Placed& param : params) elements += param.frozen ? 0 : param.padded;
  return static_cast<double>(default_bucket_bytes(elements * q.travel()));
}

// Returns the elements of each bucket. Gradients arrive in reverse order; a bucket is closed once
// it is large enough.
std::vector<std::int64_t> bucket_elements(const RunConfig& q, const std::vector<Placed>& params) {
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

std::int64_t largest_bucket(const RunConfig& q, const std::vector<Placed>& params) {
  const std::vector<std::int64_t> buckets = bucket_elements(q, params);
  return buckets.empty() ? 0 : *std::max_element(buckets.begin(), buckets.end());
}

// Returns the peak bytes gathered by stage 3: the parameters outside blocks, which stay during a
// pass, the current block and the next; or all parameters with --keep-params.
std::int64_t gathered(const RunConfig& q, const Coordinate& at, const std::vector<Placed>& params) {
  std::int64_t most = 0, all = 0;
  const std::vector<ModelPart> parts = parts_on_rank(q, at);
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

std::int64_t gathered_buffers(const RunConfig& q, const Coordinate& at,
                              const std::vector<Placed>& params) {
  const bool copies = sharding_of_stage(q.zero).params && q.gather != Gather::alias;
  return copies ? gathered(q, at, params) : 0;
}

bool sends_on(const ModelPart& part) { return !part.head; }
bool sends_on(const RunConfig& q, const Coordinate& at) {
  const std::vector<ModelPart> parts = parts_on_rank(q, at);
  return std::any_of(parts.begin(), parts.end(),
                     [](const ModelPart& part) { return sends_on(part); });
}

std::int64_t boundary(const RunConfig& q) {
  const std::int64_t rows = q.micro_batch * q.rank_tokens() / q.sequence_ranks();
  return rows * q.model.hidden * q.layout.param;
}

// [Note: engine buffers] Two buffers of the largest bucket if gradients are reduced every
// micro-batch or sent in another type than they are stored in; with replicas, two shards of it for
// the sums to all-reduce ([Note: hybrid sharding]); the units gathered by stage 3; the gradients
// that a pipeline receives: one in use and one arriving; and the exchange of matrices on a GPU.
std::int64_t buffer_bytes(const RunConfig& q, const Coordinate& at,
                          const std::vector<Placed>& params) {
  std::int64_t bytes = 0;
  if (q.policy() == ReducePolicy::each || q.travel() != q.layout.grad) {
    bytes += 2 * largest_bucket(q, params) * q.travel();
  }
  if (q.replicas() > 1) bytes += 2 * largest_bucket(q, params) / q.shards() * q.travel();
  bytes += gathered_buffers(q, at, params);
  if (sends_on(q, at)) bytes += 2 * boundary(q);
  if (needs_whole_matrices(q)) bytes += matrix_buffer_bytes(q, at);
  return bytes;
}

StageLayers share_of(const ModelPart& part) {
  return {part.last_layer - part.first_layer, part.embedding, part.head};
}

std::int64_t kept_in_flight(const RunConfig& q, const Coordinate& at, const Programs& programs) {
  std::vector<std::int64_t> each;  // bytes of a micro-batch, by chunk
  for (const ModelPart& part : parts_on_rank(q, at)) {
    each.push_back(held_bytes(programs, share_of(part), q.recompute));
  }
  if (!q.pipelined()) return each.front();
  const std::int64_t closed = in_flight(q, at.pp()) * *std::max_element(each.begin(), each.end());
  const std::int64_t actions = std::int64_t{q.pp()} * q.micros() * q.chunks;
  if (each.size() == 1 || actions > kMaxActions) return closed;
  std::int64_t now = 0, most = 0;
  const auto schedule = schedule_of(q);
  for (const schedule::Action& action : schedule.actions[static_cast<std::size_t>(at.pp())]) {
    using schedule::Kind;
    const std::int64_t bytes = each[static_cast<std::size_t>(action.chunk)];
    if (action.kind == Kind::forward) most = std::max(most, now += bytes);
    if (action.kind == Kind::backward || action.kind == Kind::backward_weight) now -= bytes;
  }
  return most;
}

// Returns whether the input of another micro-batch arrives while the most are in flight.
bool receives_ahead(const RunConfig& q, const Coordinate& at) {
  return at.pp() > 0 && q.chunks <= 1 && q.micros() > in_flight(q, at.pp());
}

// Returns the bytes of activations at the end of a forward pass: those kept for backward, the
// output to send, and the arriving input.
std::int64_t activation_bytes(const RunConfig& q, const Coordinate& at, const Programs& programs) {
  return kept_in_flight(q, at, programs) + (sends_on(q, at) ? boundary(q) : 0) +
         (receives_ahead(q, at) ? boundary(q) : 0);
}

// Memory at one moment of a step: bytes in addition to state, activations and buffers, and bytes of
// activations that are freed by then.
struct Moment {
  std::int64_t temporary = 0, gone = 0;
};

// Returns the bytes of ids and targets. Context-parallel ranks hold whole rows and their parts.
std::int64_t batch_bytes(const RunConfig& q) {
  const std::int64_t tokens = q.rank_tokens() + (q.cp() > 1 ? q.seq : 0);
  return 16 * q.micro_batch * tokens * q.micros();
}

// [Note: a run's temporary] Moments in the backward of a part: the loss, each layer from the last,
// and the embedding. Each also holds the workspace and the batch, the incoming gradient, recomputed
// activations, a pending gradient of a table (a tied table waits for its other half; if gradients
// are reduced every micro-batch, the head's waits for its bucket, which is the last), and gradients
// that wait until their bucket is full.
std::vector<Moment> moments_of_part(const RunConfig& q, const Programs& programs,
                                    const std::vector<Placed>& params, int model_chunk,
                                    const ModelPart& part) {
  const Program& layer = programs.layer;
  const bool each = q.policy() == ReducePolicy::each, in_place = layer.grads_in_place;
  const bool table_waits =
      !in_place && !q.model.lora.any() && part.head && (each || (q.model.tied && part.embedding));
  const Param& table = programs.embedding.operations.front().params.front();
  const std::int64_t e = q.layout.param, stream = in_place ? 0 : boundary(q);
  const std::int64_t batch =
      static_cast<std::int64_t>(layer.workspace) + layer.batches * batch_bytes(q);
  const std::int64_t always = batch + (table_waits ? e * table.elements_on_rank(layer.tp) : 0);
  const std::int64_t block = held_bytes(layer, q.recompute);
  const std::vector<BackwardPeak> peaks = backward_peaks(layer, q.recompute);
  const auto widest = [](const Program& program) {
    return static_cast<std::int64_t>(widest_temporary(program));
  };
  std::vector<Moment> all = {{batch, 0}};
  if (part.head) all.push_back({batch + widest(programs.head), 0});
  const std::int64_t sent = sends_on(part) ? boundary(q) : 0;
  const double limit = bucket_limit(q, params);
  std::int64_t open = 0;  // elements in the open bucket
  std::int64_t gone = sent + (part.head ? held_bytes(programs.head, q.recompute) : 0);
  for (std::size_t i = params.size(); i-- > 0;) {
    if (params[i].model_chunk != model_chunk) continue;
    const std::int64_t before = open;
    open += each && !in_place && !params[i].frozen ? params[i].padded : 0;
    if (static_cast<double>(open * q.travel()) >= limit) open = 0;
    if (!params[i].down) continue;
    const std::int64_t came = gone == sent ? 0 : stream;  // the first one is in a buffer
    for (const BackwardPeak& peak : peaks) {
      all.push_back(
          {always + came + e * (peak.reduced ? open : before) + peak.temporary, gone + peak.gone});
    }
    gone += block;
  }
  if (part.embedding && widest(programs.embedding) > 0) {
    all.push_back({always + e * open + widest(programs.embedding), gone});
  }
  return all;
}

}  // namespace

std::int64_t replica_traffic(const RunConfig& q, const Coordinate& at) {
  if (q.replicas() == 1) return 0;
  const std::int64_t reductions = q.policy() == ReducePolicy::each ? q.micros() : 1;
  std::int64_t sent = 0;
  for (const std::int64_t elements :
       bucket_elements(q, placed_params(q, at, programs_in_memory(q)))) {
    const std::int64_t part = (elements / q.shards() + q.replicas() - 1) / q.replicas();
    sent += 2 * (q.replicas() - 1) * part * q.travel() * reductions;
  }
  return sent;
}

RunMemory run_memory(const RunConfig& q, const Coordinate& at) {
  return run_memory(q, at, programs_in_memory(q));
}

RunMemory run_memory(const RunConfig& q, const Coordinate& at, const Programs& programs) {
  const Sharding sharded = sharding_of_stage(q.zero);
  const std::vector<Placed> params = placed_params(q, at, programs);
  std::int64_t whole = 0, trained = 0;
  for (const Placed& param : params) {
    whole += param.padded;
    trained += param.frozen ? 0 : param.padded;
  }
  const bool grads_cut = sharded.grads && q.policy() == ReducePolicy::each;
  RunMemory memory;
  const auto share = [&](std::int64_t all, bool cut) { return cut ? all / q.shards() : all; };
  memory.params = share(whole, sharded.params) * q.layout.param;
  memory.grads = share(trained, grads_cut) * q.layout.grad;
  memory.optimizer = share(trained, sharded.optimizer) * q.layout.optimizer();
  if (needs_whole_matrices(q)) {
    for (const HiddenMatrix& matrix : hidden_matrices(q, at)) {
      memory.optimizer -= shard_size(matrix.elements, q.shards()) *
                          (sharded.optimizer ? 1 : q.shards()) *
                          (q.layout.moments - q.layout.matrix_moments);
    }
  }
  memory.activations = activation_bytes(q, at, programs);
  memory.buffers = buffer_bytes(q, at, params);
  std::int64_t most = 0;  // peak of temporaries minus freed activations
  const auto consider = [&](const Moment& moment) {
    memory.temporary = std::max(memory.temporary, moment.temporary);
    most = std::max(most, moment.temporary - moment.gone);
  };
  int model_chunk = 0;
  for (const ModelPart& each : parts_on_rank(q, at)) {
    for (const Moment& moment : moments_of_part(q, programs, params, model_chunk, each)) {
      consider(moment);
    }
    ++model_chunk;
  }
  if (needs_whole_matrices(q)) {
    // After the passes, activations and the units gathered by stage 3 are freed.
    consider({batch_bytes(q) + matrix_update_bytes(q, at),
              memory.activations + gathered_buffers(q, at, params)});
  }
  memory.not_at_once = memory.temporary - most;
  return memory;
}

}  // namespace tessera::planner
