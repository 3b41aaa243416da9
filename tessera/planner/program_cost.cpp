#include "tessera/planner/program_cost.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tessera/core/portable_math.h"
#include "tessera/planner/places.h"
#include "tessera/planner/rank_load.h"
#include "tessera/planner/run.h"

namespace tessera::planner {
namespace {

// Only layers are recomputed, never the embedding or the head.
bool is_layer(const Program& program) {
  return program.part != ProgramPart::embedding && program.part != ProgramPart::head;
}

bool happens(const Program& program, const Operation& op, const Communication& send) {
  return !send.backward || op.kind == OpKind::collective || program.has_gradient(send.of);
}

// Returns a bit mask of the kept tensors.
std::uint64_t kept_tensors(const Program& program, Recompute recompute) {
  std::uint64_t all = 0;
  for (const Operation& op : program.operations) {
    int policy = recompute == Recompute::selective ? kSelective : kFull;
    if (!is_layer(program) || recompute == Recompute::none) {
      policy = kUnlessAgain | (op.trained ? kIfTrained : 0) |
               (op.trained || op.gradient_goes_on ? kIfBackward : kIfNoBackward);
    }
    for (const Kept& kept : op.keeps) {
      if ((kept.when & policy) != 0) all |= std::uint64_t{1} << kept.tensor;
    }
  }
  return all;
}

template <typename Number, typename Member>
Number sum_kept(const Program& program, Recompute recompute, Member member) {
  Number bytes = 0;
  const std::uint64_t kept = kept_tensors(program, recompute);
  for (std::size_t i = 0; i < program.tensors.size(); ++i) {
    if ((kept >> i & 1) != 0) bytes += program.tensors[i].*member;
  }
  return bytes;
}

Work work_of(const Hardware& hardware, int element, const Kernels& kernels) {
  Work work;
  for (const Product& p : kernels.products) {
    const int bytes = p.element > 0 ? p.element : element;
    const Work once{product_time(hardware, bytes, p.m, p.n, p.k, p.batch), 1,
                    2 * p.m * p.n * p.k * p.batch};
    work += once * p.times;
  }
  work.device += pass_time(hardware, kernels.bytes);
  if (kernels.attention_flops > 0) {
    work.device += fused_attention_time(hardware, element, kernels.attention_flops);
  }
  work.launches += kernels.launches;
  work.flops += kernels.attention_flops;
  return work;
}

// Returns the work of one collective of operations along an axis: [Note: the last host]. A message
// waits for its sender only.
Work collective_along(const RunConfig& q, Axis axis, Collective kind, double bytes) {
  const Places where = places(q);
  const int ranks = kind == Collective::send ? 1 : std::max(1, q.axes.size(axis));
  const double behind = q.hardware.launch_skew * portable::log2(ranks);
  return {behind + where.seconds(kind, bytes, where.along[axis]), 1};
}
Work tp_collective(const RunConfig& q, Collective kind, double bytes) {
  return collective_along(q, Axis::tp, kind, bytes);
}

// Returns the communication of an operation along cp that its own work, `kernels`, does not hide:
// [Note: hidden messages].
Work exposed_context(const RunConfig& q, const Program& program, const Operation& op, bool backward,
                     const Work& kernels) {
  Work exposed;
  double keys = 0, gradients = 0;  // seconds of one message of a ring
  for (const Communication& send : op.sends) {
    if (send.axis != Axis::cp || send.backward != backward || !happens(program, op, send)) continue;
    const Work one = collective_along(q, Axis::cp, send.kind, send.elements * send.element);
    if (send.kind == Collective::send) {
      (send.row == Sent::ring_gradients ? gradients : keys) = one.device;
      exposed.launches += one.launches * send.calls;
    } else {
      exposed += one * send.calls;
    }
  }
  if (keys > 0) exposed.device += exposed_ring(q.cp(), kernels.device / q.cp(), keys, gradients);
  return exposed;
}

// Returns the seconds of an operation's all-to-alls over expert-parallel ranks. The busiest rank
// receives `imbalance` times the mean, and the others wait for it.
Work exchange_of_experts(const RunConfig& q, const Program& program, const Operation& op,
                         bool backward) {
  Work work;
  for (const Communication& send : op.sends) {
    if (send.axis != Axis::ep || send.backward != backward || !happens(program, op, send)) continue;
    const double bytes = send.elements * send.element * q.expert_load();
    work += collective_along(q, Axis::ep, send.kind, bytes) * send.calls;
  }
  return work;
}

// Calls f(program, times) for each program of these layers.
template <typename Each>
void each_program(const Programs& programs, StageLayers chunk, const Each& f) {
  std::int64_t dense = programs.dense_layer.operations.empty() ? 0 : chunk.dense;
  if (!programs.first_layer.operations.empty() && chunk.embedding && chunk.layers > 0) {
    f(programs.first_layer, 1);
    --chunk.layers;
    if (dense > 0) --dense;
  }
  if (dense > 0) f(programs.dense_layer, dense);
  if (chunk.layers > dense) f(programs.layer, chunk.layers - dense);
  if (chunk.embedding) f(programs.embedding, 1);
  if (chunk.head) f(programs.head, 1);
}

StageLayers share_of(const ProgramInput& in) {
  const std::int64_t dense = in.model.experts.dense_layers;
  return {in.layers < 0 ? in.model.layers : in.layers, in.embedding, in.head,
          in.dense < 0 ? dense : in.dense};
}

// Rows and columns of a tile, and its efficiency relative to the largest tile.
struct Tile {
  double rows, columns, efficiency;
};
constexpr Tile kTiles[] = {
    {256, 128, 1}, {128, 256, 1}, {128, 128, 0.95}, {128, 64, 0.9}, {64, 128, 0.9}};
constexpr double kFill = 16;      // columns of k, see [Note: kernels]
constexpr double kOverlap = 3.8;  // see [Note: host and device]

}  // namespace

std::int64_t Param::rows_on_rank(int tp) const {
  if (cut != 0) return rows;
  if (segments.empty()) return (rows + tp - 1) / tp;
  std::int64_t own = 0;
  for (const ParamSpec::Segment& segment : segments) {
    const std::int64_t parts = std::min<std::int64_t>(segment.parts == 0 ? tp : segment.parts, tp);
    own += (segment.length + parts - 1) / parts;
  }
  return own;
}

std::int64_t Param::columns_on_rank(int tp) const {
  return cut == 1 ? (columns + tp - 1) / tp : columns;
}

std::int64_t Param::elements_on_rank(int tp) const {
  return rows_on_rank(tp) * (columns > 0 ? columns_on_rank(tp) : 1);
}

double Param::share_on_rank(int tp) const {
  const double width = columns == 0 ? 1 : real(columns);
  if (padded) return real(rows_on_rank(tp)) * width;
  if (cut == 1) return real(rows) * width / tp;
  if (cut != 0) return real(rows) * width;
  double own = 0;
  for (const ParamSpec::Segment& segment : segments) {
    const double parts = static_cast<double>(std::min<std::int64_t>(segment.parts, tp));
    own += real(segment.length) / parts;
  }
  return own * width;
}

ProgramInput program_input(const RunConfig& q) {
  ProgramInput in;
  in.model = q.model;
  in.batch = q.micro_batch;
  in.seq = q.seq;
  in.tokens = q.rank_tokens();
  in.element = element_bytes(q);
  in.recompute = q.recompute;
  in.axes = q.axes;
  in.cp_kind = q.cp_kind;
  in.sequence_ranks = q.sequence_ranks();
  in.fused = q.fused_activations();
  in.gpu = q.gpu.value_or(false);
  in.fp8 = q.precision == Precision::fp8 && in.fused;
  in.drops = q.attention_dropout > 0;
  in.software = q.software.value_or(Software::megatron);
  in.attention = q.attention.value_or(Attention::fused);
  in.grad = q.layout.grad;
  in.accumulate_passes = q.hardware.accumulate_passes;
  in.logit_bytes = q.hardware.logit_bytes;
  in.imbalance = q.expert_received();
  in.expert_grads_in_place = q.policy() == ReducePolicy::last && q.layout.grad == q.layout.param;
  return in;
}

ProgramInput memory_input(const RunConfig& q) {
  ProgramInput in = program_input(q);
  if (in.software == Software::tessera) in.element = q.layout.param;
  return in;
}

std::int64_t held_bytes(const Program& program, Recompute recompute) {
  return sum_kept<std::int64_t>(program, recompute, &Tensor::held);
}

double kept_bytes(const Program& program, Recompute recompute) {
  return sum_kept<double>(program, recompute, &Tensor::bytes);
}

std::int64_t held_bytes(const Programs& programs, const StageLayers& chunk, Recompute recompute) {
  std::int64_t bytes = 0;
  each_program(programs, chunk, [&](const Program& program, std::int64_t times) {
    bytes += times * held_bytes(program, recompute);
  });
  return bytes;
}

std::int64_t held_bytes(const ProgramInput& in) {
  return held_bytes(all_programs(in), share_of(in), in.recompute);
}

double widest_temporary(const Program& program) {
  double widest = 0;
  for (const Operation& op : program.operations) widest = std::max(widest, op.temporary);
  return widest;
}

std::vector<BackwardPeak> backward_peaks(const Program& program, Recompute recompute) {
  const int policy = recompute == Recompute::none        ? kUnlessAgain
                     : recompute == Recompute::selective ? kSelective
                                                         : kFull;
  double again = 0, replaced = 0;
  if (recompute != Recompute::none) {
    again = real(held_bytes(program, Recompute::none) - held_bytes(program, recompute));
  }
  for (const Operation& op : program.operations) {
    if ((op.copied_when & policy) == 0) continue;
    again += op.copies;
    if (op.copies_replace) replaced += op.copies;
  }
  std::vector<BackwardPeak> peaks;
  bool reduced = false;
  for (auto op = program.operations.rbegin(); op != program.operations.rend(); ++op) {
    if (op->temporary > 0) {
      const double more = recompute == Recompute::none ? 0 : op->temporary_again;
      peaks.push_back({static_cast<std::int64_t>(again + op->temporary + more),
                       static_cast<std::int64_t>(replaced), reduced});
    }
    reduced = reduced || op->kind == OpKind::linear;
    ((op->frees_kept & policy) != 0 ? replaced : again) +=
        (op->frees_kept & policy) != 0 ? op->frees : -op->frees;
  }
  return peaks;
}

double Communication::sent_bytes(int ranks) const {
  if (kind == Collective::send) return calls * elements * element;
  const double halves = kind == Collective::all_reduce ? 2 : 1;
  return halves * (ranks - 1) * std::ceil(elements / ranks) * element;
}

OperationTraffic tensor_parallel_traffic(const ProgramInput& in) {
  return operation_traffic(in, Axis::tp);
}

OperationTraffic operation_traffic(const ProgramInput& in, Axis axis) {
  OperationTraffic sent;
  const int ranks = in.axes.size(axis);
  if (ranks == 1) return sent;
  each_program(all_programs(in), share_of(in), [&](const Program& program, std::int64_t times) {
    const bool again = in.recompute == Recompute::full && is_layer(program);
    for (const Operation& op : program.operations) {
      for (const Communication& send : op.sends) {
        if (send.axis != axis || !happens(program, op, send)) continue;
        const double bytes = real(times) * send.sent_bytes(ranks);
        const double passes = again && !send.backward ? 2 : 1;
        (send.backward ? sent.backward : sent.forward) += bytes;
        if (again && !send.backward) sent.recompute += bytes;
        sent.by_row[static_cast<std::size_t>(send.row)] += passes * bytes;
        sent.calls[static_cast<std::size_t>(send.row)] += passes * real(times) * send.calls;
      }
    }
  });
  return sent;
}

PartWork part_work(const RunConfig& q, ProgramPart part) {
  return part_work(q, layer_program(program_input(q), part));
}

PartWork part_work(const RunConfig& q, const Program& program) {
  const int element = element_bytes(q);
  PartWork work;
  for (const Operation& op : program.operations) {
    const Work forward = work_of(q.hardware, element, op.forward);
    work.forward += forward;
    if (q.cp() > 1 && !op.sends.empty()) {
      work.forward_context += exposed_context(q, program, op, false, forward);
      work.backward_context +=
          exposed_context(q, program, op, true, work_of(q.hardware, element, op.backward_input));
    }
    if (q.ep() > 1 && !op.sends.empty()) {
      work.forward_experts += exchange_of_experts(q, program, op, false);
      work.backward_experts += exchange_of_experts(q, program, op, true);
    }
    if (op.recomputed && is_layer(program) && q.recompute == Recompute::selective) {
      work.recompute += forward;
    }
    if (op.gradient_goes_on) {
      work.backward_input += work_of(q.hardware, element, op.backward_input);
    }
    if (op.trained) work.backward_weight += work_of(q.hardware, element, op.backward_weight);
    for (const Communication& send : op.sends) {
      if (send.axis != Axis::tp || send.calls == 0 || !happens(program, op, send)) continue;
      if (send.row == Sent::layers || send.row == Sent::embedding || send.row == Sent::head) {
        (send.backward ? work.backward_reduces : work.forward_reduces) += send.calls;
      } else {
        const double bytes = send.elements * send.element / send.calls;
        (send.backward ? work.backward_weight : work.forward) +=
            tp_collective(q, send.kind, bytes) * send.calls;
      }
    }
  }
  if (is_layer(program) && q.recompute == Recompute::full) {
    work.recompute = work.forward;
    work.recompute_reduces = work.forward_reduces;
    work.recompute_context = work.forward_context;
    work.recompute_experts = work.forward_experts;
  }
  return work;
}

Work tensor_reduce(const RunConfig& q) {
  if (q.tp() == 1) return {};
  const double bytes =
      real(q.micro_batch) * real(q.rank_tokens()) * real(q.model.hidden) * element_bytes(q);
  if (q.sequence_ranks() == 1) return tp_collective(q, Collective::all_reduce, bytes);
  return tp_collective(q, Collective::reduce_scatter, bytes) +
         tp_collective(q, Collective::all_gather, bytes);
}

double exposed_ring(int ranks, double block, double keys, double gradients) {
  double now = 0, exposed = 0;
  double link = 0;  // when the messages sent so far have arrived
  const auto wait_until = [&](double then) {
    exposed += std::max(0.0, then - now);
    now = std::max(now, then);
  };
  double gradients_arrive = 0;  // those of the step before
  for (int step = 0; step < ranks; ++step) {
    double keys_arrive = 0;
    if (step + 1 < ranks) link = keys_arrive = std::max(now, link) + keys;
    now += block;
    wait_until(gradients_arrive);
    if (step > 0 && gradients > 0) link = gradients_arrive = std::max(now, link) + gradients;
    wait_until(keys_arrive);
  }
  wait_until(gradients_arrive);
  return exposed;
}

double program_flops(const Program& program) {
  const auto flops = [](const Kernels& kernels) {
    double sum = 0;
    for (const Product& p : kernels.products) sum += 2 * p.m * p.n * p.k * p.batch * p.times;
    return sum;
  };
  double sum = 0;
  for (const Operation& op : program.operations) {
    if (op.kind == OpKind::attention) {
      sum += (op.gradient_goes_on ? 3 : 1) * op.square_flops;
      continue;
    }
    sum += flops(op.forward) + (op.gradient_goes_on ? flops(op.backward_input) : 0) +
           (op.trained ? flops(op.backward_weight) : 0);
  }
  return sum;
}

double adapters_on_rank(const Program& program) {
  double elements = 0;
  for (const Operation& op : program.operations) {
    for (const Param& param : op.params) {
      if (op.adapter >= 0) elements += param.share_on_rank(program.axes.size(Axis::tp));
    }
  }
  return elements;
}

double product_time(const Hardware& hardware, int element, double m, double n, double k,
                    double batch) {
  const double units = hardware.units;
  const double rate = hardware.product_peak(element) * hardware.product_efficiency / units;
  double best = std::numeric_limits<double>::infinity();
  for (const Tile& tile : kTiles) {
    const double tiles = std::ceil(m / tile.rows) * std::ceil(n / tile.columns) * batch;
    const double waves = std::ceil(tiles / units);
    best = std::min(best,
                    waves * 2 * tile.rows * tile.columns * (k + kFill) / (rate * tile.efficiency));
  }
  return std::max(best, pass_time(hardware, element * batch * (m * k + k * n + m * n)));
}

double pass_time(const Hardware& hardware, double bytes) {
  return bytes / (hardware.memory_bandwidth * hardware.memory_efficiency);
}

double fused_attention_time(const Hardware& hardware, int element, double flops) {
  // Kernels for fp32 keep their precision at any setting of that of products.
  const double peak = element >= 4 ? hardware.peak_fp32 : hardware.peak_16bit;
  return flops / (peak * hardware.attention_efficiency);
}

double elapsed(const SoftwareFigures& figures, const Work& work) {
  const double device = work.device + work.launches * figures.kernel_start;
  const double host = work.launches * figures.launch;
  const double longer = std::max(host, device);
  if (longer <= 0) return 0;
  const double shorter = std::min(host, device) / longer;
  if (shorter <= 0) return longer;
  return longer * portable::pow(1 + portable::pow(shorter, kOverlap), 1 / kOverlap);
}

}  // namespace tessera::planner
