// Compares overlapped products and collectives with sequential ones.

#include "tessera/tensor_parallel/overlap.h"

#include "tessera/core/text.h"
#include "tessera/nn/deferred.h"
#include "tessera/nn/ops.h"
#include "tessera/nn/recompute.h"
#include "tessera/tensor_parallel/layers.h"
#include "tests/tensor_parallel/ranks.h"

namespace tessera::tensor_parallel {
namespace {

using test::expect_close;
using test::random;

struct Case {
  int tp = 2;
  std::int64_t batch = 1, tokens = 8, in = 6, wide = 16;
  bool sequence = false, bias = true, gelu = true;
  at::ScalarType type = at::kFloat;
  nn::Recompute recompute = nn::Recompute::none;
  bool deferred = false;

  std::string name() const {
    return str("tp ", tp, ", ", batch, " × ", tokens, sequence ? " sequence" : "",
               bias ? " bias" : "", gelu ? " gelu " : " ", c10::toString(type), " ",
               nn::name(recompute), deferred ? " deferred" : "");
  }
};

struct OverlapRun {
  std::vector<at::Tensor> values;  // y, dx and the gradients of the parameters
  std::uint64_t sent = 0, control = 0, calls = 0;
};

// A column-parallel and a row-parallel linear on one rank.
OverlapRun run(const Case& c, const comm::Group& group, bool overlap) {
  const Axis axis{group, c.sequence, overlap};
  LinearOptions options;
  options.in = c.in;
  options.out = c.wide;
  options.bias = c.bias;
  options.tensors = at::TensorOptions(c.type);
  ColumnParallelLinear up(axis, options);
  options.in = c.wide;
  options.out = c.in;
  RowParallelLinear down(axis, options);
  initialize(*up, axis.axes(), axis.coordinate(), 5, 0.3);
  initialize(*down, axis.axes(), axis.coordinate(), 6, 0.3);
  const std::int64_t own = c.tokens / c.tp;
  const auto part = [&](const at::Tensor& whole) {
    return (c.sequence ? whole.narrow(1, group.rank() * own, own) : whole).contiguous();
  };
  at::Tensor x = part(random({c.batch, c.tokens, c.in}, 3).to(c.type)).requires_grad_();
  const auto later = c10::make_intrusive<nn::DeferredGradients>();
  const auto before = group.traffic();
  at::Tensor y;
  {
    const nn::DeferredGradients::Scope scope(c.deferred ? later : nullptr);
    y = nn::recompute(
        c.recompute,
        [=](const at::Tensor& in) mutable {
          return down->forward(c.gelu ? up->forward_gelu(in) : up->forward(in));
        },
        x);
  }
  y.backward(part(random({c.batch, c.tokens, c.in}, 9).to(c.type)));
  if (c.deferred) {
    EXPECT_EQ(later->pushed(), 2);
    later->run();
  }
  OverlapRun ran{{y.detach(), x.grad()}};
  for (const auto& parameter : up->parameters()) ran.values.push_back(parameter.grad());
  for (const auto& parameter : down->parameters()) ran.values.push_back(parameter.grad());
  ran.sent = (group.traffic() - before).sent_bytes;
  ran.control = (group.traffic() - before).control_bytes;
  for (const std::uint64_t calls : (group.traffic() - before).calls) ran.calls += calls;
  return ran;
}

void compare(const Case& c) {
  test::over(c.tp, [&](const comm::Group& group) {
    const OverlapRun plain = run(c, group, false), overlapped = run(c, group, true);
    EXPECT_EQ(overlapped.sent, plain.sent) << c.name();
    EXPECT_EQ(overlapped.control, 0u) << c.name();
    ASSERT_EQ(overlapped.values.size(), plain.values.size()) << c.name();
    for (std::size_t i = 0; i < plain.values.size(); ++i) {
      // Splitting a product differently may change the order of additions; bf16 then occasionally
      // rounds the other way.
      expect_close(overlapped.values[i].to(at::kFloat), plain.values[i].to(at::kFloat),
                   str(c.name(), ", value ", i), c.type == at::kFloat ? 1e-6 : 1e-2);
    }
  });
}

// Large results are sent in four pieces, small ones in one.
TEST(Overlap, SplitsLargeResultsIntoSeveralCalls) {
  for (const bool sequence : {false, true}) {
    for (const auto& [tokens, pieces] : {std::pair<std::int64_t, std::uint64_t>{520, 4}, {8, 1}}) {
      test::over(2, [&, t = tokens, p = pieces](const comm::Group& group) {
        const Case c{.tokens = t, .sequence = sequence};
        const std::uint64_t others = sequence ? 3 : 1;  // other calls of forward and backward
        EXPECT_EQ(run(c, group, false).calls, others + 1) << c.name();
        EXPECT_EQ(run(c, group, true).calls, others + p) << c.name();
      });
    }
  }
}

TEST(Overlap, MatchesSequentialExecution) {
  for (const int tp : {2, 4}) {
    for (const std::int64_t batch : {1, 3}) {
      for (const std::int64_t tokens : {tp * 1, tp * 3, 520}) {
        for (const bool sequence : {false, true}) {
          for (const bool bias : {true, false}) {
            for (const auto type : {at::kFloat, at::kBFloat16}) {
              compare({.tp = tp,
                       .batch = batch,
                       .tokens = tokens,
                       .sequence = sequence,
                       .bias = bias,
                       .gelu = bias == (batch == 1),
                       .type = type});
            }
          }
        }
      }
    }
  }
}

TEST(Overlap, MatchesForManySequencesAndOddWidths) {
  for (const bool sequence : {false, true}) {
    compare({.tp = 4, .batch = 9, .tokens = 36, .in = 7, .wide = 20, .sequence = sequence});
    compare({.tp = 3, .batch = 1, .tokens = 603, .in = 5, .wide = 9, .sequence = sequence});
  }
  // Rows not divisible by the number of ranks: only the last piece is padded.
  compare({.tp = 4, .batch = 1, .tokens = 531, .in = 7, .wide = 20});
}

TEST(Overlap, MatchesUnderRecomputationAndDeferral) {
  for (const bool sequence : {false, true}) {
    for (const auto mode : {nn::Recompute::none, nn::Recompute::selective, nn::Recompute::full}) {
      for (const bool deferred : {false, true}) {
        compare({.batch = 2,
                 .tokens = 80,
                 .sequence = sequence,
                 .recompute = mode,
                 .deferred = deferred});
      }
    }
  }
}

TEST(Overlap, MatchesForTheHead) {
  for (const int tp : {2, 4}) {
    for (const bool sequence : {false, true}) {
      for (const auto type : {at::kFloat, at::kBFloat16}) {
        test::over(tp, [&](const comm::Group& group) {
          std::vector<OverlapRun> runs;
          for (const bool overlap : {false, true}) {
            const Axis axis{group, sequence, overlap};
            const std::int64_t tokens = 12 / (sequence ? tp : 1);
            at::Tensor h = random({3, 12, 5}, 1)
                               .narrow(1, sequence ? group.rank() * tokens : 0, tokens)
                               .contiguous()
                               .to(type)
                               .requires_grad_();
            at::Tensor w =
                random({32, 5}, 2).chunk(tp)[static_cast<std::size_t>(group.rank())].to(type);
            w = w.contiguous().requires_grad_();
            const at::Tensor targets = at::arange(36, at::kLong).mul(7).remainder(32).view({3, 12});
            const auto before = group.traffic();
            const at::Tensor loss = vocab_parallel_cross_entropy(axis, h, w, targets, "head");
            (loss * 0.3).backward();
            runs.push_back({{loss.detach(), h.grad(), w.grad()}});
            runs.back().sent = (group.traffic() - before).sent_bytes;
          }
          EXPECT_EQ(runs[0].sent, runs[1].sent);
          for (std::size_t i = 0; i < 3; ++i) {
            expect_close(runs[1].values[i].to(at::kFloat), runs[0].values[i].to(at::kFloat),
                         str("tp ", tp, ", sequence ", sequence, ", value ", i),
                         type == at::kFloat ? 1e-6 : 1e-2);
          }
        });
      }
    }
  }
}

}  // namespace
}  // namespace tessera::tensor_parallel
