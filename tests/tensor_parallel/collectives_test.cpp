// Compares the functions with gradients with their definitions.

#include "tessera/tensor_parallel/collectives.h"

#include <torch/csrc/autograd/autograd.h>

#include "tessera/core/errors.h"
#include "tests/tensor_parallel/ranks.h"

namespace tessera::tensor_parallel {
namespace {

using test::each_rank;
using test::expect_close;
using test::random;

using Function =
    std::function<at::Tensor(const comm::Group&, const at::Tensor&, const std::string&)>;

struct Ran {
  at::Tensor y, dx;
  std::uint64_t forward = 0, backward = 0, control = 0;
};

// Calls f with a different x and a different dy on each rank.
std::vector<Ran> run(int tp, const Function& f, at::IntArrayRef x_sizes, at::IntArrayRef y_sizes) {
  return each_rank<Ran>(tp, [&](const comm::Group& group) {
    const auto r = static_cast<std::uint64_t>(group.rank());
    const at::Tensor x = random(x_sizes, 1 + r).requires_grad_();
    Ran ran;
    const auto start = group.traffic();
    const at::Tensor y = f(group, x, "test");
    const auto middle = group.traffic();
    EXPECT_EQ(y.sizes(), y_sizes);
    y.backward(random(y_sizes, 100 + r));
    ran.y = y.detach();
    ran.dx = x.grad();
    ran.forward = (middle - start).sent_bytes;
    ran.backward = (group.traffic() - middle).sent_bytes;
    ran.control = (group.traffic() - start).control_bytes;
    return ran;
  });
}

at::Tensor total(int tp, at::IntArrayRef sizes, std::uint64_t first) {
  at::Tensor sum = torch::zeros(sizes);
  for (int r = 0; r < tp; ++r) sum += random(sizes, first + static_cast<std::uint64_t>(r));
  return sum;
}
at::Tensor all_of(int tp, at::IntArrayRef sizes, std::uint64_t first, std::int64_t dim) {
  std::vector<at::Tensor> parts;
  for (int r = 0; r < tp; ++r)
    parts.push_back(random(sizes, first + static_cast<std::uint64_t>(r)));
  return at::cat(parts, dim);
}

// Batches of zero, one and several sequences, of 4 and 12 tokens.
const std::vector<std::vector<std::int64_t>> kShapes = {
    {4, 3}, {1, 12, 5}, {3, 4, 7}, {2, 2, 12, 1}};

// Bytes of a reduce-scatter or an all-gather of fp32.
std::uint64_t ring(std::int64_t elements, int tp) {
  return static_cast<std::uint64_t>((tp - 1) * ((elements + tp - 1) / tp)) * 4;
}

TEST(Functions, MatchTheirDefinitionsAndSendTheDocumentedBytes) {
  const Function copy = [](const comm::Group& g, const at::Tensor& x, const std::string& l) {
    return copy_to(g, x, l);
  };
  for (const int tp : {1, 2, 4}) {
    for (const auto& sizes : kShapes) {
      const std::int64_t n = c10::multiply_integers(sizes);
      const std::int64_t tokens = sizes[sizes.size() - 2];
      std::vector<std::int64_t> part = sizes, wide = sizes;
      part[part.size() - 2] /= tp;
      wide.back() *= tp;
      const auto mine = [&](const at::Tensor& x, int r) {
        return x.narrow(-2, r * tokens / tp, tokens / tp);
      };
      const auto at_rank = [](std::uint64_t first, int r) {
        return first + static_cast<std::uint64_t>(r);
      };
      const auto copied = run(tp, copy, sizes, sizes);
      const auto reduced = run(tp, reduce_from, sizes, sizes);
      const auto gathered = run(tp, gather_sequence, part, sizes);
      const auto scattered = run(tp, reduce_scatter_sequence, sizes, part);
      const auto columns = run(tp, gather_columns, sizes, wide);
      for (int r = 0; r < tp; ++r) {
        const auto i = static_cast<std::size_t>(r);
        expect_close(copied[i].y, random(sizes, at_rank(1, r)), "copy");
        expect_close(copied[i].dx, total(tp, sizes, 100), "copy dx");
        expect_close(reduced[i].y, total(tp, sizes, 1), "reduce");
        expect_close(reduced[i].dx, random(sizes, at_rank(100, r)), "reduce dx");
        expect_close(gathered[i].y, all_of(tp, part, 1, -2), "gather");
        expect_close(gathered[i].dx, mine(total(tp, sizes, 100), r), "gather dx");
        expect_close(scattered[i].y, mine(total(tp, sizes, 1), r), "scatter");
        expect_close(scattered[i].dx, all_of(tp, part, 100, -2), "scatter dx");
        expect_close(columns[i].y, all_of(tp, sizes, 1, -1), "columns");
        expect_close(columns[i].dx,
                     random(wide, at_rank(100, r)).narrow(-1, r * sizes.back(), sizes.back()),
                     "columns dx");
        const std::uint64_t once = ring(n, tp), whole = ring(n * tp, tp);
        EXPECT_EQ(copied[i].forward, 0u);
        EXPECT_EQ(copied[i].backward, 2 * once);
        EXPECT_EQ(reduced[i].forward, 2 * once);
        EXPECT_EQ(reduced[i].backward, 0u);
        EXPECT_EQ(gathered[i].forward, once);
        EXPECT_EQ(gathered[i].backward, once);
        EXPECT_EQ(scattered[i].forward, once);
        EXPECT_EQ(scattered[i].backward, once);
        EXPECT_EQ(columns[i].forward, whole);
        EXPECT_EQ(columns[i].backward, 0u);
        for (const auto* ran : {&copied[i], &reduced[i], &gathered[i], &scattered[i]}) {
          EXPECT_EQ(ran->control, 0u);
        }
      }
    }
  }
}

TEST(Functions, SeveralTensorsUseOneAllReduce) {
  test::over(3, [](const comm::Group& group) {
    const auto r = static_cast<std::uint64_t>(group.rank());
    const at::Tensor a = random({5}, r).requires_grad_(), b = random({2, 3}, r).requires_grad_();
    const auto same = copy_to(group, std::vector<at::Tensor>{a, b}, "both");
    EXPECT_TRUE(same[0].equal(a) && same[1].equal(b));
    const auto before = group.traffic();
    (same[0].sum() * (1.0 + group.rank()) + (same[1] * same[1]).sum()).backward();
    EXPECT_EQ((group.traffic() - before).sent_bytes, 2 * ring(11, 3));
    EXPECT_TRUE(at::allclose(a.grad(), torch::full({5}, 6.0)));
    expect_close(b.grad(), 2 * total(3, {2, 3}, 0), "b");
    EXPECT_THROW(copy_to(group, {a, b.to(torch::kDouble)}, "mixed"), UsageError);
  });
}

TEST(Functions, AddOnceAddsTheBiasOnce) {
  for (const int tp : {1, 2, 4}) {
    test::over(tp, [&](const comm::Group& group) {
      const auto r = static_cast<std::uint64_t>(group.rank());
      const at::Tensor x = random({2, 4, 3}, r).requires_grad_();
      const at::Tensor b = random({4, 3}, 50).requires_grad_();
      const at::Tensor y = reduce_from(group, add_once(group, x, b), "once");
      expect_close(y.detach(), total(tp, {2, 4, 3}, 0) + b.detach(), "sum");
      const at::Tensor dy = random({2, 4, 3}, 77);
      y.backward(dy);
      expect_close(x.grad(), dy, "dx");
      expect_close(b.grad(), dy.sum(0), "db");
    });
  }
}

// A bias kept in fp32 with activations in bf16.
TEST(Functions, AddOnceKeepsTheTypeOfTheSummands) {
  for (const int tp : {1, 2}) {
    test::over(tp, [&](const comm::Group& group) {
      const at::Tensor x = torch::ones({2, 3}).to(torch::kBFloat16).requires_grad_();
      const at::Tensor b = torch::full({3}, 2.0f).requires_grad_();
      const at::Tensor once = add_once(group, x, b);
      EXPECT_EQ(once.scalar_type(), torch::kBFloat16);
      const at::Tensor y = reduce_from(group, once, "once");
      EXPECT_TRUE(at::equal(y.detach().to(torch::kFloat), torch::full({2, 3}, tp + 2.0f)));
      y.sum().backward();
      EXPECT_TRUE(at::equal(b.grad(), torch::full({3}, 2.0f)));
    });
  }
}

// A second derivative would lack the contributions of the other ranks.
TEST(Functions, RejectSecondDerivatives) {
  test::over(2, [](const comm::Group& group) {
    const at::Tensor x = torch::ones({3}).requires_grad_();
    const at::Tensor y = copy_to(group, x, "x").pow(3).sum();
    EXPECT_THROW(torch::autograd::grad({y}, {x}, {}, true, /*create_graph=*/true), UsageError);
  });
}

TEST(Functions, RejectSequencesThatTheRanksDoNotDivide) {
  test::over(2, [](const comm::Group& group) {
    EXPECT_THROW(reduce_scatter_sequence(group, torch::zeros({1, 3, 2}), "x"), UsageError);
    EXPECT_THROW(gather_sequence(group, torch::zeros({5}), "x"), UsageError);
  });
}

}  // namespace
}  // namespace tessera::tensor_parallel
