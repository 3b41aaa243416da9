// Context parallelism: memory and traffic.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/planner/context_costs.h"
#include "tessera/planner/formulas.h"
#include "tessera/planner/places.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/program_cost.h"
#include "tessera/planner/rank_load.h"
#include "tessera/planner/run.h"
#include "tests/text.h"

namespace tessera::planner {
namespace {

ModelShape grouped_shape(std::int64_t kv_heads) {
  ModelShape shape = gpt_shape(4, 1024, 32, 1024, 0);
  shape.kv_heads = kv_heads;
  shape.swiglu = true;
  shape.biases = false;
  shape.tied = false;
  shape.context = 1 << 20;
  return shape;
}

struct Runner {
  Software software;
  bool gpu;
};
constexpr Runner kRunners[] = {
    {Software::tessera, false}, {Software::tessera, true}, {Software::megatron, true}};

RunConfig run_of(const ModelShape& model, const Runner& runner, int tp, int cp, ContextKind kind,
                 Recompute recompute, bool sequence_parallel = false) {
  RunConfig q = RunConfig::for_plan();
  q.model = model;
  q.software = runner.software;
  q.gpu = runner.gpu;
  q.attention = Attention::fused;
  q.layout = parse_state_layout("bf16");
  q.axes = Axes{{Axis::tp, tp}, {Axis::cp, cp}};
  q.cp_kind = kind;
  q.recompute = recompute;
  q.sequence_parallel = sequence_parallel;
  q.seq = 2048, q.micro_batch = 2, q.grad_accum = 3;
  return resolve(std::move(q));
}

// Calls `each` for every combination that is possible.
void for_all(const std::function<void(const RunConfig&, const Runner&)>& each) {
  for (const Runner& runner : kRunners) {
    for (const std::int64_t kv_heads : {2, 8, 32}) {
      for (const int tp : {1, 2, 4}) {
        for (const int cp : {1, 2, 4, 8}) {
          for (const ContextKind kind : {ContextKind::ring, ContextKind::ulysses}) {
            for (const Recompute recompute :
                 {Recompute::none, Recompute::selective, Recompute::full}) {
              for (const bool sequence : {false, true}) {
                if (sequence && tp == 1) continue;
                each(run_of(grouped_shape(kv_heads), runner, tp, cp, kind, recompute, sequence),
                     runner);
              }
            }
          }
        }
      }
    }
  }
}

RunConfig with_cp(RunConfig q, int cp) {
  q.axes.set(Axis::cp, cp);
  q.gpus = q.nodes = 0;
  return resolve(std::move(q));
}

// Sizes of a rank.
struct Sizes {
  explicit Sizes(const RunConfig& q)
      : cp(q.cp()),
        rows(static_cast<double>(q.micro_batch * q.seq / q.cp())),
        heads(static_cast<double>(q.model.heads) / q.tp()),
        kv(std::max(1.0, static_cast<double>(q.model.kv_heads) / q.tp())),
        sent_kv(std::max(kv, cp)),
        d(static_cast<double>(q.model.head_dim())),
        e(element_bytes(q)) {}
  double cp, rows, heads, kv, sent_kv, d, e;
};

TEST(Context, SendsTheBytesOfTheFormulas) {
  for_all([](const RunConfig& q, const Runner&) {
    const Sizes s(q);
    const double passes = q.recompute == Recompute::full ? 3 : 2;  // that send keys and values
    const double each = static_cast<double>(q.model.layers * q.micros());
    double bytes = 0, calls = 0;
    if (q.cp_kind == ContextKind::ring) {
      const double block = s.rows * 2 * s.kv * s.d;
      bytes = (s.cp - 1) * block * (passes * s.e + 4);
      calls = (s.cp - 1) * (passes + 1);
    } else {
      bytes = (s.cp - 1) / s.cp * s.rows * (2 * s.heads + 2 * s.sent_kv) * s.d * s.e * passes;
      calls = s.cp > 1 ? 2 * passes : 0;
    }
    ASSERT_EQ(plan_run(q).sent[Axis::cp], std::llround(each * bytes)) << q.axes.text();
    const Traffic traffic = traffic_of(q);
    ASSERT_EQ(traffic.sent[Axis::cp], each * bytes);
    double in_rows = 0, in_calls = 0;
    for (const TrafficRow& row : traffic.rows) {
      if (row.axis != Axis::cp) continue;
      in_rows += row.bytes;
      in_calls += row.calls;
    }
    ASSERT_EQ(in_rows, each * bytes);
    ASSERT_EQ(in_calls, each * calls);
  });
}

// Random states and sums over rows of 1 + weight do not depend on the tokens; these models have
// none of the latter.
double per_token(const RunConfig& q, const Runner& runner) {
  const double states = q.recompute == Recompute::none || runner.software != Software::tessera ? 0
                        : runner.gpu                                                           ? 16
                                     : 5056;
  return layer_activations(q) - states;
}

TEST(Context, KeptBytesFallAsTheNumberOfRanksRises) {
  for_all([](const RunConfig& q, const Runner& runner) {
    if (q.cp() < 2 || q.cp() > 4) return;
    // ulysses sends more copies of KV heads than there are.
    if (q.cp_kind == ContextKind::ulysses && 2 * q.cp() > Sizes(q).kv) return;
    const RunConfig more = with_cp(q, 2 * q.cp());
    ASSERT_EQ(per_token(q, runner), 2 * per_token(more, runner)) << q.axes.text();
  });
}

TEST(Context, UlyssesKeepsOneRanksTensorsAndItsExchange) {
  for_all([](const RunConfig& q, const Runner& runner) {
    if (q.cp() == 1) return;
    const Sizes s(q);
    const bool cpu = runner.software == Software::tessera && !runner.gpu;
    const double whole = per_token(with_cp(q, 1), runner) / s.cp, here = per_token(q, runner);
    const double width = (s.heads + 2 * s.kv) * s.d, repeated = 3 * s.heads * s.d;
    const double exchanged = (s.heads + 2 * s.sent_kv) * s.d, result = s.heads * s.d;
    double more = 0;  // values per row
    if (q.recompute == Recompute::full) {
      more = 0;
    } else if (q.cp_kind == ContextKind::ring) {
      // Keys and values are never repeated.
      if (cpu && q.recompute == Recompute::none) more = width - repeated;
    } else if (runner.software != Software::tessera) {
      more = exchanged - width + result;  // the result also before it is exchanged
    } else if (q.recompute == Recompute::selective) {
      more = exchanged + result;  // results of both all-to-alls
    } else {
      more = cpu ? 0 : exchanged - width + result;
    }
    ASSERT_EQ(here, whole + more * s.rows * s.e)
        << q.axes.text() << " " << name(q.cp_kind) << " " << name(q.recompute) << " " << cpu;
  });
}

TEST(Context, OneRankChangesNothing) {
  for_all([](const RunConfig& q, const Runner&) {
    if (q.cp() > 1) return;
    ASSERT_EQ(q.rank_tokens(), q.seq);
    ASSERT_EQ(plan_run(q).sent[Axis::cp], 0);
    for (const Operation& op : layer_program(program_input(q), ProgramPart::layer).operations) {
      ASSERT_NE(op.kind, OpKind::exchange);
      for (const Communication& send : op.sends) ASSERT_EQ(send.axis, Axis::tp);
    }
  });
}

TEST(Context, BackwardOfARingHoldsBlocksInTransit) {
  for (const Runner& runner : kRunners) {
    const RunConfig q = run_of(grouped_shape(8), runner, 2, 4, ContextKind::ring, Recompute::none);
    const Sizes s(q);
    const auto temporary = [](const RunConfig& run) {
      for (const Operation& op : layer_program(memory_input(run), ProgramPart::layer).operations) {
        if (op.kind == OpKind::attention) return op.temporary;
      }
      return -1.0;
    };
    const double block = s.rows * 2 * s.kv * s.d, travel = block * (2 * s.e + 4 * 4);  // cp is 4
    const double width = s.heads * s.d, all = (s.heads + 2 * s.kv) * s.d;
    double own = s.rows * (width + all) * s.e;
    if (!runner.gpu) {
      // Gradients of the result and the queries; of a pair of chunks, the gradients, and repeated
      // keys and values; sums per query and head, and copies of them for a chunk.
      own = s.rows * width * (s.e + 4) + s.rows / 2 * width * 4 * 5 + 2 * s.rows * s.heads * 4;
    }
    if (q.fused_activations()) {  // and what attention of one rank holds
      const auto hidden = static_cast<double>(q.model.hidden);
      own = s.rows * (width * (s.e + 4) + 2 * (hidden + all) * s.e + 4 * hidden);
    }
    EXPECT_EQ(temporary(q), own + travel);
  }
}

TEST(Context, DividesTheWorkOfALayer) {
  for_all([](const RunConfig& q, const Runner&) {
    if (q.cp() == 1) return;
    const auto flops = [](const RunConfig& run) {
      return program_flops(layer_program(program_input(run), ProgramPart::layer));
    };
    ASSERT_DOUBLE_EQ(flops(q) * q.cp(), flops(with_cp(q, 1)));
    ASSERT_EQ(model_flops(q), model_flops(with_cp(q, 1)));
  });
}

// The engine shards state over cp and dp together, as over one dp of their product.
TEST(Context, EngineShardsAsWithDpTimesCp) {
  for (const int zero : {0, 1, 2, 3}) {
    for (const int replicas : {1, 2}) {
      if (zero == 0 && replicas > 1) continue;
      for (const Runner& runner : kRunners) {
        const auto of = [&](int cp, int dp) {
          RunConfig q = run_of(grouped_shape(8), runner, 2, 1, ContextKind::ring, Recompute::none);
          q.axes = Axes{{Axis::tp, 2}, {Axis::cp, cp}};
          q.axes.set_dp(dp);
          q.axes.set_given(Axis::dp_replicate, replicas);
          q.zero = zero;
          q.gpus = q.nodes = 0;
          q.global_batch = 0, q.gather = Gather::copy;
          return resolve(std::move(q));
        };
        const RunConfig shared = of(4, 4), plain = of(1, 16);
        EXPECT_EQ(shared.copies(), plain.dp());
        EXPECT_EQ(shared.shards(), plain.shards());
        EXPECT_EQ(4 * shared.global_batch, plain.global_batch);
        const Memory a = memory_of(shared), b = memory_of(plain);
        EXPECT_EQ(a.params, b.params);
        EXPECT_EQ(a.grads, b.grads);
        EXPECT_EQ(a.optimizer, b.optimizer);
        EXPECT_EQ(a.buffers, b.buffers);
        for (const Axis axis : {Axis::dp_shard, Axis::dp_replicate}) {
          EXPECT_EQ(traffic_of(shared).sent[axis], traffic_of(plain).sent[axis]);
          EXPECT_EQ(plan_run(shared).sent[axis], plan_run(plain).sent[axis]);
        }
      }
    }
  }
}

TEST(Context, PadsSequencesToChunksOfEqualLength) {
  for (const std::int64_t seq : {16, 17, 1000, 1023, 1024, 4097}) {
    for (const int cp : {1, 2, 4, 8}) {
      RunConfig q =
          run_of(grouped_shape(8), kRunners[0], 2, cp, ContextKind::ring, Recompute::none, true);
      q.seq = seq;
      q = resolve(std::move(q));
      const std::int64_t padded = q.rank_tokens() * cp;
      EXPECT_GE(padded, seq);
      if (cp == 1) {
        EXPECT_EQ(padded, seq);
      } else {
        EXPECT_EQ(padded % (2 * cp * 2), 0);
        EXPECT_LT(padded, seq + 2 * cp * 2);
      }
    }
  }
}

TEST(Context, ChoosesTheKindByTheHeads) {
  const auto kind = [](std::int64_t kv_heads, int tp, int cp) {
    return run_of(grouped_shape(kv_heads), kRunners[0], tp, cp, ContextKind::automatic,
                  Recompute::none)
        .cp_kind;
  };
  EXPECT_EQ(kind(8, 1, 8), ContextKind::ulysses);
  EXPECT_EQ(kind(8, 2, 8), ContextKind::ring);
  EXPECT_EQ(kind(32, 2, 8), ContextKind::ulysses);
  // Tessera on a GPU repeats KV heads rather than use a ring.
  const auto on_gpu = [](std::int64_t kv_heads, int tp, int cp) {
    return run_of(grouped_shape(kv_heads), kRunners[1], tp, cp, ContextKind::automatic,
                  Recompute::none)
        .cp_kind;
  };
  EXPECT_EQ(on_gpu(8, 2, 8), ContextKind::ulysses);
  EXPECT_EQ(on_gpu(8, 1, 3), ContextKind::ring);
  const auto of = [](int cp, ContextKind kind) {
    return error_of([&] { run_of(grouped_shape(8), kRunners[0], 1, cp, kind, Recompute::none); });
  };
  EXPECT_TRUE(contains(of(3, ContextKind::ulysses), "--cp-kind ulysses"));
  EXPECT_EQ(of(3, ContextKind::ring), "");
  EXPECT_TRUE(contains(of(2048, ContextKind::ring), "--cp"));
}

TEST(Context, AxisOrderPutsCpNextToTp) {
  const Axes axes{{Axis::tp, 2}, {Axis::cp, 4}, {Axis::dp_shard, 3}, {Axis::pp, 5}};
  const auto text = [&](const char* order) {
    std::string all;
    for (const AxisSize& each : in_order(order, axes)) {
      all += str(all.empty() ? "" : ",", axis_name(each.axis), each.size);
    }
    return all;
  };
  EXPECT_EQ(text("tp,cp,dp,pp"), text("tp,dp,pp"));
  EXPECT_EQ(text("dp,tp,pp"), "dp3,dp_replicate1,tp2,cp4,pp5");
  EXPECT_EQ(text("cp,pp,tp,dp"), "cp4,pp5,tp2,dp3,dp_replicate1");
  EXPECT_THROW(text("tp,cp,dp"), UsageError);
  EXPECT_THROW(text("tp,cp,cp,dp,pp"), UsageError);
}

TEST(Context, TopologyNamesTheRanksThatShareState) {
  RunConfig q = run_of(grouped_shape(8), kRunners[1], 2, 1, ContextKind::ulysses, Recompute::none);
  q.axes = Axes{{Axis::tp, 2}, {Axis::cp, 4}, {Axis::dp_shard, 2}};
  q.gpus = q.nodes = 0, q.per_node = 8, q.global_batch = 0;
  const std::string text = topology_text(resolve(std::move(q)));
  EXPECT_TRUE(contains(text, "cp       4 ranks, all in a node")) << text;
  EXPECT_TRUE(contains(text, "state    8 ranks, 4 in a node")) << text;
  EXPECT_TRUE(contains(text, "[d1c3t1]")) << text;
}

// Compares with members counted one by one.
TEST(Context, TopologyCountsRanksThatShareState) {
  for (const char* order : {"tp,cp,dp,pp", "cp,tp,dp,pp", "dp,cp,tp,pp", "cp,pp,tp,dp"}) {
    for (const int per_node : {1, 4, 8, 16}) {
      for (const int tp : {1, 2, 4}) {
        for (const int cp : {1, 2, 4}) {
          for (const int dp : {1, 2, 8}) {
            Axes axes{{Axis::tp, tp}, {Axis::cp, cp}, {Axis::pp, 2}};
            axes.set_dp(dp);
            Topology t;
            t.per_node = per_node;
            const Places places = places_on(t, in_order(order, axes));
            PerAxis<int> stride;
            int inner = 1;
            for (const AxisSize& each : in_order(order, axes)) {
              stride[each.axis] = inner;
              inner *= each.size;
            }
            int in_first = 0;
            for (int c = 0; c < cp; ++c) {
              for (int d = 0; d < dp; ++d) {
                in_first +=
                    (c * stride[Axis::cp] + d * stride[Axis::dp_shard]) / per_node == 0 ? 1 : 0;
              }
            }
            EXPECT_EQ(places.shard.ranks, cp * dp);
            EXPECT_EQ(places.shard.in_node, in_first)
                << order << " " << axes.text() << " " << per_node;
            if (cp == 1) {
              EXPECT_EQ(places.shard, places.along[Axis::dp_shard]);
            }
            if (dp == 1) {
              EXPECT_EQ(places.shard, places.along[Axis::cp]);
            }
          }
        }
      }
    }
  }
}

TEST(Context, ZigzagBalancesTheWorkOfEveryStep) {
  for (const int cp : {2, 3, 4, 7, 16}) {
    double zigzag = 0, in_order = 0;
    for (int rank = 0; rank < cp; ++rank) {
      std::vector<bool> seen(static_cast<std::size_t>(cp));
      for (int step = 0; step < cp; ++step) {
        EXPECT_EQ(attention_work(ChunkOrder::zigzag, cp, rank, step), 2);
        const int owner = owner_of_keys(rank, step, cp);
        seen[static_cast<std::size_t>(owner)] = true;
        const double expected = owner == rank ? 2 : owner < rank ? 4 : 0;
        EXPECT_EQ(attention_work(ChunkOrder::in_order, cp, rank, step), expected);
        // The keys come from the previous rank.
        if (step > 0) {
          EXPECT_EQ(owner, owner_of_keys((rank + cp - 1) % cp, step - 1, cp));
        }
      }
      EXPECT_EQ(std::count(seen.begin(), seen.end(), true), cp);
      zigzag += attention_work(ChunkOrder::zigzag, cp, rank);
      in_order += attention_work(ChunkOrder::in_order, cp, rank);
    }
    // Half of the square of 2·cp chunks.
    EXPECT_EQ(zigzag, 2.0 * cp * cp);
    EXPECT_EQ(in_order, zigzag);
    EXPECT_EQ(attention_work(ChunkOrder::in_order, cp, cp - 1), 4 * cp - 2);
  }
  EXPECT_EQ(attention_work(ChunkOrder::zigzag, 1, 0), 0.5);
}

TEST(Context, CostsOfALayerAddUpToThoseOfThePlan) {
  for_all([](const RunConfig& q, const Runner&) {
    if (q.cp() == 1) return;
    const ContextCost cost = context_cost(q, q.cp_kind);
    ASSERT_EQ(cost.refused, "");
    EXPECT_EQ(cost.sent.total() * static_cast<double>(q.model.layers * q.micros()),
              traffic_of(q).sent[Axis::cp]);
    EXPECT_EQ(cost.sent_with_full_recompute, 2 * cost.sent.forward + cost.sent.backward);
    if (q.cp_kind == ContextKind::ring) {
      EXPECT_EQ(cost.message * (q.cp() - 1), cost.sent.forward);
    }
    EXPECT_EQ(cost.kept, layer_activations(q));
    EXPECT_EQ(cost.heads * cost.tokens, q.model.heads / q.tp() * q.rank_tokens());
  });
}

}  // namespace
}  // namespace tessera::planner
