// Backward that writes gradients to the memory that the engine provides.

#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>

#include "tessera/nn/gpu.h"
#include "tessera/nn/gradient_place.h"
#include "tests/zero/oracle.h"

namespace tessera::zero::test {
namespace {

struct Taken {
  bool enabled = true;
  bool fail = false;  // after a place has been taken
  int written = 0, added = 0, refused = 0;
};

// y = x Wᵀ, whose backward writes to the place of W's gradient.
struct PlacedLinear : torch::autograd::Function<PlacedLinear> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                            const at::Tensor& weight, std::int64_t taken) {
    ctx->save_for_backward({x, weight});
    ctx->saved_data["taken"] = taken;
    return at::matmul(x, weight.t());
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list dy) {
    const auto saved = ctx->get_saved_variables();
    auto& taken = *reinterpret_cast<Taken*>(ctx->saved_data["taken"].toInt());
    const at::Tensor gradient = at::matmul(dy[0].t(), saved[0]);
    const at::Tensor dx = at::matmul(dy[0], saved[1]);
    if (!taken.enabled) return {dx, gradient, {}};
    const nn::GradientPlace::Place place = nn::take_place(saved[1]);
    if (!place.to.defined()) {
      ++taken.refused;
      return {dx, gradient, {}};
    }
    ++(place.add ? taken.added : taken.written);
    place.add ? place.to.add_(gradient) : place.to.copy_(gradient);
    if (taken.fail) throw std::runtime_error("a kernel fails");
    return {dx, place.to.alias(), {}};
  }
};

constexpr std::int64_t kSide = 4;

// Small whole numbers: sums of their products are exact in any order.
at::Tensor whole_numbers(at::IntArrayRef sizes, std::uint64_t seed) {
  return (numbers(sizes, seed) * 3).round();
}

struct PlacedImpl : torch::nn::Module {
  PlacedImpl(Taken& t, at::Tensor shared, std::uint64_t seed) : taken(t), tied(std::move(shared)) {
    weight = register_parameter("weight", whole_numbers({kSide, kSide}, seed));
    if (tied.defined()) register_parameter("tied", tied);
  }
  at::Tensor linear(const at::Tensor& x, const at::Tensor& w) const {
    return PlacedLinear::apply(x, w, reinterpret_cast<std::int64_t>(&taken));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = linear(x, weight).relu();
    return tied.defined() ? y + linear(y, tied) : y;
  }
  Taken& taken;
  at::Tensor tied, weight;
};

// Two blocks, which may be recomputed, and a weight used by both of them and by the net.
struct PlacedNet : torch::nn::Module {
  explicit PlacedNet(Taken& taken)
      : first(taken, whole_numbers({kSide, kSide}, 3), 4), second(taken, first->tied, 5) {
    register_module("first", first.ptr());
    register_module("second", second.ptr());
  }
  at::Tensor loss(const at::Tensor& x) {
    // The head holds its place until the gradient of this use is complete; those of the blocks are
    // computed in between.
    const at::Tensor y = first(first->linear(x, first->tied));
    return first->linear(first->linear(second(y), first->tied), second->weight).sum();
  }
  nn::Unit<PlacedImpl> first, second;
};

std::vector<at::Tensor> gradients(Taken& taken, const Options& options, nn::Recompute recompute) {
  auto net = std::make_shared<PlacedNet>(taken);
  Engine engine(net, comm::Group(), options);
  nn::set_recompute(*net, recompute);
  for (int step = 0; step < 2; ++step) {
    for (int k = 0; k < options.micro_batches; ++k) {
      const at::Tensor x = whole_numbers({3, kSide}, 10 + static_cast<std::uint64_t>(k));
      engine.backward(nn::observed(engine.root(), [&] { return net->loss(x); }));
    }
    engine.finish_reduction();
    if (step == 0) engine.discard();
  }
  std::vector<at::Tensor> result;
  for (const at::Tensor& p : net->parameters()) result.push_back(p.grad().clone());
  engine.discard();
  return result;
}

TEST(Places, GradientsEqualThoseWithoutPlaces) {
  for (const auto recompute : {nn::Recompute::none, nn::Recompute::full}) {
    for (const int micro_batches : {1, 4}) {
      Options options;
      options.micro_batches = micro_batches;
      // A parameter used in several segments is complete at the end of the pass.
      options.overlap_grad_reduce = recompute == nn::Recompute::none;
      Taken none{.enabled = false};
      const std::vector<at::Tensor> want = gradients(none, options, recompute);
      Taken taken;
      const std::vector<at::Tensor> got = gradients(taken, options, recompute);
      const std::string what = str(micro_batches, ", ", nn::name(recompute));
      ASSERT_EQ(got.size(), want.size());
      for (std::size_t i = 0; i < want.size(); ++i) {
        EXPECT_TRUE(at::equal(got[i], want[i])) << what << ", parameter " << i;
        EXPECT_GT(want[i].abs().max().item<float>(), 0) << what << ", parameter " << i;
      }
      EXPECT_GT(taken.written, 0) << what;
      EXPECT_GT(taken.refused, 0) << what;  // the second use of a weight
      EXPECT_EQ(taken.added > 0, micro_batches > 1 || recompute == nn::Recompute::full) << what;
    }
  }
}

TEST(Places, GradientsWrittenInPlaceAreNotCopied) {
  Taken taken;
  auto net = std::make_shared<PlacedImpl>(taken, at::Tensor(), 5);
  Options options;
  options.micro_batches = 2;
  Engine engine(net, comm::Group(), options);
  const auto pass = [&] {
    const at::Tensor x = whole_numbers({3, kSide}, 10);
    engine.backward(nn::observed(engine.root(), [&] { return net->forward(x).sum(); }));
  };
  pass();
  const void* const place = net->weight.grad().const_data_ptr();
  pass();
  EXPECT_EQ(net->weight.grad().const_data_ptr(), place);
  EXPECT_EQ(taken.written, 1);
  EXPECT_EQ(taken.added, 1);
  engine.step();
  EXPECT_FALSE(nn::take_place(net->weight).to.defined());  // outside backward
}

// The hook gets the gradient of one pass, without the earlier passes in the place.
TEST(Places, ParametersWithAUserHookHaveNoPlace) {
  std::vector<at::Tensor> results;
  for (const bool enabled : {false, true}) {
    Taken taken{.enabled = enabled};
    auto net = std::make_shared<PlacedImpl>(taken, at::Tensor(), 5);
    Options options;
    options.micro_batches = 2;
    Engine engine(net, comm::Group(), options);
    net->weight.register_hook([](at::Tensor grad) { return grad * 2; });
    for (int micro = 0; micro < 2; ++micro) {
      const at::Tensor x = whole_numbers({3, kSide}, 10);
      engine.backward(nn::observed(engine.root(), [&] { return net->forward(x).sum(); }));
    }
    engine.finish_reduction();
    results.push_back(net->weight.grad().clone());
    EXPECT_EQ(taken.written + taken.added, 0);
    engine.discard();
  }
  EXPECT_GT(results[0].abs().max().item<float>(), 0);
  EXPECT_TRUE(at::equal(results[0], results[1]));
}

// y = x Wᵀ with a gradient in row-major order, as GPU operations write it.
struct WrittenByRows : torch::autograd::Function<WrittenByRows> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                            const at::Tensor& weight) {
    ctx->save_for_backward({x, weight});
    return at::matmul(x, weight.t());
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list dy) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor gradient = at::matmul(dy[0].t(), saved[0]);
    const nn::gpu::ParamGradient to(saved[1]);
    EXPECT_TRUE(to.to().is_contiguous());
    to.add() ? to.to().add_(gradient) : to.to().copy_(gradient);
    return {at::Tensor(), to.result()};
  }
};

// A column-major weight cannot use its place, which must keep its contents.
TEST(Places, ColumnMajorWeightsKeepEarlierPasses) {
  for (const bool turned : {false, true}) {
    struct Net : torch::nn::Module {
      explicit Net(bool by_columns) {
        const at::Tensor values = whole_numbers({kSide, kSide}, 5);
        weight = register_parameter("weight", by_columns ? values.t().contiguous().t() : values);
      }
      at::Tensor weight;
    };
    auto net = std::make_shared<Net>(turned);
    Options options;
    options.micro_batches = 4;
    Engine engine(net, comm::Group(), options);
    EXPECT_EQ(net->weight.is_contiguous(), !turned);
    at::Tensor want = at::zeros({kSide, kSide});
    for (std::uint64_t micro = 0; micro < 4; ++micro) {
      const at::Tensor x = whole_numbers({3, kSide}, 10 + micro);
      engine.backward(nn::observed(engine.root(),
                                   [&] { return WrittenByRows::apply(x, net->weight).sum() * 4; }));
      want += x.sum(0).expand({kSide, kSide});
    }
    engine.finish_reduction();
    EXPECT_TRUE(at::equal(net->weight.grad(), want)) << (turned ? "by columns" : "by rows");
    engine.discard();
  }
}

TEST(Places, BucketedGradientsHaveNoPlace) {
  Taken taken;
  auto net = std::make_shared<PlacedImpl>(taken, at::Tensor(), 5);
  Options options;
  options.reduce = ReducePolicy::each;
  Engine engine(net, comm::Group(), options);
  engine.backward(nn::observed(engine.root(), [&] {
    return net->forward(whole_numbers({3, kSide}, 10)).sum();
  }));
  engine.step();
  EXPECT_EQ(taken.written, 0);
  EXPECT_EQ(taken.refused, 1);
}

TEST(Places, FailedBackwardReleasesItsPlaces) {
  Taken taken{.fail = true};
  auto net = std::make_shared<PlacedNet>(taken);
  Engine engine(net, comm::Group(), {});
  const at::Tensor x = whole_numbers({3, kSide}, 10);
  const auto loss = [&] { return nn::observed(engine.root(), [&] { return net->loss(x); }); };
  EXPECT_THROW(engine.backward(loss()), std::runtime_error);
  engine.discard();
  taken.fail = false;
  taken.written = taken.added = 0;
  engine.backward(loss());
  EXPECT_EQ(taken.written, 3);
  EXPECT_EQ(taken.added, 0);
  engine.step();
}

}  // namespace
}  // namespace tessera::zero::test
