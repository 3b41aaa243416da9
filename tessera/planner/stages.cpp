#include "tessera/planner/stages.h"

#include <algorithm>
#include <cmath>

#include "tessera/core/svg.h"
#include "tessera/core/text.h"
#include "tessera/planner/grad_travel.h"
#include "tessera/planner/json.h"
#include "tessera/planner/rank_load.h"
#include "tessera/planner/remedy.h"
#include "tessera/planner/state.h"

namespace tessera::planner {
namespace {

double state_of(const Memory& memory) { return memory.params + memory.grads + memory.optimizer; }

// Of all ranks of a replica, tp and pp.
double state_of_replica(const Plan& plan) {
  double bytes = 0;
  for (const Memory& rank : plan.by_rank) bytes += state_of(rank);
  return bytes * plan.question.tp();
}

void split_traffic(StageAnswer& answer) {
  const Question& q = answer.plan.question;
  if (q.dp() == 1) return;
  TrafficQuestion ask;
  ask.stage = q.zero;
  ask.dp = q.dp();
  ask.micro_batches = static_cast<int>(q.micros());
  double gathered = 0;
  for (const auto& chunks : stage_shares(q)) {
    gathered = std::max(gathered, gathered_on_rank(q, chunks));
  }
  ask.param_bytes = gathered * q.layout.param;
  ask.grad_bytes = most_grad_bytes(q);
  ask.policy = q.policy();
  ask.keep_params = q.keep_params;
  ask.replicas = q.replicas();
  const DataParallelTraffic sent = data_parallel_traffic(ask);
  answer.backward = sent.reduce + sent.replicate;
  if (!answer.sharded.params) {
    answer.optimizer = sent.gather;
    return;
  }
  answer.forward = q.keep_params ? sent.gather : sent.gather / 2;
  answer.backward += sent.gather - answer.forward;
}

}  // namespace

std::vector<StageAnswer> compare_stages(const Question& q) {
  static constexpr const char* kNames[] = {"DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3"};
  std::vector<StageAnswer> all;
  for (int stage = 0; stage <= 3; ++stage) {
    StageAnswer& answer = all.emplace_back();
    answer.stage = stage;
    answer.name = kNames[stage];
    const Question other = q.at_stage(stage);
    answer.sharded = sharding_of_stage(stage);
    answer.sharded.grads = answer.sharded.grads && other.policy() == ReducePolicy::each;
    answer.plan = plan_numbers(other);
    split_traffic(answer);
    answer.held = state_of_replica(answer.plan) * q.dp();
  }
  // Padding is no second copy: what one replica has at stage 0 counts as one.
  for (StageAnswer& answer : all) answer.one_copy = state_of_replica(all.front().plan);
  return all;
}

OwnedPart owned_part(std::int64_t params, int dp, int rank) {
  const std::int64_t each = params / dp, more = params % dp;
  const auto begin = [&](std::int64_t r) { return r * each + std::min(r, more); };
  return {begin(rank), begin(rank + 1)};
}

std::string to_json(const std::vector<StageAnswer>& stages) {
  const Question& q = stages.back().plan.question;  // stage 0 has no replicas
  const auto whole = [](double value) { return std::llround(std::clamp(value, -9e18, 9e18)); };
  const std::int64_t params = whole(stages.front().plan.on_a_rank);
  JsonText out;
  out.object()
      .member("parameters", whole(stages.front().plan.parameters))
      .member("parameters_on_a_rank", params)
      .member("layout", q.layout.name)
      .member("dp", q.dp())
      .member("dp_replicate", q.replicas())
      .member("tp", q.tp())
      .member("pp", q.pp())
      .member("one_copy", whole(stages.front().one_copy));
  out.list("stages");
  for (const StageAnswer& s : stages) {
    out.object().member("stage", s.stage).member("name", s.name);
    out.object("sharded")
        .member("params", s.sharded.params)
        .member("grads", s.sharded.grads)
        .member("optimizer", s.sharded.optimizer)
        .end_object();
    out.object("sent")
        .member("forward", whole(s.forward))
        .member("backward", whole(s.backward))
        .member("optimizer_step", whole(s.optimizer))
        .member("total", whole(s.sent()))
        .end_object();
    out.member("state_in_all", whole(s.held))
        .member("copies", s.copies())
        .member("needed", whole(s.plan.needed()))
        .member("margin", whole(s.plan.margin));
    // Of a model known by its size alone: what one of about that size would need besides.
    if (s.plan.assumed) {
      const Memory& besides = s.plan.assumed->memory;
      out.object("assumed")
          .member("activations", whole(besides.activations))
          .member("buffers", whole(besides.buffers))
          .member("temporary", whole(besides.temporary))
          .member("total", whole(besides.total()))
          .end_object();
    }
    put_numbers(out, s.plan);
    out.end_object();
  }
  out.end_list().list("owners");
  for (int r = 0; r < std::min(q.dp(), 64); ++r) {
    const OwnedPart part = owned_part(params, q.shards(), r % q.shards());
    out.object()
        .member("dp_rank", r)
        .member("first", part.first)
        .member("last", part.last)
        .end_object();
  }
  return out.end_list().end_object().take();
}

std::string stages_svg(const std::vector<StageAnswer>& stages) {
  const Question& q = stages.front().plan.question;
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
              " over dp ", q.dp(), ", layout ", q.layout.name));
  constexpr double kBars = 130, kWide = 500, kHigh = 26, kEach = 34;
  svg.text(20, 56, "What a rank keeps");
  double y = 66;
  for (const StageAnswer& s : stages) {
    svg.text(20, y + 18, s.name);
    double x = kBars;
    const Memory& m = s.plan.memory;
    for (const auto& [bytes, colour, what] :
         {std::tuple{m.params, colours::kParams, "parameters"},
          {m.grads, colours::kGrads, "gradients"},
          {m.optimizer, colours::kOptimizer, "optimizer state"},
          {sized ? m.activations : 0.0, colours::kActivations, "activations"}}) {
      const double wide = most > 0 ? kWide * bytes / most : 0;
      svg.box(x, y, wide, kHigh, colour, str(what, " ", size(bytes)));
      x += wide;
    }
    svg.text(x + 8, y + 18,
             str(size(total(s.plan)), ", ", fixed(s.copies(), s.copies() < 10 ? 2 : 0),
                 s.copies() < 1.005 ? " copy in all" : " copies in all"));
    y += kEach;
  }
  y += 16;
  svg.text(20, y, "What a rank sends in a step");
  y += 10;
  for (const StageAnswer& s : stages) {
    svg.text(20, y + 18, s.name);
    double x = kBars;
    for (const auto& [bytes, colour, what] : {std::tuple{s.forward, colours::kForward, "forward"},
                                              {s.backward, colours::kBackward, "backward"},
                                              {s.optimizer, colours::kStep, "optimizer step"}}) {
      const double wide = most_sent > 0 ? kWide * bytes / most_sent : 0;
      svg.box(x, y, wide, kHigh, colour, str(what, " ", size(bytes)));
      x += wide;
    }
    svg.text(x + 8, y + 18, size(s.sent()));
    y += kEach;
  }
  y += 14;
  double x = svg.legend(20, y, colours::kParams, "parameters");
  x = svg.legend(x, y, colours::kGrads, "gradients");
  x = svg.legend(x, y, colours::kOptimizer, "optimizer");
  if (sized) x = svg.legend(x, y, colours::kActivations, "activations");
  x = svg.legend(x, y, colours::kForward, "forward");
  x = svg.legend(x, y, colours::kBackward, "backward");
  svg.legend(x, y, colours::kStep, "step");
  return svg.finish();
}

}  // namespace tessera::planner
