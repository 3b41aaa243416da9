#include "tessera/simulator/memory_over_step.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "tessera/core/errors.h"
#include "tessera/planner/layer_program.h"
#include "tessera/planner/plan_parts.h"

namespace tessera::simulator {
namespace {

using Moment = MemoryOverStep::Moment;
using schedule::Kind;

// Divides time into equal intervals if there are too many moments: see kMostMoments.
std::vector<Moment> thinned(const std::vector<Moment>& all, double step) {
  constexpr std::size_t kIntervals = kMostMoments / 4;
  if (all.size() <= kMostMoments) return all;
  std::vector<Moment> kept;
  const auto interval = [&](const Moment& moment) {
    return static_cast<std::size_t>(moment.seconds / step * static_cast<double>(kIntervals));
  };
  for (std::size_t begin = 0, end = 0; begin < all.size(); begin = end) {
    while (end < all.size() && interval(all[end]) == interval(all[begin])) ++end;
    std::size_t highest = begin, fullest = begin;
    for (std::size_t i = begin; i < end; ++i) {
      const auto total = [&](std::size_t at) { return all[at].activations + all[at].temporary; };
      if (total(i) > total(highest)) highest = i;
      if (all[i].activations > all[fullest].activations) fullest = i;
    }
    std::array<std::size_t, 4> chosen = {begin, highest, fullest, end - 1};
    std::sort(chosen.begin(), chosen.end());
    const auto* const last = std::unique(chosen.begin(), chosen.end());
    for (const auto* i = chosen.begin(); i != last; ++i) kept.push_back(all[*i]);
  }
  return kept;
}

// Returns the kind of a span of computation.
Kind kind_of(std::string_view what) {
  for (const Kind kind : {Kind::backward, Kind::backward_input, Kind::backward_weight}) {
    if (what == schedule::name(kind)) return kind;
  }
  return Kind::forward;
}

}  // namespace

MemoryOverStep memory_over_passes(const planner::Memory& whole, const planner::PassMemory& each,
                                  double reserve, const std::vector<MemoryPass>& passes,
                                  double step) {
  MemoryOverStep over;
  over.whole = whole;
  over.step = step;
  const double base = reserve + each.always;
  double held = 0;      // activations kept by passes
  double weights = 0;   // temporaries kept for weight gradients
  double arriving = 0;  // input of the next micro-batch
  std::size_t forwards = 0;
  for (const MemoryPass& pass : passes) forwards += pass.kind == Kind::forward ? 1 : 0;
  const auto add = [&](double seconds, double activations, double temporary) {
    // Passes of a repeated step may overlap by rounding.
    const double last = over.moments.empty() ? 0 : over.moments.back().seconds;
    over.moments.push_back({std::max(last, seconds), activations + arriving, temporary});
  };
  add(0, 0, base);
  for (const MemoryPass& pass : passes) {
    const planner::ChunkPasses& chunk = each.chunks.at(static_cast<std::size_t>(pass.chunk));
    const double kept = chunk.kept();
    const auto at = [&](double done) { return pass.begin + (pass.end - pass.begin) * done; };
    if (pass.kind == Kind::forward) arriving = --forwards > 0 ? each.arriving : 0;
    add(pass.begin, held, base + weights);
    switch (pass.kind) {
      case Kind::forward:
        for (const planner::PassPoint& point : chunk.forward) {
          add(at(point.done), held + point.activations, base + weights);
        }
        held += kept;
        add(pass.end, held + each.sent, base + weights);
        break;
      case Kind::backward:
        held -= kept;
        for (const planner::PassPoint& point : chunk.backward) {
          add(at(point.done), held + point.activations, reserve + weights + point.temporary);
        }
        break;
      case Kind::backward_input:
        held -= kept;
        for (const planner::PassPoint& point : chunk.backward) {
          const double freed = std::max(0.0, kept - point.activations);
          const double most = std::min(point.temporary, chunk.most + each.sent);
          add(at(point.done), held + point.activations, reserve + weights + freed + most);
        }
        weights += kept;
        break;
      default: weights -= kept;
    }
    add(pass.end, held, base + weights);
  }
  if (each.update > each.always) {
    const double last = over.moments.back().seconds;
    add(last, held, reserve + each.update);
    add(step, held, reserve + each.update);
  }
  add(step, held, base);
  over.moments = thinned(over.moments, step);
  return over;
}

MemoryOverStep memory_over_step(const planner::RunConfig& resolved, int rank) {
  if (resolved.state_only()) {
    throw UsageError(Flag("params"), "has no activations and no step; needs a model with a shape");
  }
  planner::RunConfig run = resolved;
  if (!run.pipelined() && run.software == planner::Software::tessera) {
    // Without a pipeline, Tessera finishes each micro-batch before the next.
    run.schedule = ScheduleChoice::one_f_one_b;
    run.chunks = 1;
  }
  Options options;
  options.traced = rank + 1;  // of the first replica
  const Result result = simulate(run, options);

  std::vector<Span> spans;
  for (const Span& span : result.spans) {
    const bool own = span.worker / result.replicas == rank && span.worker % result.replicas == 0;
    if (own && span.lane == Span::computing && span.micro >= 0) spans.push_back(span);
  }
  std::sort(spans.begin(), spans.end(),
            [](const Span& a, const Span& b) { return a.begin < b.begin; });
  std::vector<MemoryPass> passes;
  const Span* last = nullptr;
  for (const Span& part : spans) {
    // A pass that waits for parameters has several spans: one for each part that they allow.
    const bool continues = last != nullptr && std::string_view(last->what) == part.what &&
                           last->micro == part.micro && last->chunk == part.chunk;
    if (continues) {
      passes.back().end = part.end;
    } else {
      passes.push_back({kind_of(part.what), part.chunk, part.begin, part.end});
    }
    last = &part;
  }
  const planner::Programs programs = planner::programs_in_memory(run);
  MemoryOverStep over =
      memory_over_passes(planner::memory_by_rank(run, programs)[static_cast<std::size_t>(rank)],
                         planner::pass_memory(run, {{Axis::pp, rank}}, programs),
                         run.hardware.reserve, passes, result.step);
  over.rank = rank;
  return over;
}

}  // namespace tessera::simulator
