// Dropout of adapters: compared with products with an explicit mask, and equal for every cut of the
// model.

#include <gtest/gtest.h>
#include <torch/types.h>

#include <random>
#include <set>

#include "tessera/core/errors.h"
#include "tessera/core/lora.h"
#include "tessera/nn/ops.h"
#include "tessera/nn/recompute.h"
#include "tessera/tensor_parallel/adapter.h"
#include "tests/models/small_models.h"
#include "tests/text.h"

namespace tessera::models {
namespace {

using tensor_parallel::AdapterImpl;
using tensor_parallel::AdapterUse;
using tensor_parallel::test::each_rank;
using tensor_parallel::test::expect_close;
using tensor_parallel::test::gradients_of;
using tensor_parallel::test::Named;
using tensor_parallel::test::wholes_of;
using test::Batch;
using test::Ran;

std::shared_ptr<const nn::Pass> dropping(double rate) {
  auto pass = std::make_shared<nn::Pass>();
  pass->adapter_dropout = rate;
  pass->seed = 77;
  pass->first_sample = 6;
  return pass;
}

ModelShape adapted(ModelShape shape, const std::string& targets) {
  shape.lora = {3, 5, targets, 0.3};
  return shape;
}

// Reference with ATen's operations: y = x wᵀ + b, with scale · ((x · mask) aᵀ) bᵀ added to some of
// its columns.
TEST(AdapterDropout, IsAMaskOnTheInputOfEachAdapter) {
  std::mt19937 random(6);
  for (int trial = 0; trial < 40; ++trial) {
    const std::int64_t batch = 1 + random() % 3, tokens = 1 + random() % 5;
    const std::int64_t in = 1 + random() % 20, out = 8 + random() % 9;
    const std::int64_t before = random() % 7, after = random() % 5;  // columns of other ranks
    const bool wants_x = trial % 4 != 0;
    const at::Tensor x = torch::randn({batch, tokens, in}).requires_grad_(wants_x);
    const at::Tensor w = torch::randn({out, in}), bias = torch::randn({out});
    const at::Tensor dy = torch::randn({batch, tokens, out});
    std::vector<AdapterUse> uses;
    for (std::uint64_t i = 0; i < 1 + random() % 3; ++i) {
      const std::int64_t rows = 1 + random() % 8, rank = 1 + random() % 3;
      AdapterUse& use = uses.emplace_back();
      use.a = torch::randn({rank, in}).requires_grad_();
      use.b = torch::randn({rows, rank}).requires_grad_();
      use.scale = 0.7;
      use.first = random() % (out - rows + 1);
      use.dropout = {0.4, 5, 100 + i, 3};
      use.first_input = before;
      use.inputs = before + in + after;
    }
    const auto gradients = [&](const at::Tensor& y) {
      y.backward(dy);
      std::vector<at::Tensor> all = {y.detach()};
      const auto take = [&](const at::Tensor& from) {
        all.push_back(from.grad().clone());
        from.mutable_grad().reset();
      };
      if (wants_x) take(x);
      for (const AdapterUse& use : uses) take(use.a), take(use.b);
      return all;
    };
    at::Tensor slow = at::matmul(x, w.t()) + bias;
    for (const AdapterUse& use : uses) {
      const at::Tensor whole = torch::ones({batch, tokens, use.inputs});
      const at::Tensor mask = nn::dropout(whole, use.dropout).narrow(2, before, in);
      const at::Tensor added = at::matmul(at::matmul(x * mask, use.a.t()), use.b.t()) * use.scale;
      slow = slow + torch::constant_pad_nd(added, {use.first, out - use.first - use.b.size(0)});
    }
    const auto wanted = gradients(slow);
    const auto got = gradients(tensor_parallel::adapted_linear(x, w, bias, uses));
    ASSERT_EQ(got.size(), wanted.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      expect_close(got[i], wanted[i], str("trial ", trial, ", tensor ", i), 1e-5);
    }
  }
}

Ran run_model(const ModelShape& shape, int tp, bool sequence, nn::Recompute mode, const Batch& data,
              const std::shared_ptr<const nn::Pass>& pass) {
  Ran out;
  std::vector<Named> grads(static_cast<std::size_t>(tp));
  const auto losses = each_rank<double>(tp, [&](const comm::Group& group) {
    const auto model = make_model(shape, {.tp = group, .sequence_parallel = sequence}, 3);
    test::stir(*model);
    if (mode != nn::Recompute::none) nn::set_recompute(*model, mode);
    const nn::PassScope scope(pass);
    const at::Tensor loss = model->loss(data.ids, data.targets);
    (loss / 7).backward();
    for (const auto& [name, grad] : gradients_of(*model)) {
      if (grad.defined()) grads[static_cast<std::size_t>(group.rank())][name] = grad;
    }
    if (group.rank() == 0) {
      for (const ParamSpec& spec : find_specs(*model)) {
        if (is_adapter_param(spec.name)) out.specs.push_back(spec);
      }
    }
    return loss.item<double>();
  });
  out.loss = losses[0];
  out.grads = wholes_of(out.specs, grads);
  return out;
}

TEST(AdapterDropout, IsEqualForEveryCut) {
  for (const ModelShape& base : {test::gpt_of_three(), test::small_llama(2)}) {
    const ModelShape shape = adapted(base, "all");
    const Batch data = test::batch_of(shape);
    const Ran wanted = run_model(shape, 1, false, nn::Recompute::none, data, dropping(0.3));
    const Ran without = run_model(shape, 1, false, nn::Recompute::none, data, nullptr);
    EXPECT_GT(std::abs(wanted.loss / without.loss - 1), 1e-4);
    for (const int tp : {1, 2, 4}) {
      for (const bool sequence : {false, true}) {
        if (sequence && tp == 1) continue;
        for (const auto mode :
             {nn::Recompute::none, nn::Recompute::selective, nn::Recompute::full}) {
          const std::string what =
              str(shape.name, " tp ", tp, sequence ? " sequence " : " ", nn::name(mode));
          tensor_parallel::test::separate_and_fused([&](bool fused) {
            test::expect_same(run_model(shape, tp, sequence, mode, data, dropping(0.3)), wanted,
                              what + (fused ? " fused" : ""), 1e-4);
          });
        }
      }
    }
    // Rate 0 is bitwise equal to no dropout.
    const Ran none = run_model(shape, 2, true, nn::Recompute::none, data, dropping(0));
    const Ran plain = run_model(shape, 2, true, nn::Recompute::none, data, nullptr);
    EXPECT_EQ(none.loss, plain.loss);
    for (const auto& [name, grad] : plain.grads) EXPECT_TRUE(grad.equal(none.grads.at(name)));
  }
}

// Every adapter has a unique name, and so drops different values than the others.
TEST(AdapterDropout, DiffersBetweenAdapters) {
  const auto model = make_model(adapted(test::small_llama(2), "all"), {}, 3);
  std::set<std::string> names;
  std::size_t adapters = 0;
  for (const auto& module : model->modules()) {
    if (const auto* one = dynamic_cast<const AdapterImpl*>(module.get()); one != nullptr) {
      names.insert(one->operation);
      ++adapters;
    }
  }
  EXPECT_EQ(adapters, 3u * 7u);
  EXPECT_EQ(names.size(), adapters);
  EXPECT_TRUE(names.contains("blocks.1.qkv.lora_q"));
}

TEST(AdapterDropout, RejectsInvalidRates) {
  for (const double rate : {-0.1, 1.0, 7.0, std::nan("")}) {
    ModelShape shape = adapted(test::small_llama(2), "q");
    shape.lora.dropout = rate;
    EXPECT_TRUE(contains(error_of([&] { check_lora(shape); }), "--lora-dropout: got ")) << rate;
  }
}

}  // namespace
}  // namespace tessera::models
