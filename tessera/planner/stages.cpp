#include "tessera/planner/stages.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "tessera/core/svg.h"
#include "tessera/core/text.h"
#include "tessera/planner/advice.h"
#include "tessera/planner/plan_parts.h"
#include "tessera/planner/rank_load.h"
#include "tessera/planner/state.h"

namespace tessera::planner {
namespace {

double state_of(const Memory& memory) { return memory.params + memory.grads + memory.optimizer; }

// Returns the bytes of state on the ranks that hold a copy of the model at stage 0. Those of a
// stage have equal parts.
double state_of_copy(const Plan& plan) {
  double bytes = 0;
  for (const Memory& rank : plan.by_rank) bytes += state_of(rank);
  return bytes * real(plan.question.axes.ranks(AxisSet::all().without(kTokenAxes)) /
                      std::ssize(plan.by_rank));
}

void split_traffic(StageAnswer& answer) {
  const RunConfig& q = answer.plan.question;
  if (!q.averages_gradients()) return;
  const DataParallelTraffic sent = sent_along_dp(q, most_sent_params(q), q.policy());
  answer.backward = sent.reduce + sent.replicate;
  if (!answer.sharded.params) {
    answer.optimizer = sent.gather;
    return;
  }
  answer.forward = q.keep_params ? sent.gather : sent.gather / 2;
  answer.backward += sent.gather - answer.forward;
}

}  // namespace

std::vector<StageAnswer> compare_stages(const RunConfig& q) {
  static constexpr const char* kNames[] = {"DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3"};
  std::vector<StageAnswer> all;
  const PlanParts parts(q);
  for (int stage = 0; stage <= 3; ++stage) {
    StageAnswer& answer = all.emplace_back();
    answer.stage = stage;
    answer.name = kNames[stage];
    const RunConfig other = q.at_stage(stage);
    answer.sharded = sharding_of_stage(stage);
    answer.sharded.grads = answer.sharded.grads && other.policy() == ReducePolicy::each;
    answer.plan = plan_numbers(other, parts);
    split_traffic(answer);
    answer.held = state_of_copy(answer.plan) * q.copies();
  }
  // Padding does not count as a copy: one copy is the state at stage 0, with all experts.
  double one_copy = state_of_copy(all.front().plan);
  if (q.ep() > 1) {
    RunConfig whole = q.at_stage(0);
    whole.axes.set(Axis::ep, 1);
    one_copy = state_of_copy(plan_numbers(whole));
  }
  for (StageAnswer& answer : all) answer.one_copy = one_copy;
  return all;
}

OwnedRange owned_range(std::int64_t params, int dp, int rank) {
  const std::int64_t each = params / dp, more = params % dp;
  const auto begin = [&](std::int64_t r) { return r * each + std::min(r, more); };
  return {begin(rank), begin(rank + 1)};
}

Json tree_of(const std::vector<StageAnswer>& stages) {
  const RunConfig& q = stages.back().plan.question;  // stage 0 has no replicas
  const auto whole = [](double value) { return std::llround(std::clamp(value, -9e18, 9e18)); };
  Json rows = Json::array(), owners = Json::array();
  for (const StageAnswer& s : stages) {
    Json& row = rows.emplace_back();
    row = {{"stage", s.stage},
           {"name", s.name},
           {"sharded",
            {{"params", s.sharded.params},
             {"grads", s.sharded.grads},
             {"optimizer", s.sharded.optimizer}}},
           {"sent",
            {{"forward", whole(s.forward)},
             {"backward", whole(s.backward)},
             {"optimizer_step", whole(s.optimizer)},
             {"total", whole(s.sent())}}}};
    // Along every axis; null where activations are sent if only the size is known.
    const Traffic& traffic = s.plan.traffic;
    Json& by_axis = row["sent_by_axis"];
    for (const Axis axis : kPrintedAxes) {
      const bool of_activations = !kDataAxes.contains(axis) && q.axes.size(axis) > 1;
      const bool known = !of_activations || !q.state_only();
      by_axis[std::string(axis_name(axis))] = known ? Json(whole(traffic.sent[axis])) : Json();
    }
    by_axis["total"] = whole(traffic.total());
    row["state_in_all"] = whole(s.held);
    row["copies"] = s.copies();
    row["needed"] = whole(s.plan.needed());
    row["margin"] = whole(s.plan.margin);
    // If only the size is known: estimate for a model of about that size.
    if (s.plan.assumed) {
      const Memory& estimate = s.plan.assumed->memory;
      row["assumed"] = {{"activations", whole(estimate.activations)},
                        {"buffers", whole(estimate.buffers)},
                        {"temporary", whole(estimate.temporary)},
                        {"total", whole(estimate.total())}};
    }
    row["memory"] = memory_json(s.plan);
    row["fits"] = fits_json(s.plan);
    row["time"] = time_json(s.plan);
  }
  const std::int64_t params = whole(stages.front().plan.on_a_rank);
  const int cp = q.axes.size(Axis::cp);
  for (int r = 0; r < std::min(q.copies(), 64); ++r) {
    const OwnedRange part = owned_range(params, q.shards(), r % q.shards());
    Json& owner = owners.emplace_back(Json{{"dp_rank", r / cp}});
    if (cp > 1) owner["cp_rank"] = r % cp;
    owner["first"] = part.first;
    owner["last"] = part.last;
  }
  Json json = {{"parameters", whole(stages.front().plan.parameters)},
               {"parameters_on_a_rank", params},
               {"layout", q.layout.name}};
  json.update(axes_json<Json>(q.axes));
  json["one_copy"] = whole(stages.front().one_copy);
  json["stages"] = std::move(rows);
  json["owners"] = std::move(owners);
  return json;
}

std::string to_json(const std::vector<StageAnswer>& stages) { return one_line(tree_of(stages)); }

std::string stages_svg(const std::vector<StageAnswer>& stages) {
  const RunConfig& q = stages.front().plan.question;
  const bool sized = !q.state_only();
  const auto total = [&](const Plan& plan) {
    return state_of(plan.memory) + (sized ? plan.memory.activations : 0);
  };
  double most = 0, most_sent = 0;
  for (const StageAnswer& s : stages) {
    most = std::max(most, total(s.plan));
    most_sent = std::max(most_sent, s.sent());
  }
  Svg svg(860, 420,
          str(sized && !q.model.name.empty()
                  ? q.model.name
                  : format_count(std::llround(stages.front().plan.parameters)) + " parameters",
              " over ", q.axes.words(" · ", kShardAxes), ", layout ", q.layout.name));
  constexpr double kBars = 130, kWide = 500, kHigh = 26, kEach = 34;
  svg.text(20, 56, "Memory of a rank");
  double y = 66;
  for (const StageAnswer& s : stages) {
    svg.text(20, y + 18, s.name);
    double x = kBars;
    const Memory& m = s.plan.memory;
    for (const auto& [bytes, color, what] :
         {std::tuple{m.params, colors::kParams, "parameters"},
          {m.grads, colors::kGrads, "gradients"},
          {m.optimizer, colors::kOptimizer, "optimizer state"},
          {sized ? m.activations : 0.0, colors::kActivations, "activations"}}) {
      const double wide = most > 0 ? kWide * bytes / most : 0;
      svg.box(x, y, wide, kHigh, color, str(what, " ", size(bytes)));
      x += wide;
    }
    svg.text(x + 8, y + 18,
             str(size(total(s.plan)), ", ", fixed(s.copies(), s.copies() < 10 ? 2 : 0),
                 s.copies() < 1.005 ? " copy in all" : " copies in all"));
    y += kEach;
  }
  y += 16;
  svg.text(20, y, "Bytes sent by a rank per step");
  y += 10;
  for (const StageAnswer& s : stages) {
    svg.text(20, y + 18, s.name);
    double x = kBars;
    for (const auto& [bytes, color, what] : {std::tuple{s.forward, colors::kForward, "forward"},
                                             {s.backward, colors::kBackward, "backward"},
                                             {s.optimizer, colors::kStep, "optimizer step"}}) {
      const double wide = most_sent > 0 ? kWide * bytes / most_sent : 0;
      svg.box(x, y, wide, kHigh, color, str(what, " ", size(bytes)));
      x += wide;
    }
    svg.text(x + 8, y + 18, size(s.sent()));
    y += kEach;
  }
  y += 14;
  double x = svg.legend(20, y, colors::kParams, "parameters");
  x = svg.legend(x, y, colors::kGrads, "gradients");
  x = svg.legend(x, y, colors::kOptimizer, "optimizer");
  if (sized) x = svg.legend(x, y, colors::kActivations, "activations");
  x = svg.legend(x, y, colors::kForward, "forward");
  x = svg.legend(x, y, colors::kBackward, "backward");
  svg.legend(x, y, colors::kStep, "step");
  return svg.finish();
}

}  // namespace tessera::planner
