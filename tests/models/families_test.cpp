// Models of every family: their results, their parameter counts, and rows of several documents,
// which equal separate documents.

#include <gtest/gtest.h>

#include "tessera/core/text.h"
#include "tessera/models/init.h"
#include "tessera/models/language_model.h"
#include "tessera/nn/recompute.h"
#include "tests/models/families.h"
#include "tests/models/small_models.h"

namespace tessera::models {
namespace {

using tensor_parallel::test::each_rank;
using tensor_parallel::test::gradients_of;
using tensor_parallel::test::Named;
using tensor_parallel::test::separate_and_fused;
using tensor_parallel::test::wholes_of;
using test::Batch;
using test::batch_of;
using test::expect_same;
using test::families;
using test::Params;
using test::Ran;
using test::stir;

struct FamilyBatch : Batch {
  at::Tensor starts;
};
FamilyBatch family_batch(const ModelShape& shape, bool packed, std::int64_t tokens = 24) {
  FamilyBatch batch{batch_of(shape, 2, tokens), {}};
  if (packed) batch.starts = test::packed_starts(2, tokens);
  return batch;
}

std::shared_ptr<const nn::Pass> pass_with(const at::Tensor& starts) {
  auto pass = std::make_shared<nn::Pass>();
  nn::with_documents(*pass, starts, torch::kCPU);
  return pass;
}

Ran slow_run(const ModelShape& shape, const FamilyBatch& batch) {
  const auto model = make_model(shape, {}, 3);
  stir(*model, 0.3);
  Params params;
  for (const auto& item : model->named_parameters()) {
    params[item.key()] = item.value().detach().to(torch::kDouble).requires_grad_();
  }
  const at::Tensor loss = test::family_loss(shape, params, batch.ids, batch.targets, batch.starts);
  loss.backward();
  Ran run{loss.item<double>(), {}, find_specs(*model)};
  for (const auto& [name, param] : params) run.grads[name] = param.grad().to(torch::kFloat);
  return run;
}

TEST(Families, MatchTheReferenceNetwork) {
  for (const ModelShape& shape : families()) {
    for (const bool packed : {false, true}) {
      const FamilyBatch batch = family_batch(shape, packed);
      const Ran wanted = slow_run(shape, batch);
      separate_and_fused([&](bool fused) {
        for (const int tp : {1, 2}) {
          for (const auto mode :
               {nn::Recompute::none, nn::Recompute::selective, nn::Recompute::full}) {
            const bool sequence = tp == 2 && mode != nn::Recompute::full;
            const std::string what =
                str(shape.name, packed ? " packed" : "", " tp ", tp, sequence ? " sequence " : " ",
                    nn::name(mode), fused ? " fused" : "");
            const auto ranks = each_rank<Ran>(tp, [&](const comm::Group& group) {
              const auto model = make_model(
                  shape, {.tp = group, .sequence_parallel = sequence, .pad_vocab_to = 8}, 3);
              stir(*model, 0.3);
              if (mode != nn::Recompute::none) nn::set_recompute(*model, mode);
              at::Tensor loss;
              {
                const nn::PassScope scope(pass_with(batch.starts));
                loss = model->loss(batch.ids, batch.targets);
              }
              loss.backward();  // outside of the scope: it needs no pass
              return Ran{loss.item<double>(), gradients_of(*model), find_specs(*model)};
            });
            std::vector<Named> grads;
            for (const Ran& rank : ranks) grads.push_back(rank.grads);
            expect_same({ranks[0].loss, wholes_of(ranks[0].specs, grads), {}}, wanted, what, 1e-4);
          }
        }
      });
    }
  }
}

// Losses and gradients are the sums over the documents, each in a row of its own length.
TEST(Families, PackedDocumentsEqualSeparateDocuments) {
  for (const ModelShape& shape : families()) {
    const FamilyBatch batch = family_batch(shape, true);
    const auto model = make_model(shape, {}, 3);
    stir(*model, 0.3);
    double apart = 0;
    for (std::int64_t b = 0; b < 2; ++b) {
      for (std::int64_t t = 0, end = 0; t < batch.ids.size(1); t = end) {
        for (end = t; end < batch.ids.size(1) && batch.starts[b][end].item<int>() == t;) ++end;
        const auto part = [&](const at::Tensor& x) {
          return x.narrow(0, b, 1).narrow(1, t, end - t).contiguous();
        };
        const at::Tensor loss = model->loss(part(batch.ids), part(batch.targets));
        loss.backward();
        apart += loss.item<double>();
      }
    }
    const Named wanted = gradients_of(*model);
    model->zero_grad();
    const nn::PassScope scope(pass_with(batch.starts));
    const at::Tensor loss = model->loss(batch.ids, batch.targets);
    loss.backward();
    expect_same({loss.item<double>(), gradients_of(*model), {}}, {apart, wanted, {}}, shape.name,
                1e-4);
  }
}

TEST(Families, ParametersAreCountedExactly) {
  std::vector<ModelShape> all = families();
  for (const ModelShape& known : model_shapes()) all.push_back(known);
  for (ModelShape& shape : all) {
    if (shape.layers > 4) {  // all layers are equal
      shape.layers = 2;
      shape.window_from = std::min<std::int64_t>(shape.window_from, 1);
    }
    const auto model = make_model(shape, {}, 0, at::TensorOptions(at::kMeta));
    std::int64_t made = 0;
    for (const at::Tensor& param : model->parameters()) made += param.numel();
    EXPECT_EQ(made, shape.params()) << shape.name;
  }
}

TEST(Families, HavePublishedInitialization) {
  const auto deviation = [](const ModelShape& shape, const char* name) {
    ParamSpec spec;
    spec.name = name;
    spec.shape = {4, 4};
    return initial_values(shape)(spec).deviation;
  };
  const ModelShape gpt = find_model_shape("gpt2");
  EXPECT_NEAR(deviation(gpt, "blocks.3.proj2.weight"), 0.02 / std::sqrt(24.0), 1e-12);
  EXPECT_EQ(deviation(gpt, "blocks.3.fc.weight"), 0.02);
  ModelShape llama = find_model_shape("llama3.2-1b");
  EXPECT_EQ(deviation(llama, "blocks.3.proj2.weight"), 0.02);
  llama.init_range = 0.01;
  EXPECT_EQ(deviation(llama, "tok.weight"), 0.01);
}

}  // namespace
}  // namespace tessera::models
