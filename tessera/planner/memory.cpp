#include <algorithm>
#include <cmath>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/portable_math.h"
#include "tessera/planner/pass_memory.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/plan_parts.h"
#include "tessera/planner/program_cost.h"
#include "tessera/planner/rank_load.h"
#include "tessera/planner/run.h"
#include "tessera/planner/state.h"

namespace tessera::planner {
namespace {

struct RankParts {
  bool embedding = false, head = false;
  double params = 0;
  double experts = 0;  // of them, those of experts
};

// [Note: buffers] Memory for communication, in addition to the state.
// - Gradients that are reduced once, after the last micro-batch, are reduced in place. Gradients
//   that are sharded and reduced for every micro-batch, or sent with fewer bits, pass through two
//   buckets: one is filled while the other is reduced. A bucket holds whole parameters, so it is at
//   least as large as the largest parameter.
// - With replicas, a shard of the sums of two buckets is buffered for the all-reduce.
// - Stage 3 holds two gathered units, the current and the next; or all of them with --keep-params.
// - A pipeline has one receive buffer for each direction.
double buffers_of(const RunConfig& q, const RankParts& rank) {
  double bytes = 0;
  const Sharding sharded = sharding_of_stage(q.zero);
  const bool routed = q.model.experts.any();
  const double layer =
      routed ? router_layer_params_on_rank(q) + layer_experts_on_rank(q) : layer_params_on_rank(q);
  const double vocab = vocab_params_on_rank(q);
  const bool table = rank.embedding || rank.head;
  const bool lanes = sharded.grads && q.policy() == ReducePolicy::each;
  const bool copies = lanes || q.travel() != q.layout.grad;
  if (q.averages_gradients() && (copies || q.replicas() > 1)) {
    const std::int64_t width =
        std::max({q.model.ffn, q.model.experts.width, q.model.experts.shared_width});
    const double matrix = real(q.model.hidden * width) / q.tp();
    const double largest = std::max(matrix, table ? vocab : 0) * q.travel();
    const double bucket = std::max(bucket_bytes(q, rank.params), largest);
    const double both = std::min(2 * bucket, rank.params * q.travel());
    if (copies) bytes += both;
    if (q.replicas() > 1) bytes += both / (routed ? q.expert_shards() : q.shards());
  }
  if (q.shards() > 1 && sharded.params) {
    const double units = q.keep_params ? rank.params : layer + std::max(layer, table ? vocab : 0);
    bytes += std::min(units, rank.params) * q.layout.param;
  }
  if (q.pipelined()) bytes += 2 * boundary_on_rank(q);
  return bytes;
}

constexpr std::int64_t kSeq = 2048;
// Largest relative difference between the assumed and the given number of parameters.
constexpr double kNear = 0.1;

// Returns a GPT of usual proportions: a vocabulary of 50257, heads of 64 or 128, an MLP of four
// times the width, and a width of about 64 times the number of layers (128 times from 5B
// parameters). Heads are a multiple of tp, and every stage has a layer.
std::optional<ModelShape> usual_gpt(double params, int tp, std::int64_t stages) {
  const double ratio = params < 5e9 ? 64 : 128;
  const double width = portable::cbrt(ratio * params / 12);  // 12 · width² in a layer
  if (!(width >= 64 && width < 9e5)) return std::nullopt;
  const std::int64_t head = width < 2048 ? 64 : 128;
  const std::int64_t step = head * tp;
  const std::int64_t hidden = std::max<std::int64_t>(1, std::llround(width / real(step))) * step;
  if (hidden > 1'000'000) return std::nullopt;
  ModelShape shape = gpt_shape(1, hidden, hidden / head, 50257, 0);
  const double layers =
      (params - real(shape.params() - shape.layer_params())) / real(shape.layer_params());
  const auto rounded = static_cast<std::int64_t>(std::llround(std::clamp(layers, 1.0, 1e5)));
  shape.layers = std::max(stages, rounded);
  if (std::abs(real(shape.params()) - params) > kNear * params) return std::nullopt;
  return shape;
}

}  // namespace

double usable_memory(const Hardware& hardware) { return hardware.memory * hardware.usable; }

std::vector<Memory> memory_by_rank(const RunConfig& q) {
  return memory_by_rank(q, q.state_only() ? Programs{} : programs_in_memory(q));
}

std::vector<Memory> memory_by_rank(const RunConfig& q, const Programs& programs) {
  std::vector<Memory> all;
  if (q.software == Software::tessera && !q.state_only()) {
    for (const RunMemory& run : run_memory_by_rank(q, programs)) {
      all.push_back({real(run.params), real(run.grads), real(run.optimizer), real(run.activations),
                     real(run.buffers), real(run.temporary) + q.hardware.reserve,
                     real(run.not_at_once), real(run.on_disk)});
    }
    return all;
  }
  const auto shares = chunk_layers(q);
  LazySchedule schedule(q);
  // [Note: temporary] The larger of two peaks (the loss, and a layer's backward with its recomputed
  // activations), plus the memory of the runtime.
  const double loss = widest_temporary(programs.head);
  const bool again = q.recompute != Recompute::none;
  struct LayerBytes {
    double kept = 0, temporary = 0;
  };
  const auto bytes_of = [&](const Program& program) {
    const double kept = kept_bytes(program, q.recompute);
    return LayerBytes{kept, widest_temporary(program) +
                                (again ? kept_bytes(program, Recompute::none) - kept : 0)};
  };
  const LayerBytes layer = bytes_of(programs.layer), dense = bytes_of(programs.dense_layer);
  for (int r = 0; r < q.pp(); ++r) {
    const std::vector<StageLayers>& chunks = shares[static_cast<std::size_t>(r)];
    RankParts rank;
    rank.params = params_on_rank(q, chunks);
    rank.experts = experts_on_rank(q, chunks);
    const StateBytes state =
        state_bytes(q.layout, q.zero, rank.params - rank.experts, q.shards(), q.policy());
    const StateBytes of_experts =
        state_bytes(q.layout, q.zero, rank.experts, q.expert_shards(), q.policy());
    Memory memory{state.params + of_experts.params, state.grads + of_experts.grads,
                  state.optimizer + of_experts.optimizer};
    if (q.offloads_optimizer()) memory.on_disk = std::exchange(memory.optimizer, 0);
    if (!q.state_only()) {
      std::vector<ChunkLoad> loads;
      double temporary = 0;
      for (const StageLayers& chunk : chunks) {
        const std::int64_t sparse = chunk.layers - chunk.dense;
        ChunkLoad& load = loads.emplace_back();
        load.kept = real(sparse) * layer.kept + real(chunk.dense) * dense.kept;
        const auto consider = [&](double bytes, double gone) {
          temporary = std::max(temporary, bytes);
          load.most = std::max(load.most, bytes - gone);
        };
        if (chunk.head) consider(loss, 0);
        if (sparse > 0) consider(layer.temporary, 0);
        if (chunk.dense > 0) consider(dense.temporary, real(sparse) * layer.kept);
        rank.embedding = rank.embedding || chunk.embedding;
        rank.head = rank.head || chunk.head;
      }
      const PassPeak peak = peak_of_passes(q, r, loads, 0, schedule);
      memory.activations = peak.kept;
      memory.buffers = buffers_of(q, rank);
      memory.temporary = temporary + q.hardware.reserve;
      memory.not_at_once = temporary - peak.temporary;
    }
    all.push_back(memory);
  }
  return all;
}

int most_loaded_rank(const std::vector<Memory>& all) {
  const auto most = std::max_element(all.begin(), all.end(), [](const Memory& a, const Memory& b) {
    return a.total() < b.total();
  });
  return static_cast<int>(most - all.begin());
}

Memory memory_of(const RunConfig& q) {
  return memory_of(q, q.state_only() ? Programs{} : programs_in_memory(q));
}

Memory memory_of(const RunConfig& q, const Programs& programs) {
  const std::vector<Memory> all = memory_by_rank(q, programs);
  return all[static_cast<std::size_t>(most_loaded_rank(all))];
}

std::optional<Assumed> assumed_for(const RunConfig& q) {
  if (!q.state_only()) return std::nullopt;
  const auto shape = usual_gpt(q.params, q.tp(), q.stages());
  if (!shape) return std::nullopt;
  RunConfig other = q;
  other.params = 0;
  other.model = *shape;
  other.seq = q.seq > 0 ? q.seq : kSeq;
  Assumed assumed{*shape, other.seq, {}};
  try {
    assumed.memory = memory_of(resolve(other));
  } catch (const UsageError&) {  // such as a --split for other layers
    return std::nullopt;
  }
  const Memory state = memory_of(q);
  assumed.memory.params = state.params;
  assumed.memory.grads = state.grads;
  assumed.memory.optimizer = state.optimizer;
  assumed.memory.on_disk = state.on_disk;
  return assumed;
}

double needed_memory(const RunConfig& q) {
  return needed_memory(q, q.state_only() ? Programs{} : programs_in_memory(q));
}

double needed_memory(const RunConfig& q, const Programs& programs) {
  if (const auto assumed = assumed_for(q)) return assumed->memory.total();
  return memory_of(q, programs).total();
}

}  // namespace tessera::planner
