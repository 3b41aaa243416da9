#include "tessera/zero/step_sums.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::zero {
namespace {

// Gathers a small host tensor of every rank of a group, as control traffic.
at::Tensor gather_rows(const comm::Group& group, const at::Tensor& mine, const char* label,
                       Stopwatch& waiting) {
  const at::Tensor all = at::empty({mine.numel() * group.size()}, mine.options());
  comm::Call call;
  call.traffic = comm::Traffic::control;
  call.label = label;
  const comm::Work work = group.all_gather(all, mine, call);
  waiting.time([&] { work.wait(); });
  return all;
}

RankStep rank_step_at(const double* numbers) {
  RankStep result;
  std::memcpy(static_cast<void*>(&result), numbers, sizeof(result));
  return result;
}

// Compares bits, so that a NaN equals itself.
bool same_bits(double a, double b) { return std::memcmp(&a, &b, sizeof(a)) == 0; }

// Throws UsageError if ranks that train have different values of a number.
void expect_same(const comm::Group& group, const std::vector<RankStep>& ranks, const char* what,
                 double RankStep::*number) {
  const auto trains = [](const RankStep& rank) { return rank.trains != 0; };
  const auto first = std::find_if(ranks.begin(), ranks.end(), trains);
  for (auto at = first; at != ranks.end(); ++at) {
    if (!trains(*at) || same_bits((*at).*number, (*first).*number)) continue;
    throw UsageError(str("step(): ", what, " is ", (*at).*number, " on rank ", at - ranks.begin(),
                         " of group ", group.name(), " and ", (*first).*number, " on rank ",
                         first - ranks.begin(),
                         ". Parameters would differ between ranks. Pass the same value on every "
                         "rank"));
  }
}

// The same for hashes, whose values are not worth printing.
void expect_same_hash(const comm::Group& group, const std::vector<RankStep>& ranks,
                      double RankStep::*number, const char* problem) {
  for (std::size_t r = 1; r < ranks.size(); ++r) {
    if (same_bits(ranks[r].*number, ranks[0].*number)) continue;
    throw UsageError(str("step(): ranks 0 and ", r, " of group ", group.name(), " ", problem));
  }
}

}  // namespace

double number_of(std::uint64_t hash) {
  return static_cast<double>(hash & ((std::uint64_t{1} << 52) - 1));
}

void check_parts(const comm::Group& parts, const std::vector<RankStep>& ranks) {
  if (parts.simulated()) return;
  expect_same(parts, ranks, "the learning rate", &RankStep::lr);
  expect_same(parts, ranks, "clip_norm", &RankStep::clip_norm);
  expect_same(parts, ranks, "the weight decay", &RankStep::weight_decay);
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (ranks[r].differs == 0) continue;
    throw UsageError(str("step(): the replicas of rank ", r, " of group ", parts.name(),
                         " have different settings. See the error of that rank"));
  }
}

void check_ranks(const comm::Group& group, const std::vector<RankStep>& ranks) {
  if (group.simulated()) return;
  check_parts(group, ranks);
  expect_same_hash(group, ranks, &RankStep::lr_scales,
                   "scale the learning rates of parameters differently. Pass the same lr_scale on "
                   "every rank");
  expect_same_hash(group, ranks, &RankStep::written,
                   "have written to different parameters, or different values, in place since the "
                   "last step. Write the same values on every rank");
}

bool any_has_work(const std::vector<RankStep>& ranks) {
  return std::any_of(ranks.begin(), ranks.end(),
                     [](const RankStep& rank) { return rank.has_work != 0 || rank.trains == 0; });
}

namespace {

constexpr int kFlags = 48;  // per double, which represents them exactly

// Flags of some parameters, packed after `first` other numbers.
at::Tensor pack(const std::vector<bool>& flags, const std::vector<std::size_t>& params,
                std::size_t first) {
  const std::size_t words = (params.size() + kFlags - 1) / kFlags;
  const at::Tensor packed =
      at::zeros({static_cast<std::int64_t>(first + words)}, at::dtype(at::kDouble));
  auto* const values = packed.data_ptr<double>() + first;
  for (std::size_t i = 0; i < params.size(); ++i) {
    if (flags[params[i]]) values[i / kFlags] += std::ldexp(1.0, static_cast<int>(i % kFlags));
  }
  return packed;
}

// Sets the flags that pack() wrote.
void unpack(const double* packed, const std::vector<std::size_t>& params,
            std::vector<bool>& flags) {
  for (std::size_t i = 0; i < params.size(); ++i) {
    const auto bits = static_cast<std::uint64_t>(packed[i / kFlags]);
    if ((bits >> (i % kFlags)) & 1) flags[params[i]] = true;
  }
}

// Collective over the ranks with the same experts.
void sum_of_experts(const comm::Group& group, const std::vector<std::size_t>& params,
                    const StepSums& mine, std::vector<bool>& used, Stopwatch& waiting) {
  const at::Tensor own = pack(mine.used, params, 1);
  own.data_ptr<double>()[0] = mine.own.of_experts;
  const at::Tensor all = gather_rows(group, own, "used experts", waiting);
  for (int r = 0; r < group.size(); ++r) {
    const double* const theirs = all.data_ptr<double>() + r * own.numel();
    unpack(theirs + 1, params, used);
    if (group.simulated() || same_bits(theirs[0], mine.own.of_experts)) continue;
    throw UsageError(str("step(): ranks ", group.rank(), " and ", r, " of group ", group.name(),
                         " scale the learning rates of experts differently, or have written "
                         "different values to them in place. Do the same on every rank"));
  }
}

}  // namespace

StepSums sum_over_ranks(const Plan& plan, const DataGroups& groups, const StepSums& mine,
                        Stopwatch& waiting) {
  const comm::Group& group = groups.all;
  constexpr std::size_t kFirst = 2 + kRankStepNumbers;
  std::vector<std::size_t> params, experts;
  for (std::size_t i = 0; i < mine.used.size(); ++i) {
    (plan.of_expert(i) ? experts : params).push_back(i);
  }
  const at::Tensor own = pack(mine.used, params, kFirst);
  auto* values = own.data_ptr<double>();
  values[0] = mine.squares;
  values[1] = mine.loss;
  std::memcpy(values + 2, &mine.own, sizeof(mine.own));
  const at::Tensor all = gather_rows(group, own, "norm, loss and used parameters", waiting);
  StepSums sums;
  sums.own = mine.own;
  sums.used.resize(mine.used.size());
  for (int r = 0; r < group.size(); ++r) {
    const double* theirs = all.data_ptr<double>() + r * own.numel();
    sums.loss += theirs[1];
    sums.ranks.push_back(rank_step_at(theirs + 2));
    unpack(theirs + kFirst, params, sums.used);
  }
  // In the order of the counted elements, as without replicas: [Note: counted elements].
  for (int shard = 0; shard < groups.shard.size(); ++shard) {
    for (int replica = 0; replica < groups.replicate.size(); ++replica) {
      const int rank = replica * groups.shard.size() + shard;
      sums.squares += all.data_ptr<double>()[rank * own.numel()];
    }
  }
  if (plan.expert_groups) {
    sum_of_experts(plan.expert_groups->all, experts, mine, sums.used, waiting);
  }
  return sums;
}

StepSums sum_and_compare(const Plan& plan, const DataGroups& groups, const ModelAxes& axes,
                         const StepSums& mine, Stopwatch& waiting) {
  const comm::Group& group = groups.all;
  StepSums sums = sum_over_ranks(plan, groups, mine, waiting);
  std::string problem;
  try {
    check_ranks(group, sums.ranks);
  } catch (const UsageError& error) {
    problem = error.what();
  }
  sums.own.differs = problem.empty() ? 0 : 1;
  sum_over_model(axes, sums, waiting);
  if (!problem.empty()) throw UsageError(problem);
  check_parts(axes.group, sums.parts);
  return sums;
}

void sum_over_model(const ModelAxes& axes, StepSums& sums, Stopwatch& waiting) {
  if (!axes.counts_loss) sums.loss = 0;
  if (axes.group.size() == 1) return;
  constexpr std::int64_t kNumbers = 2 + kRankStepNumbers;
  const at::Tensor mine = at::empty({kNumbers}, at::dtype(at::kDouble));
  mine.data_ptr<double>()[0] = sums.squares;
  mine.data_ptr<double>()[1] = sums.loss;
  std::memcpy(mine.data_ptr<double>() + 2, &sums.own, sizeof(sums.own));
  const at::Tensor all =
      gather_rows(axes.group, mine, "norm and loss of the parts of the model", waiting);
  sums.squares = sums.loss = 0;
  for (int r = 0; r < axes.group.size(); ++r) {
    const double* theirs = all.data_ptr<double>() + kNumbers * r;
    sums.squares += theirs[0];
    sums.loss += theirs[1];
    sums.parts.push_back(rank_step_at(theirs + 2));
  }
}

}  // namespace tessera::zero
