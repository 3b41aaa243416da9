// Recomputation of segments that contain context-parallel attention.

#include "tessera/nn/recompute.h"

#include "tessera/nn/ops.h"
#include "tests/context_parallel/cases.h"

namespace tessera::context_parallel {
namespace {

using test::over;

constexpr std::int64_t kHeads = 4, kKvHeads = 2, kDim = 8, kWidth = kHeads * kDim;

struct Ran {
  at::Tensor out, dx, dw;
  std::uint64_t bytes = 0;
};

// Two layers, so that several exchanges are in one segment.
Ran run_layers(const Axis& axis, nn::Recompute mode) {
  // Ranks are threads, which share torch's own generator.
  auto generator = at::detail::createCPUGenerator(5);
  const at::Tensor w =
      torch::randn({(kHeads + 2 * kKvHeads) * kDim, kWidth}, generator).mul_(0.2).requires_grad_();
  const at::Tensor whole = torch::randn({2, 8 * axis.size(), kWidth}, generator);
  const at::Tensor x = test::part_of(whole, axis.part()).detach().clone().requires_grad_();
  const auto start = axis.group.traffic();
  const at::Tensor out = nn::recompute(
      mode,
      [&](at::Tensor y) {
        nn::AttentionOptions options;
        options.window = 11;
        options.dropout = {0.2, 3, 4, 5};
        for (int layer = 0; layer < 2; ++layer) {
          const at::Tensor qkv = nn::linear(y, w, {});
          y = y + attention(axis, qkv, kHeads, kKvHeads, options, "layer").tanh();
        }
        return y;
      },
      x);
  out.square().sum().backward();
  return {out.detach(), x.grad(), w.grad(), (axis.group.traffic() - start).sent_bytes};
}

TEST(ContextParallel, RecomputationKeepsBitsAndSelectiveRepeatsNoExchange) {
  for (const ContextKind kind : {ContextKind::ring, ContextKind::ulysses}) {
    for (const int ranks : {2, 4}) {
      over(ranks, [&](const comm::Group& group) {
        const Axis axis{group, kind};
        const Ran plain = run_layers(axis, nn::Recompute::none);
        const Ran selective = run_layers(axis, nn::Recompute::selective);
        const Ran full = run_layers(axis, nn::Recompute::full);
        for (const Ran* other : {&selective, &full}) {
          EXPECT_TRUE(at::equal(other->out, plain.out));
          EXPECT_TRUE(at::equal(other->dx, plain.dx));
          EXPECT_TRUE(at::equal(other->dw, plain.dw));
        }
        EXPECT_EQ(selective.bytes, plain.bytes);
        EXPECT_GT(full.bytes, plain.bytes);
      });
    }
  }
}

}  // namespace
}  // namespace tessera::context_parallel
