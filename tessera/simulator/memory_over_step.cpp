#include "tessera/simulator/memory_over_step.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "tessera/core/errors.h"

namespace tessera::simulator {

MemoryOverStep memory_over_step(const planner::RunConfig& settled, int rank) {
  if (settled.state_only()) {
    throw UsageError(Flag("params"), "has no activations and no step; needs a model with a shape");
  }
  Scenario scenario;
  static_cast<planner::Step&>(scenario) = planner::describe_step(settled);
  Options options;
  options.traced = settled.pp();  // the first replica
  const Result result = simulate(scenario, options);

  MemoryOverStep over;
  over.rank = rank;
  over.step = result.step;
  over.whole = planner::memory_by_rank(settled)[static_cast<std::size_t>(rank)];
  std::vector<Span> passes;
  for (const Span& span : result.spans) {
    const bool own = span.worker / result.replicas == rank && span.worker % result.replicas == 0;
    if (own && span.lane == Span::computing && span.micro >= 0) passes.push_back(span);
  }
  std::sort(passes.begin(), passes.end(),
            [](const Span& a, const Span& b) { return a.begin < b.begin; });
  // A pass that waits for parameters has several spans: one for each part that they allow.
  std::vector<Span> merged;
  for (const Span& part : passes) {
    const bool continues = !merged.empty() && std::string_view(merged.back().what) == part.what &&
                           merged.back().micro == part.micro && merged.back().chunk == part.chunk;
    if (continues) {
      merged.back().end = part.end;
    } else {
      merged.push_back(part);
    }
  }
  passes = std::move(merged);
  const auto change = [](const Span& pass) {
    const std::string_view what = pass.what;
    if (what == "forward") return 1;
    return what == "backward" || what == "backward_weight" ? -1 : 0;
  };
  int held = 0, most = 1;
  for (const Span& pass : passes) most = std::max(most, held += change(pass));
  const double each = over.whole.activations / most;
  const double at_peak = over.whole.temporary - over.whole.not_at_once;
  const double base = std::min(settled.hardware.reserve, at_peak);
  const auto add = [&](double seconds, double activations, double temporary) {
    // Passes of a repeated step may overlap by rounding.
    const double last = over.moments.empty() ? 0 : over.moments.back().seconds;
    over.moments.push_back({std::max(last, seconds), activations, temporary});
  };
  add(0, 0, base);
  held = 0;
  for (const Span& pass : passes) {
    const double before = held * each;
    held += change(pass);
    const double after = held * each;
    add(pass.begin, before, base);
    if (change(pass) <= 0) {
      add(pass.begin, before, at_peak);
      const double freed = before - after;
      const double grown = std::min(over.whole.not_at_once, freed);
      if (grown > 0) {
        const double seconds = pass.begin + (pass.end - pass.begin) * grown / freed;
        add(seconds, before - grown, at_peak + grown);
      }
      add(pass.end, after, at_peak + grown);
    }
    add(pass.end, after, base);
  }
  add(over.step, held * each, base);
  return over;
}

}  // namespace tessera::simulator
