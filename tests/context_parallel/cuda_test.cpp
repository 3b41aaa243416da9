// Context-parallel attention on a GPU, compared with attention to whole sequences in double on the
// CPU. Ranks are processes that share the GPU over shared memory. Skipped without a GPU.

#include <ATen/Parallel.h>

#include <chrono>
#include <limits>

#include "tessera/core/errors.h"
#include "tessera/memory/device_memory.h"
#include "tessera/nn/ops.h"
#include "tessera/nn/recompute.h"
#include "tests/comm/cuda_cases.h"
#include "tests/context_parallel/cases.h"
#include "tests/text.h"

namespace tessera::context_parallel {
namespace {

using comm::testing::kGpu;
using comm::testing::no_gpu;
using comm::testing::run_gpu_ranks;
using test::Case;
using test::Whole;

// Whole sequences of values that the type can represent, with results in double.
Whole exact_of(const Case& of, int ranks, std::uint64_t seed) {
  std::mt19937 random(static_cast<unsigned>(seed));
  torch::manual_seed(seed);
  Whole whole{of, test::options_of(of, ranks, random), {}, {}, {}, {}};
  const auto values = [&](std::int64_t width) {
    return torch::randn({of.batch, of.tokens(ranks), width}, torch::kDouble)
        .to(of.type)
        .to(torch::kDouble);
  };
  whole.qkv = values(of.width());
  whole.dout = values(of.heads * of.dim);
  test::attend(whole);
  return whole;
}

// Fills the memory that the allocator returns next, to detect reads before writes.
void poison() {
  std::vector<at::Tensor> blocks;
  for (std::int64_t bytes = 512; bytes <= (8 << 20); bytes *= 2) {
    for (int i = 0; i < 4; ++i) {
      blocks.push_back(at::full({bytes / 4}, std::numeric_limits<float>::quiet_NaN(),
                                at::device(kGpu).dtype(at::kFloat)));
    }
  }
}

double tolerance_of(at::ScalarType type) {
  return type == at::kFloat ? 2e-4 : type == at::kHalf ? 4e-3 : 2e-2;
}

std::uint64_t ring_bytes(const Case& of, int ranks, std::int64_t element) {
  return static_cast<std::uint64_t>((ranks - 1) * of.batch * 2 * of.chunk * 2 * of.kv_heads *
                                    of.dim * element);
}

// Runs on each rank.
void compare_on(const Axis& axis, const Case& of, nn::Recompute mode, std::uint64_t seed) {
  const Whole whole = exact_of(of, axis.size(), seed);
  nn::AttentionOptions options = whole.options;
  if (of.documents) options.document_starts = options.document_starts.to(kGpu);
  const std::string text = str(of.text(axis), ", width ", of.dim, ", recompute ", nn::name(mode));
  const auto mine = [&](const at::Tensor& all) { return test::part_of(all, axis.part()); };
  const at::Tensor x = mine(whole.qkv).to(of.type).to(kGpu).requires_grad_();
  const at::Tensor dout = mine(whole.dout).to(of.type).to(kGpu);
  poison();
  const auto start = axis.group.traffic();
  const at::Tensor out = nn::recompute(
      mode,
      [&](const at::Tensor& y) {
        return attention(axis, y, of.heads, of.kv_heads, options, "test");
      },
      x);
  poison();
  const auto middle = axis.group.traffic();
  out.backward(dout);
  const auto end = axis.group.traffic();
  const double limit = tolerance_of(of.type);
  EXPECT_EQ(out.scalar_type(), of.type) << text;
  EXPECT_LE(test::difference(out.detach().cpu(), mine(whole.out), whole.out), limit) << text;
  EXPECT_LE(test::difference(x.grad().cpu(), mine(whole.dqkv), whole.dqkv), 2 * limit)
      << text << ", gradient";
  if (axis.kind != ContextKind::ring || mode == nn::Recompute::full) return;
  const std::int64_t e = of.type == at::kFloat ? 4 : 2;
  EXPECT_EQ((middle - start).sent_bytes, ring_bytes(of, axis.size(), e)) << text;
  EXPECT_EQ((end - middle).sent_bytes, ring_bytes(of, axis.size(), e + 4)) << text;
}

void compare(ContextKind kind, int ranks, const std::vector<Case>& cases,
             const std::vector<nn::Recompute>& modes = {nn::Recompute::none}) {
  run_gpu_ranks(ranks, [&](std::shared_ptr<comm::Backend> host, std::shared_ptr<comm::Peers>) {
    at::set_num_threads(1);
    const Axis axis{comm::Group(std::move(host)), kind};
    std::uint64_t seed = 0;
    for (const Case& of : cases) {
      for (const nn::Recompute mode : modes) compare_on(axis, of, mode, ++seed);
    }
  });
}

const std::vector<Case>& plain_cases() {
  static const std::vector<Case> cases = {
      {.chunk = 64, .heads = 4, .kv_heads = 4, .dim = 64},
      {.chunk = 40, .heads = 4, .kv_heads = 2, .dim = 64, .scale = 0.3},
      {.batch = 1, .chunk = 33, .heads = 8, .kv_heads = 2, .dim = 128},
      {.batch = 3, .chunk = 1, .heads = 4, .kv_heads = 4, .dim = 32},
      {.batch = 1, .chunk = 200, .heads = 4, .kv_heads = 1, .dim = 16},
  };
  return cases;
}

TEST(ContextParallelOnCuda, MatchesTheWholeSequence) {
  NEEDS_GPU();
  for (const int ranks : {2, 4}) {
    for (const ContextKind kind : {ContextKind::ring, ContextKind::ulysses}) {
      std::vector<Case> cases;
      for (Case of : plain_cases()) {
        // nn::attention has no kernel for another scale.
        if (kind == ContextKind::ulysses) of.scale = 0;
        for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
          if (type == at::kHalf && of.chunk != 40) continue;  // as bf16
          of.type = type;
          cases.push_back(of);
        }
      }
      compare(kind, ranks, cases);
    }
  }
}

// Windows that end inside, at and beyond chunks of both kinds.
TEST(ContextParallelOnCuda, RingAppliesWindows) {
  NEEDS_GPU();
  for (const int ranks : {2, 3}) {
    std::vector<Case> cases;
    for (const std::int64_t window : {1, 7, 24, 25, 29, 48, 60, 80, 143}) {
      cases.push_back({.chunk = 24,
                       .heads = 4,
                       .kv_heads = 2,
                       .dim = 64,
                       .window = window,
                       .type = window == 7 ? at::kHalf : at::kBFloat16});
    }
    compare(ContextKind::ring, ranks, cases);
  }
}

TEST(ContextParallelOnCuda, RingSeparatesDocuments) {
  NEEDS_GPU();
  for (const int ranks : {2, 3}) {
    std::vector<Case> cases;
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      cases.push_back(
          {.chunk = 24, .heads = 4, .kv_heads = 2, .dim = 64, .documents = true, .type = type});
    }
    compare(ContextKind::ring, ranks, cases);
  }
}

TEST(ContextParallelOnCuda, RecomputationGivesTheSameResults) {
  NEEDS_GPU();
  std::vector<Case> cases;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    cases.push_back({.chunk = 48, .heads = 4, .kv_heads = 2, .dim = 64, .type = type});
  }
  for (const ContextKind kind : {ContextKind::ring, ContextKind::ulysses}) {
    compare(kind, 2, cases, {nn::Recompute::selective, nn::Recompute::full});
  }
}

// Keys of other ranks are not kept for backward.
TEST(ContextParallelOnCuda, RingKeepsOnlyTheTokensOfItsRank) {
  NEEDS_GPU();
  run_gpu_ranks(4, [](std::shared_ptr<comm::Backend> host, std::shared_ptr<comm::Peers>) {
    const Axis axis{comm::Group(std::move(host)), ContextKind::ring};
    const std::int64_t tokens = 1024, heads = 8, kv_heads = 4, dim = 64;
    const at::Tensor x =
        at::randn({1, tokens, (heads + 2 * kv_heads) * dim}, at::device(kGpu).dtype(at::kBFloat16))
            .requires_grad_();
    // Returns the bytes in use once they are at most `limit`. Threads of the backend release the
    // buffers of finished messages.
    const auto bytes_below = [](std::int64_t limit) {
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      std::int64_t now = 0;
      do {
        now = memory::device_usage(kGpu)->now;
      } while (now > limit && std::chrono::steady_clock::now() < deadline);
      return now;
    };
    // The first call allocates workspaces of libraries.
    attention(axis, x, heads, kv_heads, {}, "test").sum().backward();
    const auto input = static_cast<std::int64_t>(x.nbytes());
    const std::int64_t before = bytes_below(2 * input + 4096);  // x and its gradient
    const at::Tensor out = attention(axis, x, heads, kv_heads, {}, "test");
    const std::int64_t wanted = 2 * tokens * heads * dim + 4 * tokens * heads;
    const std::int64_t kept = bytes_below(before + wanted + 4096) - before;
    EXPECT_GE(kept, wanted);
    EXPECT_LE(kept, wanted + 4096);
    out.sum().backward();
  });
}

TEST(ContextParallelOnCuda, RingRejectsUnsupportedAttention) {
  NEEDS_GPU();
  run_gpu_ranks(2, [](std::shared_ptr<comm::Backend> host, std::shared_ptr<comm::Peers>) {
    const Axis axis{comm::Group(std::move(host)), ContextKind::ring};
    const auto message = [&](at::ScalarType type, const nn::AttentionOptions& options) {
      const at::Tensor x = at::zeros({1, 8, 6 * 16}, at::device(kGpu).dtype(type));
      return error_of([&] { attention(axis, x, 4, 1, options, "blocks.0"); });
    };
    nn::AttentionOptions options;
    options.dropout.rate = 0.1;
    EXPECT_EQ(message(at::kBFloat16, options),
              "Context parallelism of \"blocks.0\": attention dropout of 0.1, which --cp-kind ring "
              "does not support on a GPU. Use --cp-kind ulysses.");
    options = {};
    options.window = 3;
    EXPECT_EQ(message(at::kFloat, options),
              "Context parallelism of \"blocks.0\": no kernel of this GPU supports --cp-kind ring "
              "here: no kernel supports fp32 with a window or documents. Use --cp-kind ulysses.");
    options.document_starts = at::zeros({1, 16}, at::device(kGpu).dtype(at::kInt));
    EXPECT_EQ(message(at::kBFloat16, options),
              "Context parallelism of \"blocks.0\": a window of 3 with packed documents, which "
              "--cp-kind ring does not support on a GPU. Use --cp-kind ulysses.");
    EXPECT_TRUE(contains(message(at::kDouble, {}), "support only fp32, bf16 and fp16"));
  });
}

}  // namespace
}  // namespace tessera::context_parallel
