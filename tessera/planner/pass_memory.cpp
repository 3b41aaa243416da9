#include "tessera/planner/pass_memory.h"

#include <algorithm>
#include <cmath>

#include "tessera/planner/program_cost.h"
#include "tessera/planner/rank_load.h"
#include "tessera/planner/run.h"
#include "tessera/planner/whole_matrices.h"

namespace tessera::planner {
namespace {

// Schedules with more passes than this use the closed form, which is an upper bound.
constexpr std::int64_t kMaxPasses = 1 << 20;

bool is_counted(const RunConfig& q) { return q.software == Software::tessera; }

bool sends_on(const ModelPart& part) { return !part.head; }

std::int64_t boundary(const RunConfig& q) {
  const std::int64_t rows = q.micro_batch * q.rank_tokens() / q.sequence_ranks();
  return rows * q.model.hidden * q.layout.param;
}

// A run of Tessera without a pipeline has no schedule; the plan of other software follows it.
std::vector<ModelPart> scheduled_parts(const RunConfig& q, const Coordinate& at) {
  if (is_counted(q) || q.chunks == 1) return parts_on_rank(q, at);
  const std::vector<int> layers = layers_of_stages(q.model, q.stages(), q.split);
  std::vector<ModelPart> parts;
  for (int c = 0; c < q.chunks; ++c) {
    parts.push_back(part_of_stage(layers, stage_of(q, at.pp(), c)));
  }
  return parts;
}

// Returns whether the first backward, which is over the last chunk, finds the most activations and
// needs the most temporaries.
bool peaks_at_first_backward(const RunConfig& q, const std::vector<ChunkLoad>& chunks) {
  return q.schedule == ScheduleChoice::interleaved &&
         std::all_of(chunks.begin(), chunks.end(), [&](const ChunkLoad& chunk) {
           return chunk.kept == chunks.back().kept && chunk.most <= chunks.back().most;
         });
}

// Part of a pass: the embedding, a layer or the head.
struct Piece {
  std::int64_t layer = 0;     // as in Moment
  double begin = 0, end = 0;  // fractions of a forward pass
  double held = 0;            // bytes that its forward keeps
};

// Returns the pieces of a model chunk in forward order.
std::vector<Piece> pieces_of(const RunConfig& q, const Programs& programs, const ModelPart& part) {
  std::vector<Piece> all;
  double work = 0;
  const auto add = [&](std::int64_t layer, const Program& program) {
    const double before = work;
    work += program_flops(program);
    const bool ends_model = layer == kTable || layer == q.model.layers;
    double held = 0;
    if (is_counted(q)) {
      held = real(held_bytes(program, q.recompute));
    } else if (!ends_model) {
      held = kept_bytes(program, q.recompute);
    }
    all.push_back({layer, before, work, held});
  };
  if (part.embedding) add(kTable, programs.embedding);
  for (std::int64_t layer = part.first_layer; layer < part.last_layer; ++layer) {
    const bool differs = is_counted(q) && part.embedding && layer == part.first_layer &&
                         !programs.first_layer.operations.empty();
    add(layer, differs ? programs.first_layer : programs.of_layer(q.model, layer));
  }
  if (part.head) add(q.model.layers, programs.head);
  for (Piece& piece : all) piece.begin /= std::max(work, 1.0), piece.end /= std::max(work, 1.0);
  return all;
}

// Returns the moments of other software: those of [Note: temporary].
std::vector<Moment> moments_of_pieces(const RunConfig& q, const Programs& programs,
                                      const std::vector<Piece>& pieces) {
  std::vector<Moment> all = {{0, 0, q.model.layers}};
  double gone = 0;
  const auto add = [&](double temporary, std::int64_t layer) {
    all.push_back({std::llround(temporary), std::llround(gone), layer});
  };
  for (auto piece = pieces.rbegin(); piece != pieces.rend(); ++piece) {
    if (piece->layer == kTable) continue;
    if (piece->layer == q.model.layers) {
      add(widest_temporary(programs.head), piece->layer);
      continue;
    }
    const Program& program = programs.of_layer(q.model, piece->layer);
    const double again = kept_bytes(program, Recompute::none) - kept_bytes(program, q.recompute);
    if (q.recompute != Recompute::none) add(0, piece->layer);
    add(widest_temporary(program) + again, piece->layer);
    gone += piece->held;
  }
  return all;
}

// Returns the points of the backward pass of a chunk: [Note: memory of a pass].
std::vector<PassPoint> backward_points(const RunConfig& q, const std::vector<Piece>& pieces,
                                       const std::vector<Moment>& moments, double kept,
                                       double sent) {
  const double always = real(moments.front().temporary);
  const double again = q.recompute == Recompute::full ? 1.0 / 3 : 0;
  std::vector<PassPoint> points = {{0, kept, always}};
  auto piece = pieces.rbegin();
  double before = kept - piece->held;  // activations of the pieces before this one
  for (std::size_t i = 1; i < moments.size();) {
    const std::int64_t layer = moments[i].layer;
    while (piece->layer != layer) before -= (++piece)->held;
    std::size_t end = i;
    while (end < moments.size() && moments[end].layer == layer) ++end;
    const bool ends_model = layer == kTable || layer == q.model.layers;
    const bool repeats = q.recompute != Recompute::none && !ends_model;
    const double count = static_cast<double>(end - i);
    for (double k = 0; i < end; ++i, ++k) {
      double share = (k + 0.5) / count;
      if (repeats) share = k == 0 ? 0 : again + (1 - again) * (k - 1) / (count - 1);
      const double total = kept + sent - real(moments[i].gone) + real(moments[i].temporary);
      const double left = std::max(before, kept + sent - real(moments[i].gone));
      points.push_back({1 - piece->end + share * (piece->end - piece->begin), left, total - left});
    }
  }
  points.push_back({1, 0, always});
  return points;
}

}  // namespace

// Context-parallel ranks hold whole rows and their parts.
std::int64_t batch_bytes(const RunConfig& q) {
  const std::int64_t tokens = q.rank_tokens() + (q.cp() > 1 ? q.seq : 0);
  return 16 * q.micro_batch * tokens * q.micros();
}

std::int64_t sent_bytes(const RunConfig& q, const Coordinate& at) {
  const std::vector<ModelPart> parts = parts_on_rank(q, at);
  const bool sends =
      std::any_of(parts.begin(), parts.end(), [](const ModelPart& part) { return sends_on(part); });
  return sends ? boundary(q) : 0;
}

std::int64_t arriving_bytes(const RunConfig& q, const Coordinate& at) {
  const bool ahead = at.pp() > 0 && q.chunks <= 1 && q.micros() > in_flight(q, at.pp());
  return ahead ? boundary(q) : 0;
}

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
  const std::int64_t head = q.model.layers;
  std::vector<Moment> all = {{batch, 0, head}};
  if (part.head) all.push_back({batch + widest(programs.head), 0, head});
  const std::int64_t sent = sends_on(part) ? boundary(q) : 0;
  const double limit = bucket_limit(q, params);
  const int shards = q.shards(), travel = q.travel();
  std::int64_t waiting[] = {0, 0};  // elements in the open buckets, outside experts and of experts
  std::int64_t gone = sent + (part.head ? held_bytes(programs.head, q.recompute) : 0);
  for (std::size_t i = params.size(); i-- > 0;) {
    if (params[i].model_chunk != model_chunk) continue;
    const std::int64_t before = waiting[0] + waiting[1];
    std::int64_t& bucket = waiting[params[i].shards == shards ? 0 : 1];
    bucket += each && !in_place && !params[i].frozen ? params[i].padded : 0;
    if (static_cast<double>(bucket * travel) >= limit) bucket = 0;
    if (!params[i].down) continue;
    const std::int64_t open = waiting[0] + waiting[1];
    const Program& program = programs.of_layer(q.model, params[i].layer);
    if (block.program != &program) {
      block = {&program, held_bytes(program, q.recompute), backward_peaks(program, q.recompute)};
    }
    const std::int64_t came = gone == sent ? 0 : stream;  // the first one is in a buffer
    const std::int64_t number = params[i].layer;
    if (q.recompute != Recompute::none) all.push_back({always + came + e * before, gone, number});
    for (const BackwardPeak& peak : block.peaks) {
      all.push_back({always + came + e * (peak.reduced ? open : before) + peak.temporary,
                     gone + peak.gone, number});
    }
    gone += block.held;
  }
  if (part.embedding && widest(programs.embedding) > 0) {
    all.push_back(
        {always + e * (waiting[0] + waiting[1]) + widest(programs.embedding), gone, kTable});
  }
  return all;
}

const schedule::Schedule& LazySchedule::get() {
  if (!made_) made_ = schedule_of(run_);
  return *made_;
}

PassPeak peak_of_passes(const RunConfig& q, int rank, const std::vector<ChunkLoad>& chunks,
                        double always, LazySchedule& schedule) {
  PassPeak peak;
  peak.temporary = always;
  if (chunks.size() == 1 || q.passes() > kMaxPasses || peaks_at_first_backward(q, chunks)) {
    const bool scheduled = q.pipelined() || !is_counted(q);
    for (const ChunkLoad& chunk : chunks) {
      peak.kept = std::max(peak.kept, chunk.kept);
      peak.temporary = std::max(peak.temporary, chunk.most);
    }
    peak.kept *= scheduled ? real(in_flight(q, rank)) : 1;
    return peak;
  }
  using schedule::Kind;
  const auto each_pass = [&](const auto& f) {
    double now = 0;
    for (const schedule::Action& action : schedule.get().actions[static_cast<std::size_t>(rank)]) {
      const ChunkLoad& chunk = chunks[static_cast<std::size_t>(action.chunk)];
      if (action.kind == Kind::forward) now += chunk.kept;
      f(action.kind, chunk, now);
      if (action.kind == Kind::backward || action.kind == Kind::backward_weight) now -= chunk.kept;
    }
  };
  each_pass([&](Kind, const ChunkLoad&, double now) { peak.kept = std::max(peak.kept, now); });
  each_pass([&](Kind kind, const ChunkLoad& chunk, double now) {
    if (kind != Kind::backward && kind != Kind::backward_input) return;
    peak.temporary = std::max(peak.temporary, chunk.most - (peak.kept - now));
  });
  return peak;
}

PassMemory pass_memory(const RunConfig& q, const Coordinate& at) {
  return pass_memory(q, at, programs_in_memory(q, at[Axis::ep]));
}

PassMemory pass_memory(const RunConfig& q, const Coordinate& at, const Programs& programs) {
  const auto params = is_counted(q) ? placed_params(q, at, programs) : std::vector<Placed>{};
  PassMemory memory;
  if (is_counted(q)) {
    memory.sent = real(sent_bytes(q, at));
    memory.arriving = real(arriving_bytes(q, at));
  }
  for (const ModelPart& part : scheduled_parts(q, at)) {
    const auto chunk = static_cast<int>(memory.chunks.size());
    const std::vector<Piece> pieces = pieces_of(q, programs, part);
    const auto moments = is_counted(q) ? moments_of_part(q, programs, params, chunk, part)
                                       : moments_of_pieces(q, programs, pieces);
    memory.always = real(moments.front().temporary);
    ChunkPasses& passes = memory.chunks.emplace_back();
    for (const Moment& moment : moments) {
      passes.most = std::max(passes.most, real(moment.temporary - moment.gone));
    }
    double kept = 0;
    passes.forward.push_back({0, 0, memory.always});
    for (const Piece& piece : pieces) {
      kept += piece.held;
      passes.forward.push_back({piece.end, kept, memory.always});
    }
    passes.backward = backward_points(q, pieces, moments, kept, memory.sent);
  }
  if (is_counted(q) && needs_whole_matrices(q)) {
    memory.update =
        real(batch_bytes(q) + matrix_update_bytes(q, at) - gathered_buffers(q, at, params));
  }
  return memory;
}

}  // namespace tessera::planner
