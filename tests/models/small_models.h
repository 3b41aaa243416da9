// Small models and helpers for tests of language models.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/core/text.h"
#include "tessera/memory/allocator.h"
#include "tessera/models/language_model.h"
#include "tessera/planner/program_cost.h"
#include "tests/tensor_parallel/ranks.h"

namespace tessera::models::test {

inline ModelShape gpt_of_three() { return gpt_shape(3, 32, 4, 48, 20); }

inline ModelShape small_llama(std::int64_t kv_heads) {
  ModelShape shape;
  shape.name = str("llama of ", kv_heads, " kv-heads");
  shape.layers = 3;
  shape.hidden = 32;
  shape.heads = 4;
  shape.kv_heads = kv_heads;
  shape.ffn = 44;
  shape.vocab = 40;
  shape.swiglu = true;
  shape.biases = false;
  shape.tied = false;
  return shape;
}

struct Batch {
  at::Tensor ids, targets;
};
// One of the targets is ignored.
inline Batch batch_of(const ModelShape& shape, std::int64_t rows = 2, std::int64_t tokens = 12) {
  const at::Tensor all = torch::arange(rows * tokens, torch::kLong).view({rows, tokens});
  Batch batch{(all * 7 + all.div(5, "floor")).remainder(shape.vocab),
              (all * 11 + 3).remainder(shape.vocab)};
  batch.targets[0][3] = -1;
  return batch;
}

// Sets values at which every part matters, unlike the initial ones. They are equal for every cut.
inline void stir(LanguageModel& model, double by = 0.2) {
  const at::NoGradGuard no_grad;
  const auto specs = find_specs(model);
  const tensor_parallel::Axis tp{model.part().tp};
  std::size_t next = 0;
  for (auto& item : model.named_parameters()) {
    const at::Tensor more = torch::empty_like(item.value());
    tensor_parallel::fill_normal(more, specs[next++], tp.axes(), tp.coordinate(), 99, by);
    item.value().add_(more);
  }
}

inline bool fuses_on_cpu() { return nn::fuses(torch::zeros({1})); }

// Returns the input of the planner's layer programs for this model and batch.
inline planner::ProgramInput question_of(const ModelShape& shape, int tp, bool sequence,
                                         const Batch& batch) {
  planner::ProgramInput question;
  question.model = shape;
  question.axes = {{Axis::tp, tp}};
  question.sequence_ranks = sequence ? tp : 1;
  question.batch = batch.ids.size(0);
  question.seq = batch.ids.size(1);
  question.fused = fuses_on_cpu();
  return question;
}

// Returns the bytes that a forward pass of 3 rows of 40 tokens keeps for backward on this rank.
inline std::int64_t kept_bytes(const ModelShape& shape, const Part& part, at::ScalarType type,
                               Recompute mode) {
  const auto model = make_model(shape, part, 0, at::TensorOptions(type));
  if (mode != Recompute::none) nn::set_recompute(*model, mode);
  const at::Tensor ids = torch::zeros({3, 40}, torch::kLong);
  const auto ledger = std::make_shared<memory::Ledger>();
  const memory::OwnerScope owner(ledger);
  const memory::CategoryScope category(MemoryCategory::activations);
  const at::Tensor loss = model->loss(ids, ids);
  return ledger->counts()[MemoryCategory::activations].now;
}

struct Ran {
  double loss = 0;
  tensor_parallel::test::Named grads;
  std::vector<ParamSpec> specs;
};

inline void expect_same(const Ran& got, const Ran& wanted, const std::string& what,
                        double tolerance = 5e-5) {
  EXPECT_NEAR(got.loss / wanted.loss, 1, 1e-5) << what;
  ASSERT_EQ(got.grads.size(), wanted.grads.size()) << what;
  for (const auto& [name, grad] : wanted.grads) {
    ASSERT_TRUE(got.grads.count(name)) << what << name;
    tensor_parallel::test::expect_close(got.grads.at(name), grad, what + " " + name, tolerance);
  }
}

}  // namespace tessera::models::test
