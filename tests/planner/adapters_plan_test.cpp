// Adapters in a plan: only adapters have gradients and optimizer state; the rest is frozen.

#include <gtest/gtest.h>

#include "tessera/core/errors.h"
#include "tessera/planner/fields.h"
#include "tessera/planner/parameters.h"
#include "tessera/planner/plan.h"
#include "tests/text.h"

namespace tessera::planner {
namespace {

Plan planned(std::vector<std::pair<std::string, std::string>> flags) {
  RunConfig settings = RunConfig::for_plan();
  settings.set("layout", "bf16");
  settings.set("seq", "64");
  settings.set("micro-batch", "1");
  settings.set("software", "tessera");
  for (const auto& [name, value] : flags) settings.set(name, value);
  return make_plan(look_up(settings, Catalog()));
}

TEST(AdaptersInPlans, CountStateOfAdaptersOnly) {
  for (const char* model : {"gpt2-124m", "llama3.2-1b"}) {
    for (const char* zero : {"0", "1"}) {
      const Plan whole = planned({{"model", model}, {"dp", "2"}, {"zero", zero}});
      double before = 0;
      for (const char* rank : {"4", "8", "64"}) {
        const Plan plan = planned({{"model", model},
                                   {"dp", "2"},
                                   {"zero", zero},
                                   {"lora-rank", rank},
                                   {"lora-targets", "all"}});
        const ModelShape& shape = plan.question.model;
        EXPECT_EQ(shape.lora.rank, std::stoi(rank));
        double adapters = 0;
        for (const ParamSpec& spec : adapter_params(shape, {0, shape.layers, true, true})) {
          adapters += static_cast<double>(spec.shape[0] * spec.shape[1]);
        }
        // Two bytes per parameter, frozen or not. Gradients and optimizer state only of adapters,
        // apart from padding.
        EXPECT_NEAR(plan.memory.params, whole.memory.params + 2 * adapters, 1e5) << model;
        EXPECT_NEAR(plan.memory.grads / whole.memory.grads,
                    adapters / static_cast<double>(shape.params()), 0.02)
            << model;
        EXPECT_LT(plan.memory.optimizer, whole.memory.optimizer / 4) << model;
        EXPECT_GT(plan.memory.optimizer, before) << model;
        before = plan.memory.optimizer;
      }
    }
  }
}

TEST(AdaptersInPlans, RefuseUnsupportedSettings) {
  const auto refused = [](std::vector<std::pair<std::string, std::string>> flags) {
    return error_of([&] { planned(std::move(flags)); });
  };
  EXPECT_TRUE(
      contains(refused({{"model", "gpt2-124m"}, {"lora-rank", "8"}, {"software", "megatron"}}),
               "--software megatron; must be tessera"));
  EXPECT_TRUE(contains(refused({{"params", "1B"}, {"lora-rank", "8"}}), "--params"));
  EXPECT_TRUE(contains(
      refused({{"model", "gpt2-124m"}, {"lora-rank", "8"}, {"lora-targets", "gate"}}), "gate"));
}

}  // namespace
}  // namespace tessera::planner
