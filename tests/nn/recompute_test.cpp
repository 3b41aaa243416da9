// Tests of activation recomputation: same gradients, less memory kept.

#include "tessera/nn/recompute.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <thread>

#include "tessera/core/errors.h"
#include "tessera/memory/allocator.h"
#include "tessera/nn/unit.h"

namespace tessera::nn {
namespace {

struct Block : torch::nn::Module {
  Block()
      : up(register_module("up", torch::nn::Linear(8, 32))),
        down(register_module("down", torch::nn::Linear(32, 8))),
        norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({8})))) {}
  at::Tensor forward(at::Tensor x) {
    const at::Tensor h = torch::dropout(torch::gelu(up->forward(norm->forward(x))), 0.3, true);
    return x + down->forward(h);
  }
  torch::nn::Linear up, down;
  torch::nn::LayerNorm norm;
};

// Returns the gradients of three blocks and of the input, to compare bitwise.
std::vector<at::Tensor> gradients(Recompute mode, bool input_wants_grad) {
  torch::manual_seed(3);
  std::vector<std::shared_ptr<Block>> blocks = {
      std::make_shared<Block>(), std::make_shared<Block>(), std::make_shared<Block>()};
  const at::Tensor x = torch::randn({5, 8}).requires_grad_(input_wants_grad);
  at::Tensor y = x;
  for (const auto& block : blocks) {
    y = recompute(
        mode, [block](at::Tensor in) { return block->forward(in); }, y);
  }
  (y * y).sum().backward();
  std::vector<at::Tensor> result = {y.detach()};
  for (const auto& block : blocks) {
    for (const at::Tensor& p : block->parameters()) result.push_back(p.grad());
  }
  if (input_wants_grad) result.push_back(x.grad());
  result.push_back(torch::rand({3}));  // the generator continues as if nothing had happened
  return result;
}

TEST(Checkpoint, GradientsAndRandomNumbersAreTheSame) {
  for (const bool input_wants_grad : {true, false}) {
    const std::vector<at::Tensor> want = gradients(Recompute::none, input_wants_grad);
    for (const auto mode : {Recompute::selective, Recompute::full}) {
      const std::vector<at::Tensor> got = gradients(mode, input_wants_grad);
      ASSERT_EQ(got.size(), want.size());
      for (std::size_t i = 0; i < want.size(); ++i) {
        EXPECT_TRUE(at::equal(got[i], want[i])) << name(mode) << " " << i;
      }
    }
  }
}

// Returns the bytes that are alive between forward and backward.
std::int64_t kept(Recompute mode) {
  memory::install();
  auto ledger = std::make_shared<memory::Ledger>();
  const auto block = std::make_shared<Block>();
  const at::Tensor x = torch::randn({4096, 8}).requires_grad_();
  const memory::OwnerScope owner(ledger);
  const at::Tensor y = recompute(
      mode, [block](at::Tensor in) { return block->forward(in); }, x);
  return ledger->counts().total.now;
}

TEST(Checkpoint, KeepsOnlyTheDocumentedActivations) {
  const double row = 4096 * 8 * sizeof(float);
  const double none = kept(Recompute::none) / row;
  const double selective = kept(Recompute::selective) / row;
  const double full = kept(Recompute::full) / row;
  EXPECT_NEAR(full, 1, 0.1);               // the output; the input belongs to the caller
  EXPECT_NEAR(selective, 1 + 4 + 1, 0.1);  // also the two products
  EXPECT_GT(none, 1 + 1 + 4 + 4 + 4);      // also norm, gelu, dropout with its mask, …
}

TEST(Checkpoint, SelectiveRunsProductsOnce) {
  int runs = 0, products = 0;
  const at::Tensor x = torch::randn({3, 3}).requires_grad_();
  const at::Tensor y = recompute(
      Recompute::selective,
      [&](at::Tensor in) {
        ++runs;
        const at::Tensor product = keep_in_selective("twice", {in}, [&] {
          ++products;
          return std::vector<at::Tensor>{in.detach() * 2};
        })[0];
        return in * product;
      },
      x);
  y.sum().backward();
  EXPECT_EQ(runs, 2);
  EXPECT_EQ(products, 1);
  EXPECT_TRUE(at::equal(x.grad(), x.detach() * 2));
}

TEST(Checkpoint, TakesAndReturnsTuplesOptionalsAndOtherValues) {
  const at::Tensor a = torch::randn({3}).requires_grad_(), b = torch::randn({3});
  const auto f = [](at::Tensor x, int times, std::optional<at::Tensor> y) {
    return std::make_tuple(x * times, *y + x, times + 1);
  };
  const auto [first, second, count] =
      recompute(Recompute::full, f, a, 3, std::optional<at::Tensor>(b));
  EXPECT_EQ(count, 4);
  (first * first + second).sum().backward();
  EXPECT_TRUE(at::allclose(a.grad(), 18 * a.detach() + 1));
}

// Allowed inside the segment: linear() itself adds its bias this way for inputs with three dims.
TEST(Checkpoint, ProductsMayBeChangedInPlaceInside) {
  const at::Tensor w = torch::randn({3, 3}), b = torch::randn({3});
  const auto f = [&](at::Tensor in) {
    return at::mm(torch::linear(in, w, b).flatten(0, 1), w).mul_(2).relu_().tanh();
  };
  std::vector<at::Tensor> grads;
  for (const auto mode : {Recompute::none, Recompute::selective}) {
    const at::Tensor x = torch::linspace(-1, 1, 12).view({2, 2, 3}).requires_grad_();
    recompute(mode, f, x).sum().backward();
    grads.push_back(x.grad());
  }
  EXPECT_TRUE(at::equal(grads[0], grads[1]));
}

TEST(Checkpoint, RejectsResultsChangedInPlaceOutside) {
  const at::Tensor x = torch::randn({2, 2, 3}).requires_grad_();
  const at::Tensor w = torch::randn({3, 3});
  const at::Tensor y = recompute(
      Recompute::selective, [&](at::Tensor in) { return at::matmul(in, w); }, x);
  y.detach().mul_(2);
  EXPECT_THROW(y.sum().backward(), UsageError);
}

// Otherwise the second run would start from the changed input.
TEST(Checkpoint, RejectsASegmentThatChangesItsInput) {
  const at::Tensor w = torch::ones({2}).requires_grad_();
  const auto changes = [&](at::Tensor in) { return in.mul_(2) * w; };
  const auto copies = [&](at::Tensor in) { return (in + 0).mul_(2) * w; };
  for (const auto mode : {Recompute::selective, Recompute::full}) {
    for (const bool wants_grad : {true, false}) {
      const at::Tensor x = torch::ones({2}).requires_grad_(wants_grad);
      const at::Tensor in = wants_grad ? x + 0 : x;
      EXPECT_THROW(recompute(mode, changes, in), UsageError) << name(mode);
      EXPECT_NO_THROW(recompute(mode, copies, in).sum().backward()) << name(mode);
    }
  }
}

TEST(Checkpoint, RejectsSecondDerivatives) {
  const at::Tensor x = torch::ones({2}).requires_grad_();
  const at::Tensor y = recompute(
      Recompute::full, [](at::Tensor in) { return in * in * in; }, x);
  EXPECT_THROW(torch::autograd::grad({y.sum()}, {x}, {}, true, /*create_graph=*/true), UsageError);
}

TEST(Checkpoint, ReportsTheNestingDepth) {
  int first = -1, second = -1;
  const int marker = 0;
  const void* seen = nullptr;
  const at::Tensor x = torch::randn({2}).requires_grad_();
  const at::Tensor w = torch::randn({2}).requires_grad_();
  w.register_hook([&](at::Tensor) {
    (first < 0 ? first : second) = recomputing_depth();
    seen = recomputing_segment();
  });
  const at::Tensor y = recompute_segment(
      Recompute::full, &marker, [&](at::Tensor in) { return in * w; }, x);
  y.sum().backward();
  EXPECT_EQ(first, 1);
  EXPECT_EQ(seen, &marker);
  EXPECT_EQ(recomputing_depth(), 0);
}

// A segment, a nested one, and a following one: each function runs once for the first time.
TEST(Checkpoint, IsRecomputingOnlyInTheSecondRun) {
  for (const auto mode : {Recompute::none, Recompute::selective, Recompute::full}) {
    int first = 0, runs = 0;
    const auto count = [&](const at::Tensor& in) {
      ++runs;
      if (!is_recomputing()) ++first;
      return in * in;
    };
    const at::Tensor x = torch::ones({2}).requires_grad_();
    at::Tensor y = recompute(
        mode,
        [&](at::Tensor in) {
          const at::Tensor inner = recompute(
              mode, [&](at::Tensor z) { return count(z); }, count(in));
          return inner + in;
        },
        x);
    y = recompute(
        mode, [&](at::Tensor in) { return count(in); }, y);
    EXPECT_FALSE(is_recomputing());
    y.sum().backward();
    EXPECT_FALSE(is_recomputing());
    EXPECT_EQ(first, 3) << name(mode);
    EXPECT_EQ(runs > first, mode != Recompute::none) << name(mode);
  }
}

TEST(Checkpoint, StopsRecomputingWhenTheSecondRunThrows) {
  bool fails = false;
  const at::Tensor x = torch::ones({2}).requires_grad_();
  const at::Tensor y = recompute(
      Recompute::full,
      [&](at::Tensor in) {
        if (fails) throw UsageError("refused");
        return in * in;
      },
      x);
  fails = true;
  EXPECT_THROW(y.sum().backward(), UsageError);
  EXPECT_FALSE(is_recomputing());
}

struct Log : UnitObserver {
  void enter_forward(bool differentiable) override { text += differentiable ? "F(" : "f("; }
  void leave_forward(bool differentiable) override { text += differentiable ? ") " : ". "; }
  void enter_backward() override { text += "B("; }
  void leave_backward() override { text += ") "; }
  std::string text;
};

struct HeldImpl : torch::nn::Module {
  explicit HeldImpl(std::int64_t width)
      : linear(register_module("linear", torch::nn::Linear(width, width))) {}
  at::Tensor forward(at::Tensor x) { return linear(x); }
  torch::nn::Linear linear;
};
TORCH_MODULE(Held);

TEST(Unit, HolderAndModuleGiveTheSameUnit) {
  static_assert(std::is_same_v<Unit<Held>::Impl, Unit<HeldImpl>::Impl>);
  Unit<Held> unit(8);
  const auto log = std::make_shared<Log>();
  unit->observe(log);
  const at::Tensor x = torch::randn({2, 8});
  EXPECT_TRUE(at::equal(unit(x), unit->linear(x)));
  EXPECT_EQ(log->text, "f() ");
}

TEST(Unit, CallsItsObserver) {
  Unit<Block> unit;
  const auto log = std::make_shared<Log>();
  unit->observe(log);
  const at::Tensor x = torch::randn({2, 8}).requires_grad_();
  unit(unit(x)).sum().backward();
  EXPECT_EQ(log->text, "F() F() B() B() ");
  log->text.clear();
  unit(x.detach()).sum().backward();
  EXPECT_EQ(log->text, "f() B(");
  log->text.clear();
  const at::NoGradGuard no_grad;
  unit(x);
  EXPECT_EQ(log->text, "f(. ");
}

TEST(Unit, MayChangeItsInputInPlace) {
  struct Inplace : torch::nn::Module {
    at::Tensor forward(at::Tensor x) { return x.mul_(2) + 1; }
  };
  Unit<Inplace> unit;
  unit->observe(std::make_shared<Log>());
  const at::Tensor x = torch::ones({2}).requires_grad_();
  unit(x + 0).sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), at::full({2}, 2.0)));
}

TEST(Unit, ChildrenOfSequentialAreUnits) {
  torch::nn::Sequential model(torch::nn::Linear(4, 4), torch::nn::Tanh(), torch::nn::Linear(4, 4));
  const at::Tensor x = torch::randn({3, 4});
  const at::Tensor want = model->forward(x);
  for (int time = 0; time < 2; ++time) {  // a second search finds the same units
    const std::vector<FoundUnit> units = find_units(*model);
    ASSERT_EQ(units.size(), 2u);
    EXPECT_EQ(units[0].name, "0");
    EXPECT_EQ(units[1].name, "2");
  }
  EXPECT_TRUE(at::equal(model->forward(x), want));
  EXPECT_EQ(model->named_parameters().keys().front(), "0.weight");
  auto log = std::make_shared<Log>();
  find_units(*model)[1].unit->observe(log);
  model->forward(x).sum().backward();
  EXPECT_EQ(log->text, "F() B() ");
}

TEST(Unit, RecomputationNeedsUnits) {
  torch::nn::Linear plain(2, 2);
  EXPECT_THROW(set_recompute(*plain, Recompute::full), UsageError);
  EXPECT_NO_THROW(set_recompute(*plain, Recompute::none));
}

}  // namespace
}  // namespace tessera::nn
