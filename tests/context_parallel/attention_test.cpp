// Compares context-parallel attention with nn::attention on whole sequences in one process.

#include "tessera/context_parallel/attention.h"

#include <ATen/Parallel.h>

#include "tessera/core/errors.h"
#include "tessera/memory/allocator.h"
#include "tessera/nn/attention_part.h"
#include "tessera/nn/ops.h"
#include "tests/context_parallel/cases.h"
#include "tests/text.h"

namespace tessera::context_parallel {
namespace {

using test::Case;
using test::over;
using test::Whole;

// nn::attention supports no dropout of double. The masks, which are the reference of the kernels,
// then compute the gradients of all queries and keys.
void expect_by_masks(Whole& whole) {
  const Case& of = whole.of;
  const at::Tensor all = whole.qkv.unflatten(2, {of.heads + 2 * of.kv_heads, of.dim});
  const at::Tensor q = all.narrow(2, 0, of.heads), k = all.narrow(2, of.heads, of.kv_heads),
                   v = all.narrow(2, of.heads + of.kv_heads, of.kv_heads);
  const nn::AttentionPart part = {.tokens = q.size(1)};
  const auto [out, lse] = nn::masked_attention_forward(q, k, v, part, whole.options);
  const at::Tensor dout = whole.dout.unflatten(2, {of.heads, of.dim});
  const at::Tensor delta = (dout * out).sum(3).transpose(1, 2);
  const auto grad = nn::masked_attention_backward(q, k, v, dout, lse, delta, part, whole.options);
  whole.out = out.flatten(2);
  whole.dqkv = at::cat({grad.q, grad.k, grad.v}, 2).flatten(2);
}

Whole whole_of(const Case& of, int ranks, std::uint64_t seed) {
  std::mt19937 random(static_cast<unsigned>(seed));
  torch::manual_seed(seed);
  Whole whole{of, test::options_of(of, ranks, random), {}, {}, {}, {}};
  const std::int64_t tokens = of.tokens(ranks);
  whole.qkv = torch::randn({of.batch, tokens, of.width()}, torch::kDouble).to(of.type);
  whole.dout = torch::randn({of.batch, tokens, of.heads * of.dim}, torch::kDouble).to(of.type);
  if (of.type == at::kDouble && of.rate > 0) {
    expect_by_masks(whole);
    return whole;
  }
  test::attend(whole);
  return whole;
}

// Bytes that a rank sends: [Note: context parallelism].
struct Bytes {
  std::uint64_t forward = 0, backward = 0;
};
Bytes bytes_of(const Case& of, ContextKind kind, int cp) {
  const std::int64_t tokens = of.batch * 2 * of.chunk, e = of.type == at::kBFloat16 ? 2
                                                           : of.type == at::kFloat  ? 4
                                                                                    : 8;
  const std::int64_t sums = of.type == at::kDouble ? 8 : 4;
  if (cp == 1) return {};
  if (kind == ContextKind::ring) {
    const std::int64_t elements = (cp - 1) * tokens * 2 * of.kv_heads * of.dim;
    return {static_cast<std::uint64_t>(elements * e),
            static_cast<std::uint64_t>(elements * (e + sums))};
  }
  const std::int64_t heads = 2 * of.heads + 2 * std::max<std::int64_t>(of.kv_heads, cp);
  const auto bytes = static_cast<std::uint64_t>((cp - 1) * (tokens * heads * of.dim * e / cp));
  return {bytes, bytes};
}

// Limit for results. Gradients are longer sums and may differ twice as much.
double tolerance_of(at::ScalarType type) {
  return type == at::kDouble ? 1e-12 : type == at::kFloat ? 1e-6 : 2e-2;
}

// Runs all cases on the ranks. Each rank uses one thread: more are slower for small tensors, and
// with two threads the first results of ATen in double sometimes have errors of 1e-9.
void compare(ContextKind kind, int ranks, const std::vector<Case>& cases) {
  at::set_num_threads(1);
  std::vector<Whole> wholes;
  for (const Case& of : cases) wholes.push_back(whole_of(of, ranks, wholes.size() + 1));
  over(ranks, [&](const comm::Group& group) {
    at::set_num_threads(1);
    const Axis axis{group, kind};
    for (const Whole& whole : wholes) {
      const Case& of = whole.of;
      const std::string text = of.text(axis);
      const at::Tensor x = test::part_of(whole.qkv, axis.part()).detach().clone().requires_grad_();
      const auto start = group.traffic();
      const at::Tensor out = attention(axis, x, of.heads, of.kv_heads, whole.options, "test");
      const auto middle = group.traffic();
      out.backward(test::part_of(whole.dout, axis.part()));
      const auto end = group.traffic();
      const double limit = tolerance_of(of.type);
      EXPECT_EQ(out.scalar_type(), of.type) << text;
      EXPECT_LE(test::difference(out, test::part_of(whole.out, axis.part()), whole.out), limit)
          << text;
      EXPECT_LE(test::difference(x.grad(), test::part_of(whole.dqkv, axis.part()), whole.dqkv),
                2 * limit)
          << text << ", gradient";
      const Bytes bytes = bytes_of(of, kind, ranks);
      EXPECT_EQ((middle - start).sent_bytes, bytes.forward) << text;
      EXPECT_EQ((end - middle).sent_bytes, bytes.backward) << text;
      EXPECT_EQ((end - start).control_bytes, 0u) << text;
    }
  });
}

// Adds the case in all types, with all kinds of masks.
void add_masks(std::vector<Case>& cases, Case of, ContextKind kind, int ranks) {
  const bool drops_double = kind == ContextKind::ring && ranks > 1;
  const std::int64_t tokens = of.tokens(ranks);
  struct Mask {
    std::int64_t window;
    bool documents;
    double rate;
  };
  for (const Mask& mask :
       {Mask{0, false, 0}, Mask{2, false, 0}, Mask{tokens / 2 + 1, false, 0.2}, Mask{0, true, 0},
        Mask{of.chunk + 1, true, 0}, Mask{0, true, 0.4}, Mask{tokens, false, 0}}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble}) {
      of.window = mask.window;
      of.documents = mask.documents;
      of.rate = type == at::kDouble && !drops_double ? 0 : mask.rate;
      of.type = type;
      cases.push_back(of);
    }
  }
}

TEST(ContextParallel, RingMatchesTheWholeSequence) {
  for (const int ranks : {1, 2, 3, 4, 8}) {
    std::vector<Case> cases;
    for (const std::int64_t kv_heads : {6, 2, 1}) {
      add_masks(cases, {.chunk = 5, .kv_heads = kv_heads}, ContextKind::ring, ranks);
    }
    add_masks(cases, {.batch = 1, .chunk = 1, .heads = 4, .kv_heads = 2}, ContextKind::ring, ranks);
    compare(ContextKind::ring, ranks, cases);
  }
}

TEST(ContextParallel, UlyssesMatchesTheWholeSequence) {
  for (const int ranks : {1, 2, 3, 4, 8}) {
    std::vector<Case> cases;
    for (const std::int64_t kv_heads : {24, 12, 6, 4, 2, 1}) {
      if (kv_heads % ranks != 0 && ranks % kv_heads != 0) continue;
      add_masks(cases, {.chunk = 3, .heads = 24, .kv_heads = kv_heads}, ContextKind::ulysses,
                ranks);
    }
    compare(ContextKind::ulysses, ranks, cases);
  }
}

// Chunks longer than a block of queries.
TEST(ContextParallel, LongChunksMatchTheWholeSequence) {
  const Case of = {.batch = 1, .chunk = 150, .heads = 2, .kv_heads = 1, .dim = 8};
  for (const ContextKind kind : {ContextKind::ring, ContextKind::ulysses}) {
    std::vector<Case> cases;
    add_masks(cases, of, kind, 2);
    compare(kind, 2, cases);
  }
}

TEST(ContextParallel, AppliesScaleAndCap) {
  std::vector<Case> cases;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble}) {
    cases.push_back({.kv_heads = 2, .window = 9, .documents = true, .scale = 0.7, .type = type});
    if (type == at::kDouble) continue;  // one process computes capped scores in fp32
    cases.push_back({.kv_heads = 2, .scale = 0.7, .cap = 1.5, .type = type});
    cases.push_back({.window = 9, .documents = true, .cap = 1.5, .type = type});
  }
  cases.push_back({.kv_heads = 2, .rate = 0.3, .cap = 2});
  // Chunks longer than a block of queries.
  cases.push_back({.batch = 1, .chunk = 150, .heads = 2, .kv_heads = 1, .dim = 8, .cap = 1.5});
  compare(ContextKind::ring, 3, cases);
  cases.clear();
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble}) {
    cases.push_back({.window = 9, .documents = true, .scale = 0.7, .type = type});
  }
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble}) {
    cases.push_back({.kv_heads = 3, .window = 7, .scale = 0.7, .cap = 1.5, .type = type});
  }
  cases.push_back({.rate = 0.3, .cap = 2});
  compare(ContextKind::ulysses, 3, cases);
}

// With large scores, the rounding of lse to fp32 limits the precision. The ring must not lose more.
TEST(ContextParallel, RingIsAsPreciseAsOneProcessForScoresOfDifferentMagnitude) {
  const int ranks = 4;
  Whole whole = whole_of({.chunk = 6, .dim = 8}, ranks, 3);
  const std::int64_t tokens = whole.qkv.size(1);
  whole.qkv.narrow(1, tokens / 4, tokens / 4) *= 30;
  const at::Tensor x = whole.qkv.clone().requires_grad_();
  const at::Tensor out = nn::attention(x, 6, 6, whole.options);
  out.backward(whole.dout);
  Whole exact = whole;
  exact.qkv = whole.qkv.to(torch::kDouble);
  exact.dout = whole.dout.to(torch::kDouble);
  expect_by_masks(exact);
  const double error = test::difference(out, exact.out, exact.out);
  const double gradient_error = test::difference(x.grad(), exact.dqkv, exact.dqkv);
  over(ranks, [&](const comm::Group& group) {
    const Axis axis{group};
    const auto mine = [&](const at::Tensor& all) { return test::part_of(all, axis.part()); };
    const at::Tensor y = mine(whole.qkv).detach().clone().requires_grad_();
    const at::Tensor here = attention(axis, y, 6, 6, whole.options, "test");
    here.backward(mine(whole.dout));
    EXPECT_LE(test::difference(here, mine(exact.out), exact.out), 3 * error + 1e-6);
    EXPECT_LE(test::difference(y.grad(), mine(exact.dqkv), exact.dqkv), 3 * gradient_error + 1e-6);
  });
}

TEST(ContextParallel, AttentionOfAnEmptyTensorIsEmpty) {
  for (const ContextKind kind : {ContextKind::ring, ContextKind::ulysses}) {
    over(2, [&](const comm::Group& group) {
      const at::Tensor x = torch::zeros({0, 4, 8 * 4}).requires_grad_();
      const at::Tensor out = attention({group, kind}, x, 4, 2, {}, "test");
      EXPECT_EQ(out.sizes(), at::IntArrayRef({0, 4, 16}));
      out.sum().backward();
      EXPECT_EQ(x.grad().sizes(), x.sizes());
    });
  }
}

// Keys of other ranks are not kept for backward.
TEST(ContextParallel, RingKeepsItsOwnTokensOnly) {
  memory::install();
  over(4, [&](const comm::Group& group) {
    const std::int64_t tokens = 64, heads = 4, kv_heads = 2, dim = 16;
    const at::Tensor x = torch::randn({1, tokens, (heads + 2 * kv_heads) * dim}).requires_grad_();
    const auto ledger = std::make_shared<memory::Ledger>();
    const memory::OwnerScope owner(ledger);
    const at::Tensor out = attention({group}, x, heads, kv_heads, {}, "test");
    const auto kept = static_cast<std::int64_t>(ledger->counts().total.now);
    EXPECT_GE(kept, 4 * (tokens * heads * dim + tokens * heads));
    EXPECT_LE(kept, 4 * (tokens * heads * dim + tokens * heads) + 256);
    out.sum().backward();
  });
}

template <typename Body>
std::string usage_error_of(const Body& body) {
  try {
    body();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

// Returns the message of the UsageError that attention() throws on the first of two ranks.
std::string message_of(ContextKind kind, const at::Tensor& qkv, std::int64_t heads,
                       std::int64_t kv_heads, const nn::AttentionOptions& options = {}) {
  std::string message;
  over(2, [&](const comm::Group& group) {
    const std::string text = usage_error_of([&] {
      attention({group, kind}, qkv, heads, kv_heads, options, "blocks.0");
    });
    if (group.rank() == 0) message = text;
  });
  return message;
}

TEST(ContextParallel, RejectsWhatDoesNotFit) {
  const ContextKind ring = ContextKind::ring, ulysses = ContextKind::ulysses;
  const at::Tensor x = torch::zeros({1, 4, 5 * 4});  // 3 heads and 1 KV head
  EXPECT_EQ(message_of(ring, torch::zeros({1, 4, 19}), 3, 1),
            "Context parallelism of \"blocks.0\": a tensor with 3 dims, the last of size 19, for 3 "
            "heads and 1 KV heads. The tensor must be [batch, tokens / ranks, (heads + 2 · KV "
            "heads) · head width], and the heads a multiple of the KV heads.");
  EXPECT_TRUE(contains(message_of(ring, torch::zeros({4, 20}), 3, 1), "a tensor with 2 dims"));
  EXPECT_TRUE(contains(message_of(ring, torch::zeros({1, 4, 28}), 3, 2), "3 heads and 2 KV heads"));
  EXPECT_EQ(message_of(ring, torch::zeros({1, 5, 20}), 3, 1),
            "Context parallelism of \"blocks.0\": 5 tokens on this rank. The number must be even: "
            "each rank holds two chunks of equal length.");
  nn::AttentionOptions options;
  options.document_starts = torch::zeros({1, 4}, torch::kInt);  // of this rank only
  EXPECT_EQ(message_of(ulysses, x, 3, 1, options),
            "Context parallelism of \"blocks.0\": document starts of type Int and size [1, 4] on "
            "cpu. They must be those of whole rows, contiguous int32 [1, 8] on cpu.");
  options.document_starts = torch::zeros({1, 8}, torch::kLong);
  EXPECT_TRUE(contains(message_of(ring, x, 3, 1, options), "document starts of type Long"));
  options = {};
  options.window = -1;
  EXPECT_EQ(message_of(ring, x, 3, 1, options),
            "Context parallelism of \"blocks.0\": window -1 and dropout 0. The window must not be "
            "negative, and dropout must be in [0, 1).");
  options = {};
  options.dropout.rate = 1;
  EXPECT_TRUE(contains(message_of(ring, x, 3, 1, options), "dropout 1"));
  EXPECT_EQ(message_of(ContextKind::automatic, x, 3, 1),
            "Context parallelism of \"blocks.0\": the kind is auto. It must be ring or ulysses "
            "here.");
  EXPECT_EQ(message_of(ulysses, x, 3, 1),
            "Context parallelism of \"blocks.0\": 3 heads and 1 KV heads over 2 ranks with "
            "--cp-kind ulysses. The ranks must divide the heads, and divide the KV heads or be a "
            "multiple of them. Use another --cp or --cp-kind ring.");
  EXPECT_TRUE(contains(message_of(ulysses, torch::zeros({1, 4, 12 * 4}), 6, 3),
                       "6 heads and 3 KV heads over 2 ranks"));
  EXPECT_EQ(
      message_of(ring, torch::zeros({1, 4, 20}, torch::kMeta), 3, 1),
      "Context parallelism of \"blocks.0\": the tensor is on meta. --cp-kind ring runs on the "
      "CPU and on CUDA devices. Use --cp-kind ulysses.");
}

TEST(ContextParallel, RejectsSecondDerivatives) {
  for (const ContextKind kind : {ContextKind::ring, ContextKind::ulysses}) {
    over(2, [&](const comm::Group& group) {
      const at::Tensor x = torch::randn({1, 4, 3 * 2 * 4}).requires_grad_();
      const at::Tensor out = attention({group, kind}, x, 2, 2, {}, "test");
      EXPECT_TRUE(contains(usage_error_of([&] {
                             out.backward(torch::ones_like(out), /*retain_graph=*/true,
                                          /*create_graph=*/true);
                           }),
                           "Backward of context-parallel attention with create_graph"));
    });
  }
}

}  // namespace
}  // namespace tessera::context_parallel
