// The planner in your own program, without LibTorch.
//   build/bin/use_the_planner
// Prints the memory of each ZeRO stage for GPT-2 XL on eight A100s, the fastest configuration for
// them, its simulated step, and a plan as JSON.
#include <cstdio>
#include <exception>

#include "tessera/planning.h"

namespace planner = tessera::planner;

int main() try {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // line-buffered, also in pipes
  planner::RunConfig question = planner::RunConfig::for_plan();
  question.model = tessera::find_model_shape("gpt2-xl");
  question.hardware = planner::Catalog().find("a100-80");
  question.axes = tessera::Axes("dp=8");
  question.micro_batch = 8;
  for (question.zero = 0; question.zero <= 3; ++question.zero) {
    const planner::Plan plan = planner::make_plan(question);
    std::printf("stage %d  state %.2f GB  in all %.1f GB  sends %.2f GB  %s\n", question.zero,
                (plan.memory.params + plan.memory.grads + plan.memory.optimizer) / 1e9,
                plan.needed() / 1e9, plan.traffic.total() / 1e9,
                plan.fits ? "fits" : "does not fit");
  }

  planner::SearchRequest all;  // every mesh, stage, micro-batch, schedule and recomputation
  all.base.model = question.model;
  all.base.hardware = question.hardware;
  all.base.gpus = 8;
  all.base.global_batch = 512;
  const planner::SearchResult found = planner::search(all);
  const planner::RunConfig& best = found.best.at(0).question;
  std::printf("best of %ld: dp %d  tp %d  pp %d  stage %d  micro-batch %ld\n", long(found.tried),
              best.dp(), best.tp(), best.pp(), best.zero, long(best.micro_batch));
  // The same step, event by event.
  std::printf("predicted step %.3f s, simulated %.3f s\n", found.best.at(0).time.step(),
              tessera::simulator::simulate(best).step);

  // Same output as `tessera plan --model gpt2-xl --dp 8 --zero 1 --json`. For a Plan, use
  // to_json(plan).
  const char* const settings = R"({"model": "gpt2-xl", "dp": 8, "zero": 1})";
  std::printf("%s\n", planner::plan_json(settings).c_str());
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
