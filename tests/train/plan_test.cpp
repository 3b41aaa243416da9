// What the planner believes of a model, beside the model.

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "tessera/memory/allocator.h"
#include "tessera/models/gpt.h"
#include "tessera/planner/run.h"

namespace tessera::train {
namespace {

struct Case {
  ModelShape shape;
  std::int64_t batch, seq;
};

// The ledger after a forward, for shapes in which every term of the formula matters.
TEST(Plan, ActivationsAreWhatTheLedgerCounts) {
  memory::install();
  for (const Case& c :
       {Case{gpt_shape(2, 64, 4, 50, 64), 3, 64}, Case{gpt_shape(1, 32, 8, 500, 40), 2, 33},
        Case{gpt_shape(3, 96, 2, 16, 128), 1, 128}}) {
    for (const planner::Recompute mode :
         {planner::Recompute::none, planner::Recompute::selective, planner::Recompute::full}) {
      for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
        models::Gpt model(c.shape, 0);
        model->to(type);
        if (mode != planner::Recompute::none) {
          nn::set_recompute(*model, nn::parse_recompute(name(mode)));
        }
        const at::Tensor ids = at::randint(c.shape.vocab, {c.batch, c.seq}, at::kLong);
        const auto ledger = std::make_shared<memory::Ledger>();
        const memory::OwnerScope owner(ledger);
        const memory::CategoryScope category(MemoryCategory::activations);
        const at::Tensor loss = model->loss(ids, ids);
        const auto kept = static_cast<double>(ledger->counts()[MemoryCategory::activations].now);
        const auto planned = static_cast<double>(planner::gpt_activation_bytes(
            {c.shape, c.batch, c.seq, type == at::kFloat ? 4 : 2, mode}));
        EXPECT_NEAR(kept / planned, 1, 0.03) << name(mode) << " " << type << " width "
                                             << c.shape.hidden << ": " << kept << " of " << planned;
      }
    }
  }
}

}  // namespace
}  // namespace tessera::train
