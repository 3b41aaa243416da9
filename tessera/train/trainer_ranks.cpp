// Exchange of step times between the ranks.

#include <ATen/ATen.h>

#include <algorithm>

#include "tessera/train/rank_phases.h"
#include "tessera/train/trainer_impl.h"

namespace tessera::train {
namespace {

constexpr double kBetweenLines = 1;  // seconds between lines with the times of all ranks

// Returns the values of all ranks, a row for each.
at::Tensor gather(const comm::Group& world, const std::vector<double>& own, const char* label) {
  const at::Tensor mine = at::tensor(own, at::kDouble);
  const at::Tensor all = at::empty({world.size(), mine.numel()}, at::kDouble);
  comm::Call call;
  call.traffic = comm::Traffic::control;
  call.label = label;
  world.all_gather(all.view(-1), mine, call).wait();
  return all;
}

std::vector<RankPhases> rows(const at::Tensor& all, std::int64_t first) {
  std::vector<RankPhases> out(static_cast<std::size_t>(all.size(0)));
  for (std::size_t r = 0; r < out.size(); ++r) {
    const double* const row =
        all.const_data_ptr<double>() + static_cast<std::int64_t>(r) * all.size(1) + first;
    std::copy(row, row + out[r].size(), out[r].begin());
  }
  return out;
}

}  // namespace

int Trainer::agree(int request) {
  Impl& impl = *impl_;
  const memory::OwnerScope owner(impl.ledger);
  // With --comm off there is no communication, and simulated ranks have no times.
  if (impl.config.comm != Comm::on || impl.world.size() == 1 || impl.world.simulated())
    return request;
  std::vector<double> own = {static_cast<double>(request)};
  const StepMetrics last = impl.history.empty() ? StepMetrics() : impl.history.back();
  const RankPhases phases = phases_of(last);
  own.insert(own.end(), phases.begin(), phases.end());
  const at::Tensor all = gather(impl.world, own, "stop, and times of the ranks");
  // On a GPU the last step may be unfinished, and the one before it was added already.
  if (impl.world.rank() == 0 && last.step != impl.recent_step) {
    impl.recent.add(rows(all, 1));
    impl.recent_step = last.step;
  }
  return static_cast<int>(all.select(1, 0).max().item<double>());
}

void Trainer::put_ranks(StepMetrics& step) {
  Impl& impl = *impl_;
  const HostTime now = host_now();
  if (impl.recent.steps() == 0 || step.step != impl.recent_step) return;
  if (impl.ranks_put && seconds_between(*impl.ranks_put, now) < kBetweenLines) return;
  impl.ranks_put = now;
  step.ranks = impl.recent.means();
  if (impl.recent.steps() < kStepsToCompare) return;
  step.slow_ranks = find_slow_ranks(step.ranks, impl.resolved.axes);
}

// Compares the steps of all ranks: finds slow ranks, and the bubble of a pipeline.
void Trainer::Impl::compare_ranks(Summary& out) const {
  if (world.simulated() && world.size() > 1) return;  // simulated ranks have no times
  // The first step has one-time costs.
  const std::size_t first = history.size() > 1 ? 1 : 0;
  std::vector<double> own(kPhaseNames.size() + 1, 0);
  for (std::size_t i = first; i < history.size(); ++i) {
    const RankPhases phases = phases_of(history[i]);
    for (std::size_t p = 0; p < phases.size(); ++p) own[p] += phases[p];
    own.back() += history[i].passes_s;
  }
  const auto steps = static_cast<double>(std::max<std::size_t>(1, history.size() - first));
  for (double& each : own) each /= steps;
  const at::Tensor all = gather(world, own, "times of the ranks");
  if (world.size() > 1 && !history.empty()) out.ranks = rows(all, 0);
  if (history.size() > kStepsToCompare) out.slow_ranks = find_slow_ranks(out.ranks, resolved.axes);
  if (!config.pipelined()) return;
  const auto column = [&](std::int64_t which) { return all.select(1, which).sum().item<double>(); };
  const double passes = column(all.size(1) - 1);
  out.bubble = passes > 0 ? column(static_cast<std::int64_t>(phase_index("bubble_s"))) / passes : 0;
  out.predicted_bubble = schedule::time(schedule_of(config, resolved), {}).bubble;
}

}  // namespace tessera::train
