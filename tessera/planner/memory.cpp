#include <algorithm>

#include "tessera/planner/grad_travel.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/rank_load.h"
#include "tessera/planner/run.h"
#include "tessera/planner/run_parts.h"
#include "tessera/planner/state.h"

namespace tessera::planner {
namespace {

struct RankParts {
  bool embedding = false, head = false;
  double params = 0;
};

// [Note: buffers] What is on its way besides the state itself.
// - Gradients that are reduced once, after the last micro-batch, travel from where they lie. Those
//   that are cut and reduced each time, or travel in fewer bits, pass through two buckets: one
//   fills, one travels. A bucket holds whole parameters, so it is as large as the largest.
// - With replicas the sums of two buckets are all-reduced: a shard of each.
// - PowerSGD keeps what it left out, and its factors.
// - Stage 3 has two units gathered, the one in use and the next; or all of them, if they are kept.
// - A pipeline receives into a buffer for each direction.
double buffers_of(const Question& q, const RankParts& rank) {
  double bytes = 0;
  const Sharding sharded = sharding_of_stage(q.zero);
  const double layer = layer_params_on_rank(q), vocab = vocab_params_on_rank(q);
  const bool table = rank.embedding || rank.head;
  const bool lanes = sharded.grads && q.policy() == ReducePolicy::each;
  const bool copies = lanes || q.travel() != q.layout.grad;
  if (q.dp() > 1 && (copies || q.replicas() > 1)) {
    const double matrix = real(q.model.hidden * q.model.ffn) / q.tp();
    const double largest = std::max(matrix, table ? vocab : 0) * q.travel();
    const double bucket = std::max(bucket_bytes(q, rank.params), largest);
    const double both = std::min(2 * bucket, rank.params * q.travel());
    if (copies) bytes += both;
    if (q.replicas() > 1) bytes += both / q.shards();
  }
  if (q.shards() > 1 && sharded.params) {
    const double units = q.keep_params ? rank.params : layer + std::max(layer, table ? vocab : 0);
    bytes += std::min(units, rank.params) * q.layout.param;
  }
  if (q.pp() > 1) bytes += 2 * boundary_on_rank(q);
  return bytes;
}

// [Note: temporary] The larger of two moments, and what the runtime takes for itself.
// - The loss: logits, their fp32 copy and its gradient (in fp32 training the logits are the copy),
//   and the inputs of the last norm and of the head.
// - A layer's backward: gradients of what lies between its products, and where it is recomputed
//   its activations once more.
double temporary_of(const Question& q, const RankParts& rank) {
  const double e = element_bytes(q), tokens = real(q.seq) * real(q.micro_batch);
  const double h = real(q.model.hidden);
  double loss = 0;
  if (rank.head) {
    const double logits = tokens * real((q.model.vocab + q.tp() - 1) / q.tp());
    loss = logits * (e == 4 ? 8 : e + 8) + 2 * e * tokens * h;
  }
  double layer = tokens * e * (3 * h + (q.model.swiglu ? 3 : 2) * real(q.model.ffn) / q.tp());
  if (q.attention == Attention::unfused) {
    layer += 2 * e * tokens * real(q.model.heads) / q.tp() * real(q.seq);
  }
  if (q.recompute != Recompute::none) layer += whole_layer_activations(q) - layer_activations(q);
  return std::max(loss, layer) + q.hardware.reserve;
}

}  // namespace

double usable_memory(const Hardware& hardware) { return hardware.memory * hardware.usable; }

std::vector<Memory> memory_by_rank(const Question& q) {
  std::vector<Memory> all;
  if (q.software == Software::tessera && !q.state_only()) {
    for (int r = 0; r < q.pp(); ++r) {
      const RunMemory run = run_memory(run_question(q, {{Axis::pp, r}}));
      all.push_back({real(run.params), real(run.grads), real(run.optimizer), real(run.activations),
                     real(run.buffers), real(run.temporary) + q.hardware.reserve,
                     real(run.not_at_once)});
    }
    return all;
  }
  const auto shares = stage_shares(q);
  for (int r = 0; r < q.pp(); ++r) {
    const std::vector<StageShare>& chunks = shares[static_cast<std::size_t>(r)];
    RankParts rank;
    rank.params = params_on_rank(q, chunks);
    const StateBytes state = state_bytes(q.layout, q.zero, rank.params, q.shards(), q.policy());
    Memory memory{state.params, state.grads, state.optimizer};
    if (!q.state_only()) {
      std::int64_t layers = 0;  // of the largest chunk
      for (const StageShare& chunk : chunks) {
        layers = std::max(layers, chunk.layers);
        rank.embedding = rank.embedding || chunk.embedding;
        rank.head = rank.head || chunk.head;
      }
      memory.activations = real(in_flight(q, r)) * real(layers) * layer_activations(q);
      memory.buffers = buffers_of(q, rank);
      if (q.dp() > 1 && q.compression() == GradCompression::powersgd) {
        const RunQuestion run = run_question(q, {{Axis::pp, r}});
        const LowRank low = low_rank_of(run, parts_on_rank(run));
        memory.buffers += 4 * real(low.traveling + low.errors);
      }
      memory.temporary = temporary_of(q, rank);
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

Memory memory_of(const Question& q) {
  const std::vector<Memory> all = memory_by_rank(q);
  return all[static_cast<std::size_t>(most_loaded_rank(all))];
}

}  // namespace tessera::planner
