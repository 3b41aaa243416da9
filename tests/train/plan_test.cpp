// Predictions of the planner compared with the model.

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "tessera/comm/dry/backend.h"
#include "tessera/memory/allocator.h"
#include "tessera/models/language_model.h"
#include "tessera/planner/program_cost.h"
#include "tessera/planner/run.h"
#include "tessera/planner/step_buckets.h"
#include "tessera/zero/engine_of_part.h"
#include "tessera/zero/plan.h"

namespace tessera::train {
namespace {

struct Case {
  ModelShape shape;
  std::int64_t batch, seq;
};

// Compares the ledger after a forward, for shapes in which every term of the formula matters.
TEST(Plan, ActivationsEqualTheLedger) {
  memory::install();
  for (const Case& c :
       {Case{gpt_shape(2, 64, 4, 50, 64), 3, 64}, Case{gpt_shape(1, 32, 8, 500, 40), 2, 33},
        Case{gpt_shape(3, 96, 2, 16, 128), 1, 128}}) {
    for (const planner::Recompute mode :
         {planner::Recompute::none, planner::Recompute::selective, planner::Recompute::full}) {
      for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
        const auto model = models::make_model(c.shape);
        model->to(type);
        if (mode != planner::Recompute::none) {
          nn::set_recompute(*model, mode);
        }
        const at::Tensor ids = at::randint(c.shape.vocab, {c.batch, c.seq}, at::kLong);
        const auto ledger = std::make_shared<memory::Ledger>();
        const memory::OwnerScope owner(ledger);
        const memory::CategoryScope category(MemoryCategory::activations);
        const at::Tensor loss = model->loss(ids, ids);
        const auto kept = static_cast<double>(ledger->counts()[MemoryCategory::activations].now);
        const auto planned = static_cast<double>(
            planner::held_bytes({c.shape, c.batch, c.seq, type == at::kFloat ? 4 : 2, mode}));
        EXPECT_NEAR(kept / planned, 1, 0.03) << name(mode) << " " << type << " width "
                                             << c.shape.hidden << ": " << kept << " of " << planned;
      }
    }
  }
}

// Compares the buckets of a described step with those that the engine plans.
void expect_same_buckets(torch::nn::Module& model, const ModelShape& shape) {
  for (const char* layout : {"fp32", "bf16", "bf16-fp32grad"}) {
    for (const int ranks : {2, 3, 8}) {
      for (const std::int64_t bucket : {0, 1, 5000, 60000, 1 << 30}) {
        zero::EngineOptions options;
        options.layout = parse_state_layout(layout);
        options.bucket_bytes = bucket;
        const zero::Plan plan = zero::make_plan(
            model, options,
            zero::DataGroups(comm::Group(comm::dry::make_backend(0, ranks, "dry"))));
        planner::RunConfig q = planner::RunConfig::for_plan();
        q.model = shape;
        q.layout = options.layout;
        q.software = planner::Software::tessera;
        q.bucket_bytes = static_cast<double>(bucket);
        q.axes.set_dp(ranks);
        const planner::GradSizes grads(q, planner::all_programs(planner::program_input(q)));
        const planner::StageLayers all{shape.layers, true, true};
        const planner::StepBuckets buckets = grads.fill(all, grads.limit({all}), {});
        ASSERT_EQ(buckets.size_of.size(), plan.buckets.size())
            << layout << " " << ranks << " ranks, buckets of " << bucket;
        for (std::size_t i = 0; i < plan.buckets.size(); ++i) {
          EXPECT_EQ(buckets.sizes[buckets.size_of[i]].bytes,
                    static_cast<double>(plan.buckets[i].bytes))
              << layout << " " << ranks << " ranks, bucket " << i << " of " << bucket;
        }
      }
    }
  }
}

TEST(Plan, BucketsEqualThoseOfTheEngine) {
  for (const ModelShape& shape : {gpt_shape(3, 64, 4, 50, 64), gpt_shape(2, 96, 2, 500, 40),
                                  find_model_shape("llama-tiny")}) {
    expect_same_buckets(*models::make_model(shape), shape);
  }
}

}  // namespace
}  // namespace tessera::train
