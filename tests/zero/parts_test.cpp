// Engine of a part of a model: interleaved passes, model chunks, axes, ties.

#include <gtest/gtest.h>

#include <cmath>

#include "tessera/core/errors.h"
#include "tessera/zero/engine_of_part.h"
#include "tests/zero/oracle.h"

namespace tessera::zero::test {
namespace {

using nn::Unit;

at::Tensor waves(at::IntArrayRef sizes, double phase) {
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) count *= size;
  return (at::arange(count, at::kFloat) * 0.37 + phase).sin().view(sizes) * 0.5;
}

struct LayerImpl : torch::nn::Module {
  LayerImpl(std::int64_t in, std::int64_t out, double phase) {
    weight = register_parameter("weight", waves({out, in}, phase));
    bias = register_parameter("bias", waves({out}, phase + 1));
  }
  at::Tensor forward(const at::Tensor& x) { return at::tanh(at::linear(x, weight, bias)); }
  at::Tensor weight, bias;
};

// Four layers, the first two in model chunk 0, the others in model chunk 1.
struct StackImpl : torch::nn::Module {
  StackImpl() {
    const std::int64_t widths[] = {3, 20, 33, 17, 2};
    for (int i = 0; i < 4; ++i) {
      layers.emplace_back(widths[i], widths[i + 1], i * 0.7);
      register_module(str("layer", i), layers.back().ptr());
    }
  }
  at::Tensor half(int chunk, at::Tensor x) {
    for (int i = 2 * chunk; i < 2 * chunk + 2; ++i) {
      x = layers[static_cast<std::size_t>(i)](x);
    }
    return x;
  }
  std::vector<Unit<LayerImpl>> layers;
};

at::Tensor input_of(int step, int rank, int micro) {
  return waves({5, 3}, 10.0 * step + rank + 0.1 * micro);
}

struct Way {
  std::string name;
  std::vector<std::string> order;  // "f0" forward of micro-batch 0, "b0" its backward
  bool model_chunks = false;
  bool deferred = false;
};

std::uint64_t run(const comm::Group& group, Options options, const Way& way, std::uint64_t& sent,
                  std::uint64_t& expected) {
  auto net = std::make_shared<StackImpl>();
  options.micro_batches = 3;
  options.bucket_bytes = 700;
  options.optimizer = AdamW{.lr = 0.05};
  options.clip_norm = 0.3;
  ModelAxes axes;
  if (way.model_chunks) {
    axes.model_chunk = [](const std::string& name) { return name < "layer2" ? 0 : 1; };
  }
  Engine engine = Engine::of_part(net, DataGroups(group), options, axes);
  const comm::TrafficCounts before = group.traffic();
  for (int step = 0; step < 2; ++step) {
    std::map<char, at::Tensor> middle, cut, loss;
    for (const std::string& action : way.order) {
      const char k = action[1];
      const auto loss_of = [&](const at::Tensor& x) { return net->half(1, x).square().mean(); };
      if (action[0] == 'f') {
        const at::Tensor x = input_of(step, group.rank(), k - '0');
        if (!way.model_chunks) {
          loss[k] = nn::observed(
              engine.root(), [&](const at::Tensor& in) { return loss_of(net->half(0, in)); }, x);
        } else {
          middle[k] = nn::observed(
              engine.root(), [&](const at::Tensor& in) { return net->half(0, in); }, x);
          cut[k] = middle[k].detach().requires_grad_();
          loss[k] = nn::observed(engine.root(), loss_of, cut[k]);
        }
        continue;
      }
      if (!way.model_chunks) {
        engine.pipeline().backward(loss[k], {}, {.of_one_forward = k != '2'});
        continue;
      }
      engine.pipeline().backward(
          loss[k], {}, {.model_chunk = 1, .deferred = way.deferred, .of_one_forward = true});
      if (way.deferred) engine.pipeline().finish_pass(1);
      engine.pipeline().backward(
          middle[k], cut[k].grad(),
          {.model_chunk = 0, .deferred = way.deferred, .of_one_forward = true});
      if (way.deferred) engine.pipeline().finish_pass(0);
    }
    engine.step();
  }
  engine.synchronize();
  sent = (group.traffic() - before).sent_bytes;
  planner::TrafficInput question;
  question.stage = options.stage;
  question.dp = group.size();
  question.micro_batches = options.micro_batches;
  question.param_bytes = static_cast<double>(engine.traveling_param_bytes());
  question.grad_bytes = static_cast<double>(engine.traveling_grad_bytes());
  question.policy = options.reduce.value_or(default_reduce_policy(options.stage));
  expected = static_cast<std::uint64_t>(planner::data_parallel_traffic(question).total() * 2 + 0.5);
  return engine.params_hash();
}

TEST(Parts, InterleavedPassesAndModelChunksKeepTheBits) {
  const std::vector<std::string> in_turn = {"f0", "b0", "f1", "b1", "f2", "b2"};
  const std::vector<std::string> all_first = {"f0", "f1", "f2", "b0", "b1", "b2"};
  const std::vector<std::string> mixed = {"f0", "f1", "b0", "f2", "b1", "b2"};
  const std::vector<Way> ways = {{"in turn", in_turn},
                                 {"all forwards first", all_first},
                                 {"1F1B", mixed},
                                 {"two model chunks", in_turn, true},
                                 {"two model chunks, 1F1B", mixed, true},
                                 {"two model chunks, deferred", mixed, true, true}};
  for (const ReducePolicy policy : {ReducePolicy::last, ReducePolicy::each}) {
    std::optional<std::uint64_t> wanted;
    for (int stage = 0; stage < 4; ++stage) {
      for (const Gather gather : {Gather::alias, Gather::copy}) {
        if (stage < 3 && gather == Gather::copy) continue;
        for (const Way& way : ways) {
          over(2, [&](const comm::Group& group) {
            Options options;
            options.stage = stage;
            options.reduce = policy;
            options.gather = stage == 3 ? gather : Gather::automatic;
            std::uint64_t sent = 0, expected = 0;
            const std::uint64_t hash = run(group, options, way, sent, expected);
            if (group.rank() != 0) return;
            const std::string what = str("stage ", stage, ", ", way.name, ", policy ",
                                         policy == ReducePolicy::each ? "each" : "last");
            if (!wanted) wanted = hash;
            EXPECT_EQ(hash, *wanted) << what;
            EXPECT_EQ(sent, expected) << what;
          });
        }
      }
    }
  }
}

TEST(Parts, RejectsABackwardThatReachesAnotherModelChunk) {
  auto net = std::make_shared<StackImpl>();
  ModelAxes axes;
  axes.model_chunk = [](const std::string& name) { return name < "layer2" ? 0 : 1; };
  Engine engine = Engine::of_part(net, DataGroups(comm::Group()), {}, axes);
  const at::Tensor loss = net->half(1, net->half(0, input_of(0, 0, 0))).sum();
  EXPECT_THROW(engine.pipeline().backward(loss, {}, {.model_chunk = 1}), UsageError);
  engine.discard();
  EXPECT_THROW(engine.pipeline().backward(loss, {}, {.model_chunk = 2}), UsageError);
}

// y = W tanh(A x), and y = W tanh(B x): two parts of one model that share a tied W.
struct PartImpl : torch::nn::Module {
  explicit PartImpl(std::vector<int> parts) {
    tied = register_parameter("tied", waves({4, 37}, 3));
    for (const int part : parts) {
      own[part] = register_parameter(str("own", part), waves({37, 3}, 5 + part));
    }
  }
  at::Tensor loss(int part, const at::Tensor& x) {
    return at::linear(at::tanh(at::linear(x, own[part])), tied).square().sum();
  }
  at::Tensor tied;
  std::map<int, at::Tensor> own;
};

TEST(Parts, NormLossAndTiesEqualThoseOfTheWholeModel) {
  for (int stage = 0; stage < 4; ++stage) {
    Options options;
    options.stage = stage;
    options.optimizer = SGD{.lr = 0.05, .momentum = 0.9};
    options.clip_norm = 0.5;
    std::vector<StepInfo> whole_info, part_info;
    std::map<std::string, at::Tensor> whole, parts;
    over(2, [&](const comm::Group& dp) {
      auto net = std::make_shared<PartImpl>(std::vector<int>{0, 1});
      Engine engine(net, dp, options);
      for (int step = 0; step < 4; ++step) {
        const at::Tensor x = input_of(step, dp.rank(), 0);
        engine.backward(nn::observed(
            engine.root(),
            [&](const at::Tensor& in) { return net->loss(0, in) + net->loss(1, in); }, x));
        const StepInfo info = engine.step();
        if (dp.rank() == 0) whole_info.push_back(info);
      }
      for (auto& [name, value] : engine.full_parameters()) {
        if (dp.rank() == 0) whole[name] = value.clone();
      }
    });
    std::mutex guard;
    over(4, [&](const comm::Group& world) {
      const int part = world.rank() / 2, replica = world.rank() % 2;
      const comm::Group dp = world.subset({2 * part, 2 * part + 1}, "dp");
      const comm::Group model = world.subset({replica, replica + 2}, "model");
      auto net = std::make_shared<PartImpl>(std::vector<int>{part});
      ModelAxes mine;
      mine.group = model;
      mine.counted = [&](const std::string& name) -> std::vector<tessera::Run> {
        if (name == "tied" && part == 1) return {};
        return {{0, 0, name == "tied" ? 4 * 37 : 37 * 3}};
      };
      mine.ties = {{"tied", model}};
      Engine engine = Engine::of_part(net, DataGroups(dp), options, mine);
      for (int step = 0; step < 4; ++step) {
        const at::Tensor x = input_of(step, replica, 0);
        engine.backward(nn::observed(
            engine.root(), [&](const at::Tensor& in) { return net->loss(part, in); }, x));
        const StepInfo info = engine.step();
        if (world.rank() == 0) part_info.push_back(info);
      }
      for (auto& [name, value] : engine.full_parameters()) {
        const std::lock_guard lock(guard);
        if (const auto known = parts.find(name); known != parts.end()) {
          EXPECT_TRUE(at::equal(known->second, value)) << name << ", stage " << stage;
        }
        parts[name] = value.clone();
      }
    });
    ASSERT_EQ(parts.size(), whole.size());
    for (const auto& [name, value] : whole) {
      EXPECT_TRUE(at::allclose(parts[name], value, 1e-5, 1e-6)) << name << ", stage " << stage;
    }
    for (std::size_t i = 0; i < whole_info.size(); ++i) {
      EXPECT_NEAR(part_info[i].loss, whole_info[i].loss, 1e-5 * whole_info[i].loss);
      EXPECT_NEAR(part_info[i].grad_norm, whole_info[i].grad_norm, 1e-5 * whole_info[i].grad_norm);
    }
  }
}

}  // namespace
}  // namespace tessera::zero::test
