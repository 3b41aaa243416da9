// Compares the layers on 1, 2 and 4 ranks with a single rank.

#include "tessera/tensor_parallel/layers.h"

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/nn/matmul_precision.h"
#include "tessera/nn/ops.h"
#include "tessera/tensor_parallel/fused_linear.h"
#include "tests/tensor_parallel/ranks.h"

namespace tessera::tensor_parallel {
namespace {

using test::expect_close;
using test::random;

struct Net : torch::nn::Module {
  virtual at::Tensor run(const at::Tensor& x) = 0;
};
using Make = std::function<std::shared_ptr<Net>(const Axis&)>;

struct LayerRun {
  at::Tensor y, dx;
  test::Named grads;
  std::vector<ParamSpec> specs;
  comm::TrafficCounts forward, backward;
};

// Returns y and all gradients of a net on these ranks, combined. x is a sequence [B, T, C]; a
// sequence-parallel net takes and returns shards of it.
LayerRun run(int tp, bool sequence, const Make& make, const at::Tensor& x, bool cut_input = true) {
  std::vector<LayerRun> ranks = test::each_rank<LayerRun>(tp, [&](const comm::Group& group) {
    const Axis axis{group, sequence};
    const auto net = make(axis);
    initialize(*net, axis.axes(), axis.coordinate(), 5, 0.3);
    {
      const at::NoGradGuard no_grad;
      for (auto& item : net->named_parameters()) {
        if (item.value().dim() == 1) item.value().add_(0.5);
      }
    }
    const auto part = [&](const at::Tensor& t) {
      const std::int64_t n = t.size(1) / tp;
      return sequence ? t.narrow(1, group.rank() * n, n).contiguous() : t.clone();
    };
    at::Tensor in = cut_input ? part(x) : x;
    if (in.is_floating_point()) in.requires_grad_();
    const auto start = group.traffic();
    const at::Tensor y = net->run(in);
    const auto middle = group.traffic();
    if (y.dim() == 0) {
      y.backward();
    } else {
      std::vector<std::int64_t> sizes = y.sizes().vec();
      if (sequence) sizes[1] *= tp;
      y.backward(part(random(sizes, 9)));
    }
    return LayerRun{y.detach(),       in.grad(),      test::gradients_of(*net),
                    find_specs(*net), middle - start, group.traffic() - middle};
  });
  LayerRun whole = ranks[0];
  std::vector<at::Tensor> ys, dxs;
  std::vector<test::Named> grads;
  for (const LayerRun& ran : ranks) {
    EXPECT_EQ(ran.specs, whole.specs);
    EXPECT_EQ(ran.forward.sent_bytes, whole.forward.sent_bytes);
    EXPECT_EQ(ran.backward.sent_bytes, whole.backward.sent_bytes);
    ys.push_back(ran.y);
    dxs.push_back(ran.dx);
    grads.push_back(ran.grads);
    if (!sequence || ran.y.dim() == 0) {
      EXPECT_TRUE(ran.y.equal(whole.y));
      if (ran.dx.defined() && !sequence) {
        EXPECT_TRUE(ran.dx.equal(whole.dx));
      }
    }
  }
  if (sequence && whole.y.dim() > 0) whole.y = at::cat(ys, 1);
  if (sequence && whole.dx.defined()) whole.dx = at::cat(dxs, 1);
  whole.grads = test::wholes_of(whole.specs, grads);
  return whole;
}

void compare(const Make& make, const at::Tensor& x, const std::string& what,
             bool cut_input = true) {
  const LayerRun alone = run(1, false, make, x, cut_input);
  EXPECT_EQ(alone.forward.sent_bytes + alone.backward.sent_bytes, 0u);
  test::separate_and_fused([&](bool fused) {
    for (const int tp : {1, 2, 4}) {
      for (const bool sequence : {false, true}) {
        const LayerRun ran = run(tp, sequence, make, x, cut_input);
        const std::string name =
            str(what, " tp ", tp, sequence ? " sequence" : "", fused ? " fused" : "");
        ASSERT_EQ(ran.specs, alone.specs) << name;
        expect_close(ran.y, alone.y, name);
        if (alone.dx.defined()) expect_close(ran.dx, alone.dx, name + " dx");
        for (const auto& [key, grad] : alone.grads) {
          expect_close(ran.grads.at(key), grad, name + key);
        }
      }
    }
  });
}

struct Mlp : Net {
  Mlp(const Axis& axis, std::int64_t in, std::int64_t wide, bool bias)
      : up(register_module(
            "up", ColumnParallelLinear(axis, LinearOptions{.in = in, .out = wide, .bias = bias}))),
        down(register_module(
            "down", RowParallelLinear(axis, LinearOptions{.in = wide, .out = in, .bias = bias}))) {}
  at::Tensor run(const at::Tensor& x) override {
    return down->forward(up->bias.defined() ? up->forward_gelu(x) : up->forward(x));
  }
  ColumnParallelLinear up;
  RowParallelLinear down;
};

TEST(Layers, ColumnThenRowMatchesThePairOfLinears) {
  struct Size {
    std::int64_t batch, tokens, in, wide;
  };
  for (const Size& s : {Size{1, 4, 3, 4}, Size{3, 8, 5, 12}, Size{2, 12, 16, 64}}) {
    for (const bool bias : {true, false}) {
      const Make make = [&](const Axis& axis) {
        return std::make_shared<Mlp>(axis, s.in, s.wide, bias);
      };
      compare(make, random({s.batch, s.tokens, s.in}, 3), str("mlp ", s.wide, " ", bias));
      for (const int tp : {2, 4}) {
        const std::int64_t n = s.batch * s.tokens * s.in;
        for (const bool sequence : {false, true}) {
          const LayerRun ran = run(tp, sequence, make, random({s.batch, s.tokens, s.in}, 3));
          const auto all_reduce =
              static_cast<std::uint64_t>(2 * (tp - 1) * ((n + tp - 1) / tp) * 4);
          EXPECT_EQ(ran.forward.sent_bytes, all_reduce);
          EXPECT_EQ(ran.backward.sent_bytes, all_reduce);
          const auto calls = [&](comm::Op op) {
            const auto i = static_cast<std::size_t>(op);
            return ran.forward.calls[i] + ran.backward.calls[i];
          };
          EXPECT_EQ(calls(comm::Op::all_reduce), sequence ? 0u : 2u);
          EXPECT_EQ(calls(comm::Op::all_gather), sequence ? 2u : 0u);
          EXPECT_EQ(calls(comm::Op::reduce_scatter), sequence ? 2u : 0u);
        }
        test::separate_and_fused([&](bool fused) {  // backward gathers the sequence again
          const LayerRun ran = run(tp, true, make, random({s.batch, s.tokens, s.in}, 3));
          const auto all_reduce =
              static_cast<std::uint64_t>(2 * (tp - 1) * ((n + tp - 1) / tp) * 4);
          EXPECT_EQ(ran.forward.sent_bytes, all_reduce);
          EXPECT_EQ(ran.backward.sent_bytes, all_reduce + (fused ? all_reduce / 2 : 0));
        });
      }
    }
  }
}

// Linears with the operations around them, as in a block: norms of x and of x plus a branch, an
// activation function, and a residual.
struct FusedBlock : Net {
  using Kind = nn::Operand::Kind;
  FusedBlock(const Axis& a, std::int64_t width, bool bias, Kind k)
      : axis(a),
        kind(k),
        norm1(make_norm("norm1", width, bias)),
        norm2(make_norm("norm2", width, bias)) {
    const std::int64_t wide = 2 * width, gates = kind == Kind::swiglu ? 2 : 1;
    const auto column = [&](const char* name, std::int64_t out, std::vector<Outputs> outputs = {}) {
      return register_module(
          name,
          ColumnParallelLinear(
              axis, LinearOptions{
                        .in = width, .out = out, .bias = bias, .label = name, .outputs = outputs}));
    };
    const auto row = [&](const char* name, std::int64_t in) {
      return register_module(
          name, RowParallelLinear(
                    axis, LinearOptions{.in = in, .out = width, .bias = bias, .label = name}));
    };
    first = column("first", wide);
    second = row("second", wide);
    up = column("up", gates * wide,
                gates == 2 ? std::vector<Outputs>{{wide}, {wide}} : std::vector<Outputs>{});
    down = row("down", wide);
  }
  nn::NormWeights make_norm(const char* name, std::int64_t width, bool bias) {
    nn::NormWeights norm;
    norm.weight = register_parameter(str(name, "_weight"), torch::ones({width}));
    if (bias) norm.bias = register_parameter(str(name, "_bias"), torch::zeros({width}));
    return norm;
  }
  nn::NormWeights in_use(const nn::NormWeights& norm) const {
    std::vector<at::Tensor> params = {norm.weight};
    if (norm.bias.defined()) params.push_back(norm.bias);
    params = sequence_parallel_params(axis, params, "norm");
    return {params[0], norm.bias.defined() ? params[1] : at::Tensor(), norm.eps};
  }
  at::Tensor run(const at::Tensor& in) override {
    const auto [wide, x] =
        first->forward_fused({.x = in, .kind = Kind::norm, .norm = in_use(norm1)});
    const at::Tensor branch = second->forward_fused(between(wide));
    const auto [more, sum] = up->forward_fused(
        {.x = x, .kind = Kind::norm, .norm = in_use(norm2), .branch = branch}, kind != Kind::gelu);
    FusedInput last{.x = more, .kind = kind};
    if (kind == Kind::gelu) last.bias = up->bias;
    return down->forward_fused(last, sum);
  }
  // Input of the second linear.
  virtual FusedInput between(const at::Tensor& wide) const { return {.x = wide.sin()}; }
  Axis axis;
  Kind kind;
  nn::NormWeights norm1, norm2;
  ColumnParallelLinear first{nullptr}, up{nullptr};
  RowParallelLinear second{nullptr}, down{nullptr};
};

TEST(Layers, FusedLinearsMatchSeparateOperations) {
  using Kind = nn::Operand::Kind;
  for (const bool bias : {true, false}) {
    for (const Kind kind : {Kind::gelu, Kind::swiglu, Kind::plain}) {
      const Make make = [&](const Axis& axis) {
        return std::make_shared<FusedBlock>(axis, 20, bias, kind);
      };
      compare(make, random({3, 8, 20}, 3), str("kind ", static_cast<int>(kind), " bias ", bias));
    }
  }
}

// A sine of large values would amplify rounding.
struct SmoothBlock : FusedBlock {
  using FusedBlock::FusedBlock;
  FusedInput between(const at::Tensor& wide) const override {
    return {.x = wide, .kind = Kind::gelu};
  }
};

// In fp8 every linear of the block rounds its inputs; the mesh only changes their scales.
TEST(Layers, Fp8LinearsMatchWithinRoundingOnEveryMesh) {
  using Kind = nn::Operand::Kind;
  const nn::PrecisionScope fp8(Precision::fp8);
  const auto error = [](const at::Tensor& got, const at::Tensor& exact) {
    return ((got - exact).norm() / exact.norm()).item<double>();
  };
  for (const Kind kind : {Kind::gelu, Kind::swiglu}) {
    const Make make = [&](const Axis& axis) {
      return std::make_shared<SmoothBlock>(axis, 64, /*bias=*/true, kind);
    };
    const at::Tensor x = random({3, 8, 64}, 3);
    const LayerRun exact = run(1, false, make, x);  // separate operations, in fp32
    test::separate_and_fused([&](bool fused) {
      if (!fused) return;
      for (const int tp : {1, 2, 4}) {
        for (const bool sequence : {false, true}) {
          const LayerRun ran = run(tp, sequence, make, x);
          const std::string name = str("kind ", static_cast<int>(kind), " tp ", tp, " ", sequence);
          EXPECT_GT(error(ran.y, exact.y), 1e-3) << name << ": not in fp8";
          EXPECT_LT(error(ran.y, exact.y), 0.1) << name;
          EXPECT_LT(error(ran.dx, exact.dx), 0.2) << name;
          for (const auto& [key, grad] : exact.grads) {
            EXPECT_LT(error(ran.grads.at(key), grad), 0.3) << name << key;
          }
        }
      }
    });
  }
}

// The shards on each rank decide, because every rank rounds its own.
TEST(Layers, Fp8RejectsDimensionsThatTensorCoresCannotMultiply) {
  const nn::PrecisionScope fp8(Precision::fp8);
  const Make make = [&](const Axis& axis) {
    return std::make_shared<FusedBlock>(axis, 24, true, nn::Operand::Kind::gelu);
  };
  test::separate_and_fused([&](bool fused) {
    if (!fused) return;
    try {
      run(1, false, make, random({1, 4, 24}, 3));
      ADD_FAILURE() << "a width of 24 was accepted";
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find("first is [48, 24]"), std::string::npos)
          << error.what();
    }
  });
}

struct Heads : Net {
  Heads(const Axis& axis, std::int64_t heads, std::int64_t kv_heads, std::int64_t dim, bool bias)
      : own_heads(heads / axis.size()),
        own_kv(std::max<std::int64_t>(1, kv_heads / axis.size())),
        qkv(register_module(
            "qkv", ColumnParallelLinear(
                       axis, LinearOptions{.in = heads * dim,
                                           .out = (heads + 2 * kv_heads) * dim,
                                           .bias = bias,
                                           .outputs = {{heads * dim, heads},
                                                       {kv_heads * dim, kv_heads, true},
                                                       {kv_heads * dim, kv_heads, true}}}))),
        proj(register_module("proj", RowParallelLinear(axis, LinearOptions{.in = heads * dim,
                                                                           .out = heads * dim,
                                                                           .bias = bias}))) {}
  at::Tensor run(const at::Tensor& x) override {
    return proj->forward(nn::attention(qkv->forward(x), own_heads, own_kv));
  }
  std::int64_t own_heads, own_kv;
  ColumnParallelLinear qkv;
  RowParallelLinear proj;
};

TEST(Layers, GroupedQueriesMatchWithSharedKeys) {
  for (const std::int64_t kv_heads : {1, 2, 4, 8}) {
    for (const bool bias : {false, true}) {
      const std::int64_t dim = 6;
      const Make make = [&](const Axis& axis) {
        return std::make_shared<Heads>(axis, 8, kv_heads, dim, bias);
      };
      const at::Tensor x = random({2, 12, 48}, 3);
      compare(make, x, str("heads ", kv_heads));
      // Shared groups cost one all-reduce of the weights of keys and values.
      const std::int64_t n = 2 * 12 * 48, kv = 2 * kv_heads * dim * (48 + (bias ? 1 : 0));
      const LayerRun ran = run(4, false, make, x);
      const auto all_reduce = [](std::int64_t m) {
        return static_cast<std::uint64_t>(2 * 3 * ((m + 3) / 4) * 4);
      };
      EXPECT_EQ(ran.backward.sent_bytes, all_reduce(n) + (kv_heads < 4 ? all_reduce(kv) : 0));
    }
  }
}

// The table is also the head (tied weights).
struct Tied : Net {
  Tied(const Axis& a, std::int64_t rows, std::int64_t width, at::Tensor y)
      : axis(a),
        targets(std::move(y)),
        table(register_module(
            "table", VocabParallelEmbedding(a, EmbeddingOptions{.rows = rows, .width = width}))),
        position(register_parameter("position", torch::zeros({targets.size(1), width}))) {}
  at::Tensor run(const at::Tensor& ids) override {
    const at::Tensor x = table->forward(ids, position);
    return vocab_parallel_cross_entropy(axis, x, table->weight, targets, "head") * 0.3;
  }
  Axis axis;
  at::Tensor targets;
  VocabParallelEmbedding table;
  at::Tensor position;
};

TEST(Layers, EmbeddingAndLossNeverGatherTheVocabulary) {
  struct Size {
    std::int64_t batch, tokens, rows, width;
  };
  for (const Size& s : {Size{1, 4, 4, 3}, Size{3, 8, 20, 5}, Size{2, 12, 64, 16}}) {
    const at::Tensor ids = torch::arange(s.batch * s.tokens, torch::kLong)
                               .mul(7)
                               .remainder(s.rows)
                               .view({s.batch, s.tokens});
    at::Tensor targets = ids.mul(3).add(1).remainder(s.rows);
    targets[0][1] = -1;
    const Make make = [&](const Axis& axis) {
      return std::make_shared<Tied>(axis, s.rows, s.width, targets);
    };
    compare(make, ids, str("tied ", s.rows), /*cut_input=*/false);
    for (const int tp : {2, 4}) {
      for (const bool sequence : {false, true}) {
        const LayerRun ran = run(tp, sequence, make, ids, false);
        const std::int64_t n = s.batch * s.tokens, wide = n * s.width;
        const auto ring = [&](std::int64_t m) {
          return static_cast<std::uint64_t>((tp - 1) * ((m + tp - 1) / tp) * 4);
        };
        const std::uint64_t loss = 2 * ring(n) + 2 * ring(2 * n);
        EXPECT_EQ(ran.forward.sent_bytes, 2 * ring(wide) + loss);
        EXPECT_EQ(ran.backward.sent_bytes, 2 * ring(wide));
      }
    }
  }
}

TEST(Layers, LossHandlesLargeLogitsAndNoTargets) {
  const at::Tensor h = random({6, 5}, 1) * 100, w = random({8, 5}, 2) * 10;
  const at::Tensor targets = torch::tensor({0, 7, -1, 3, 4, -1}, torch::kLong);
  const at::Tensor alone = nn::linear_cross_entropy(h, w, targets);
  test::over(4, [&](const comm::Group& group) {
    const at::Tensor own = w.narrow(0, 2 * group.rank(), 2);
    expect_close(vocab_parallel_cross_entropy({group}, h, own, targets, "loss"), alone, "large");
    const at::Tensor none = torch::full({6}, -1, torch::kLong);
    EXPECT_EQ(vocab_parallel_cross_entropy({group}, h, own, none, "loss").item<float>(), 0.0f);
    EXPECT_THROW(vocab_parallel_cross_entropy({group}, h, own, targets + 1, "loss"), UsageError);
  });
}

TEST(Layers, RejectSizesThatTheRanksDoNotDivide) {
  test::over(4, [](const comm::Group& group) {
    const Axis axis{group};
    EXPECT_THROW(ColumnParallelLinear(axis, LinearOptions{.in = 4, .out = 6}), UsageError);
    EXPECT_THROW(RowParallelLinear(axis, LinearOptions{.in = 6, .out = 4}), UsageError);
    EXPECT_THROW(
        ColumnParallelLinear(axis, LinearOptions{.in = 4, .out = 8, .outputs = {{8}}, .pad_to = 2}),
        UsageError);
    // Queries are never shared, and keys only evenly.
    LinearOptions heads{.in = 4, .out = 12, .outputs = {{8, 2}, {2, 1, true}, {2, 1, true}}};
    EXPECT_THROW(ColumnParallelLinear(axis, heads), UsageError);
    heads.outputs = {{6, 3, true}, {6, 3, true}};
    EXPECT_THROW(ColumnParallelLinear(axis, heads), UsageError);
    heads.outputs = {{4, 4}};
    EXPECT_THROW(ColumnParallelLinear(axis, heads), UsageError);  // they do not add up to 12
    VocabParallelEmbedding table(axis, EmbeddingOptions{.rows = 8, .width = 4});
    EXPECT_THROW(table->forward(torch::full({1, 2}, 8, torch::kLong)), UsageError);
  });
}

}  // namespace
}  // namespace tessera::tensor_parallel
