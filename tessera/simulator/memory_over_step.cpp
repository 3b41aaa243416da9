#include "tessera/simulator/memory_over_step.h"

#include <algorithm>
#include <string_view>

#include "tessera/core/errors.h"

namespace tessera::simulator {

int change_of_pass(std::string_view what) {
  if (what == "forward") return 1;
  return what == "backward" || what == "backward_weight" ? -1 : 0;
}

MemoryOverStep memory_over_passes(const planner::Memory& whole, double reserve,
                                  const std::vector<MemoryPass>& passes, double step) {
  MemoryOverStep over;
  over.whole = whole;
  over.step = step;
  int held = 0, most = 1;
  for (const MemoryPass& pass : passes) most = std::max(most, held += pass.change);
  const double each = whole.activations / most;
  const double at_peak = whole.temporary - whole.not_at_once;
  const double base = std::min(reserve, at_peak);
  const auto add = [&](double seconds, double activations, double temporary) {
    // Passes of a repeated step may overlap by rounding.
    const double last = over.moments.empty() ? 0 : over.moments.back().seconds;
    over.moments.push_back({std::max(last, seconds), activations, temporary});
  };
  add(0, 0, base);
  held = 0;
  for (const MemoryPass& pass : passes) {
    const double before = held * each;
    held += pass.change;
    const double after = held * each;
    add(pass.begin, before, base);
    if (pass.change <= 0) {
      add(pass.begin, before, at_peak);
      const double freed = before - after;
      const double grown = std::min(whole.not_at_once, freed);
      if (grown > 0) {
        const double seconds = pass.begin + (pass.end - pass.begin) * grown / freed;
        add(seconds, before - grown, at_peak + grown);
      }
      add(pass.end, after, at_peak + grown);
    }
    add(pass.end, after, base);
  }
  add(step, held * each, base);
  return over;
}

MemoryOverStep memory_over_step(const planner::RunConfig& resolved, int rank) {
  if (resolved.state_only()) {
    throw UsageError(Flag("params"), "has no activations and no step; needs a model with a shape");
  }
  Options options;
  options.traced = rank + 1;  // of the first replica
  const Result result = simulate(resolved, options);

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
      passes.push_back({change_of_pass(part.what), part.begin, part.end});
    }
    last = &part;
  }
  MemoryOverStep over =
      memory_over_passes(planner::memory_by_rank(resolved)[static_cast<std::size_t>(rank)],
                         resolved.hardware.reserve, passes, result.step);
  over.rank = rank;
  return over;
}

}  // namespace tessera::simulator
