// Memory of a rank of a Tessera run.

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/core/shard.h"
#include "tessera/core/state_layout.h"
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
  std::int64_t padded = 0;  // total over all ranks that shard it
  int model_chunk = 0;      // index of its model chunk
  std::int64_t layer = -1;  // -1: outside blocks
  int shards = 1;           // ranks that shard it: fewer for experts
  bool down = false;        // second matrix of an MLP, whose gradient is the first of its block
  bool frozen = false;
};

// Element counts on this rank of the parameters of a program, in the order of declaration.
struct SizedParam {
  std::int64_t elements = 0;
  bool down = false;
  bool frozen = false;
  bool of_expert = false;
};
std::vector<SizedParam> sized_params(const RunConfig& q, const Program& program, bool adapters,
                                     const ModelPart& part) {
  std::vector<SizedParam> all;
  const bool frozen = q.model.lora.any();
  each_param(program, [&](const Operation& op, const Param& param, std::int64_t expert) {
    if ((op.adapter >= 0) != adapters || (param.tied && part.embedding)) return;
    all.push_back({param.elements_on_rank(program.axes.size(Axis::tp)),
                   std::string_view(param.name).ends_with("proj2.weight"), frozen && !adapters,
                   expert >= 0});
  });
  // Of several second matrices, the gradient of the last is the first.
  bool found = false;
  for (std::size_t i = all.size(); i-- > 0;) {
    all[i].down = all[i].down && !found;
    found = found || all[i].down;
  }
  return all;
}

// [Note: placement] Parameters in the engine's order: for each chunk, first those outside blocks,
// then block by block.
std::vector<Placed> placed_params(const RunConfig& q, const Coordinate& at,
                                  const Programs& programs) {
  std::vector<Placed> all;
  int model_chunk = 0;
  for (const ModelPart& part : parts_on_rank(q, at)) {
    const auto place = [&](const std::vector<SizedParam>& params, std::int64_t layer) {
      for (const SizedParam& param : params) {
        const int shards = param.of_expert ? q.expert_shards() : q.shards();
        all.push_back({shard_size(param.elements, shards) * shards, model_chunk, layer, shards,
                       param.down, param.frozen});
      }
    };
    if (part.embedding) place(sized_params(q, programs.embedding, false, part), -1);
    if (part.head) place(sized_params(q, programs.head, false, part), -1);
    const Program* last = nullptr;
    std::vector<SizedParam> block;
    for (std::int64_t layer = part.first_layer; layer < part.last_layer; ++layer) {
      const Program& program = programs.of_layer(q.model, layer);
      if (&program != last) {
        block = sized_params(q, program, false, part);
        if (q.model.lora.any()) {
          const std::vector<SizedParam> adapters = sized_params(q, program, true, part);
          block.insert(block.end(), adapters.begin(), adapters.end());
        }
        last = &program;
      }
      place(block, layer);
    }
    ++model_chunk;
  }
  return all;
}

// Returns the size in bytes at which a bucket is closed: [Note: bucket size]. Experts that other
// ranks do not have are not counted, so that it is the same on all ranks.
double bucket_limit(const RunConfig& q, const std::vector<Placed>& params) {
  if (q.bucket_bytes > 0) return q.bucket_bytes;
  std::int64_t elements = 0;
  for (const Placed& param : params) {
    elements += param.frozen || param.shards != q.shards() ? 0 : param.padded;
  }
  return static_cast<double>(default_bucket_bytes(elements * q.travel()));
}

struct Bucket {
  std::int64_t elements = 0;
  int shards = 1;
};
// Returns the buckets. Gradients arrive in reverse order; a bucket is closed once it is large
// enough. Parameters of experts have buckets of their own, because other ranks reduce them.
std::vector<Bucket> buckets_of(const RunConfig& q, const std::vector<Placed>& params) {
  const double limit = bucket_limit(q, params);
  std::vector<Bucket> buckets;
  std::int64_t open[] = {0, 0};  // elements outside experts, and of experts
  const int shards[] = {q.shards(), q.expert_shards()};
  const auto close = [&](std::size_t kind) {
    if (open[kind] > 0) buckets.push_back({std::exchange(open[kind], 0), shards[kind]});
  };
  for (std::size_t i = params.size(); i-- > 0;) {
    if (i + 1 < params.size() && params[i + 1].model_chunk != params[i].model_chunk) {
      close(0), close(1);
    }
    const std::size_t kind = params[i].shards == q.shards() ? 0 : 1;
    open[kind] += params[i].frozen ? 0 : params[i].padded;
    if (static_cast<double>(open[kind] * q.travel()) >= limit) close(kind);
  }
  close(0), close(1);
  return buckets;
}

// Returns the sum of `size` of the largest bucket outside experts and the largest one of experts,
// which have buffers of their own if other ranks reduce them.
template <typename Size>
std::int64_t largest_of(const RunConfig& q, const std::vector<Bucket>& buckets, const Size& size) {
  std::int64_t others = 0, of_experts = 0;
  for (const Bucket& each : buckets) {
    std::int64_t& most = each.shards == q.shards() ? others : of_experts;
    most = std::max(most, size(each));
  }
  return others + of_experts;
}

// Returns the peak bytes gathered by stage 3: the parameters outside blocks, which stay during a
// pass, the current block and the next; or all parameters with --keep-params.
std::int64_t gathered(const RunConfig& q, const Coordinate& at, const std::vector<Placed>& params) {
  std::int64_t most = 0, all = 0;
  const std::vector<ModelPart> parts = parts_on_rank(q, at);
  for (std::size_t c = 0; c < parts.size(); ++c) {
    std::int64_t outside = 0, block = 0, before = 0, layer = -1, widest = 0;
    for (const Placed& param : params) {
      if (param.model_chunk != static_cast<int>(c)) continue;
      all += param.padded;
      if (param.layer < 0) {
        outside += param.padded;
        continue;
      }
      if (param.layer != layer) before = std::exchange(block, 0), layer = param.layer;
      block += param.padded;
      widest = std::max(widest, block + (q.prefetch ? before : 0));
    }
    most = std::max(most, outside + widest);
  }
  return (q.keep_params ? all : most) * q.layout.param;
}

std::int64_t gathered_buffers(const RunConfig& q, const Coordinate& at,
                              const std::vector<Placed>& params) {
  const bool copies = sharding_of_stage(q.zero).params && q.gather != Gather::alias;
  return copies ? gathered(q, at, params) : 0;
}

// Returns the bytes of the records in memory of state in files: [Note: records] in
// core/state_layout.h.
std::int64_t record_bytes(const RunConfig& q, const std::vector<Placed>& params) {
  const bool sharded = sharding_of_stage(q.zero).optimizer;
  std::int64_t most = 0;
  for (const Placed& param : params) {
    if (param.frozen) continue;
    most = std::max(most, sharded ? param.padded / param.shards : param.padded);
  }
  const double largest =
      q.layout.optimizer() * static_cast<double>(std::min(most, kRecordElements));
  return kRecordBuffers * ((static_cast<std::int64_t>(largest) + 63) / 64 * 64);
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

// [Note: engine buffers] Two buffers of the largest bucket, and two of that of experts with ep, if
// gradients are reduced every micro-batch or sent in another type than they are stored in; with
// replicas, two shards of it for the sums to all-reduce ([Note: hybrid sharding]); the units
// gathered by stage 3; the gradients that a pipeline receives: one in use and one arriving; and the
// exchange of matrices on a GPU.
std::int64_t buffer_bytes(const RunConfig& q, const Coordinate& at,
                          const std::vector<Placed>& params) {
  std::int64_t bytes = 0;
  const std::vector<Bucket> buckets = buckets_of(q, params);
  if (q.policy() == ReducePolicy::each || q.travel() != q.layout.grad) {
    bytes +=
        2 * q.travel() * largest_of(q, buckets, [](const Bucket& each) { return each.elements; });
  }
  if (q.replicas() > 1) {
    bytes += q.travel() * largest_of(q, buckets, [](const Bucket& each) {
               return 2 * each.elements / each.shards;
             });
  }
  bytes += gathered_buffers(q, at, params);
  if (sends_on(q, at)) bytes += 2 * boundary(q);
  if (needs_whole_matrices(q)) bytes += matrix_buffer_bytes(q, at);
  return bytes;
}

std::int64_t kept_in_flight(const RunConfig& q, const Coordinate& at, const Programs& programs) {
  std::vector<std::int64_t> each;  // bytes of a micro-batch, by chunk
  for (const ModelPart& part : parts_on_rank(q, at)) {
    each.push_back(held_bytes(programs, layers_of_part(q.model, part), q.recompute));
  }
  if (!q.pipelined()) return each.front();
  const std::int64_t closed = in_flight(q, at.pp()) * *std::max_element(each.begin(), each.end());
  if (each.size() == 1 || q.passes() > kMaxActions) return closed;
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
  const std::int64_t always =
      batch + (table_waits ? e * table.elements_on_rank(layer.axes.size(Axis::tp)) : 0);
  struct Block {
    const Program* program = nullptr;
    std::int64_t held = 0;
    std::vector<BackwardPeak> peaks;
  } block;
  const auto widest = [](const Program& program) {
    return static_cast<std::int64_t>(widest_temporary(program));
  };
  std::vector<Moment> all = {{batch, 0}};
  if (part.head) all.push_back({batch + widest(programs.head), 0});
  const std::int64_t sent = sends_on(part) ? boundary(q) : 0;
  const double limit = bucket_limit(q, params);
  std::int64_t waiting[] = {0, 0};  // elements in the open buckets, outside experts and of experts
  std::int64_t gone = sent + (part.head ? held_bytes(programs.head, q.recompute) : 0);
  for (std::size_t i = params.size(); i-- > 0;) {
    if (params[i].model_chunk != model_chunk) continue;
    const std::int64_t before = waiting[0] + waiting[1];
    std::int64_t& bucket = waiting[params[i].shards == q.shards() ? 0 : 1];
    bucket += each && !in_place && !params[i].frozen ? params[i].padded : 0;
    if (static_cast<double>(bucket * q.travel()) >= limit) bucket = 0;
    if (!params[i].down) continue;
    const std::int64_t open = waiting[0] + waiting[1];
    const Program& program = programs.of_layer(q.model, params[i].layer);
    if (block.program != &program) {
      block = {&program, held_bytes(program, q.recompute), backward_peaks(program, q.recompute)};
    }
    const std::int64_t came = gone == sent ? 0 : stream;  // the first one is in a buffer
    for (const BackwardPeak& peak : block.peaks) {
      all.push_back(
          {always + came + e * (peak.reduced ? open : before) + peak.temporary, gone + peak.gone});
    }
    gone += block.held;
  }
  if (part.embedding && widest(programs.embedding) > 0) {
    all.push_back({always + e * (waiting[0] + waiting[1]) + widest(programs.embedding), gone});
  }
  return all;
}

}  // namespace

std::int64_t replica_traffic(const RunConfig& q, const Coordinate& at) {
  if (q.replicas() == 1) return 0;
  const std::int64_t reductions = q.policy() == ReducePolicy::each ? q.micros() : 1;
  std::int64_t sent = 0;
  const Programs programs = programs_in_memory(q, at[Axis::ep]);
  for (const Bucket& bucket : buckets_of(q, placed_params(q, at, programs))) {
    const std::int64_t own = bucket.elements / bucket.shards;
    const std::int64_t part = (own + q.replicas() - 1) / q.replicas();
    sent += 2 * (q.replicas() - 1) * part * q.travel() * reductions;
  }
  return sent;
}

RunMemory run_memory(const RunConfig& q, const Coordinate& at) {
  return run_memory(q, at, programs_in_memory(q, at[Axis::ep]));
}

std::vector<RunMemory> run_memory_by_rank(const RunConfig& q) {
  return run_memory_by_rank(q, programs_in_memory(q, 0));
}

std::vector<RunMemory> run_memory_by_rank(const RunConfig& q, const Programs& programs) {
  std::vector<RunMemory> all;
  for (int r = 0; r < q.pp(); ++r) all.push_back(run_memory(q, {{Axis::pp, r}}, programs));
  return all;
}

RunMemory run_memory(const RunConfig& q, const Coordinate& at, const Programs& programs) {
  const Sharding sharded = sharding_of_stage(q.zero);
  const std::vector<Placed> params = placed_params(q, at, programs);
  const bool grads_cut = sharded.grads && q.policy() == ReducePolicy::each;
  RunMemory memory;
  for (const Placed& param : params) {
    const auto share = [&](bool cut) { return cut ? param.padded / param.shards : param.padded; };
    memory.params += share(sharded.params) * q.layout.param;
    if (param.frozen) continue;
    memory.grads += share(grads_cut) * q.layout.grad;
    memory.optimizer += share(sharded.optimizer) * q.layout.optimizer();
  }
  if (needs_whole_matrices(q)) {
    for (const HiddenMatrix& matrix : hidden_matrices(q, at)) {
      const int shards = matrix.of_expert ? q.expert_shards() : q.shards();
      memory.optimizer -= shard_size(matrix.elements, shards) * (sharded.optimizer ? 1 : shards) *
                          (q.layout.moments - q.layout.matrix_moments);
    }
  }
  memory.activations = activation_bytes(q, at, programs);
  memory.buffers = buffer_bytes(q, at, params);
  if (q.offloads_optimizer()) {
    memory.on_disk = std::exchange(memory.optimizer, 0);
    memory.buffers += record_bytes(q, params);
  }
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
