// Reduce hooks: functions of a program that replace the reduction of gradients.

#include <gtest/gtest.h>

#include <map>
#include <stdexcept>
#include <thread>

#include "tessera/core/errors.h"
#include "tests/text.h"
#include "tests/zero/oracle.h"

namespace tessera::zero::test {
namespace {

PendingSums all_reduce(const GradBucket& bucket, const comm::Group& data) {
  return data.all_reduce(bucket.grads, {.label = bucket.label});
}

// The same as a function that the engine calls.
PendingSums all_reduce_later(const GradBucket& bucket, const comm::Group& data) {
  const comm::Work work = data.all_reduce(bucket.grads, {.label = bucket.label});
  return [work] { work.wait(); };
}

// The same before it returns.
PendingSums all_reduce_now(const GradBucket& bucket, const comm::Group& data) {
  data.all_reduce(bucket.grads, {.label = bucket.label}).wait();
  return {};
}

Case hooked(const std::string& net, int ranks, ReduceHook hook) {
  Case run;
  run.net = net;
  run.ranks = ranks;
  run.options.optimizer = AdamW{.lr = 0.01};
  run.options.reduce_hook = std::move(hook);
  return run;
}

Case without_hook(Case run) {
  run.options.reduce_hook = nullptr;
  return run;
}

TEST(ReduceHook, AllReducingHookHasTheBitsOfNoHook) {
  for (const char* net : {"mlp", "tied", "odd", "conv"}) {
    for (const int ranks : {2, 3, 4}) {
      for (const std::int64_t bucket : {0, 64}) {
        for (const int micro_batches : {1, 3}) {
          for (const bool overlap : {true, false}) {
            Case run = hooked(net, ranks, all_reduce);
            run.options.bucket_bytes = bucket;
            run.options.micro_batches = micro_batches;
            run.options.overlap_grad_reduce = overlap;
            run.options.clip_norm = 0.5;
            const Result with = train(run), without = train(without_hook(run));
            EXPECT_EQ(with.hash, without.hash) << run.describe();
            EXPECT_EQ(with.losses, without.losses) << run.describe();
            EXPECT_EQ(with.sent, without.sent) << run.describe();
          }
        }
      }
    }
  }
}

// With one reduction per step a rank has the whole gradient at every stage.
TEST(ReduceHook, WorksAtEveryStageAndLayoutThatReducesOncePerStep) {
  for (int stage = 0; stage < 4; ++stage) {
    for (const char* layout : {"fp32", "bf16", "bf16-fp32grad"}) {
      for (const ReduceHook hook : {all_reduce, all_reduce_later, all_reduce_now}) {
        Case run = hooked("tied", 3, hook);
        run.options.stage = stage;
        run.options.layout = parse_state_layout(layout);
        run.options.reduce = ReducePolicy::last;
        run.options.micro_batches = 2;
        run.options.bucket_bytes = 64;
        EXPECT_EQ(train(run).hash, train(without_hook(run)).hash) << run.describe();
      }
    }
  }
}

// Gradients in bf16: the engine's own compression, written as a hook.
TEST(ReduceHook, CanSendOtherTypes) {
  const ReduceHook in_bf16 = [](const GradBucket& bucket, const comm::Group& data) -> PendingSums {
    const at::Tensor narrow = bucket.grads.to(at::kBFloat16);
    const comm::Work work = data.all_reduce(narrow, {.label = bucket.label});
    return [work, narrow, grads = bucket.grads] {
      work.wait();
      grads.copy_(narrow);
    };
  };
  for (const int ranks : {2, 3}) {
    Case run = hooked("mlp", ranks, in_bf16);
    run.options.bucket_bytes = 64;
    const Result with = train(run);
    run.options.reduce_hook = nullptr;
    const Result plain = train(run);
    run.options.grad_compression = GradCompression::bf16;
    const Result built_in = train(run);
    EXPECT_EQ(with.hash, built_in.hash) << ranks;
    EXPECT_EQ(with.sent, built_in.sent) << ranks;
    EXPECT_EQ(2 * with.sent, plain.sent) << ranks;
  }
}

// One byte for each element and one scale for each bucket and rank, by all-gather.
PendingSums in_bytes(const GradBucket& bucket, const comm::Group& data) {
  const auto count = bucket.grads.numel();
  const at::Tensor scale = (bucket.grads.abs().max() / 127).clamp_min(1e-30).view({1});
  const at::Tensor bytes = (bucket.grads / scale).round().to(at::kChar).view(at::kByte);
  const at::Tensor scales = at::empty({data.size()}, at::kFloat);
  const at::Tensor all = at::empty({data.size() * count}, at::kByte);
  const comm::Work first = data.all_gather(scales, scale, {.label = bucket.label + " (scale)"});
  const comm::Work second = data.all_gather(all, bytes, {.label = bucket.label + " (bytes)"});
  return [=, grads = bucket.grads] {
    first.wait();
    second.wait();
    grads.zero_();
    for (int rank = 0; rank < data.size(); ++rank) {
      const at::Tensor of_rank = all.narrow(0, rank * count, count).view(at::kChar);
      grads.add_(of_rank.to(at::kFloat) * scales[rank]);
    }
  };
}

TEST(ReduceHook, CanQuantizeAndTrafficCountsWhatItSends) {
  for (const bool overlap : {true, false}) {
    Case run = hooked("tied", 3, in_bytes);
    run.steps = 40;
    run.options.overlap_grad_reduce = overlap;
    const Result quantized = train(run), again = train(run), plain = train(without_hook(run));
    EXPECT_EQ(quantized.hash, again.hash);
    EXPECT_NE(quantized.hash, plain.hash);
    EXPECT_LT(quantized.losses.back(), 0.7 * quantized.losses.front());
    EXPECT_NEAR(quantized.losses.back() / plain.losses.back(), 1, 0.2);
    std::uint64_t wanted = 0;
    over(3, [&](const comm::Group& group) {
      auto net = make_net("tied");
      const Engine engine(net, group, run.options);
      if (group.rank() > 0) return;
      for (const BucketInfo& bucket : engine.buckets()) {
        wanted += 2 * (static_cast<std::uint64_t>(bucket.bytes) / 4 + 4);
      }
    });
    EXPECT_EQ(quantized.sent, 40 * wanted);
  }
}

struct Seen {
  std::vector<int> started, completed;
  std::vector<bool> last;
  bool foreign = false;  // a call from another thread than the rank's
};

// Records calls, and checks the arguments.
ReduceHook record(Seen& seen) {
  return [&seen, thread = std::this_thread::get_id()](const GradBucket& bucket,
                                                      const comm::Group& data) -> PendingSums {
    seen.foreign |= std::this_thread::get_id() != thread;
    seen.started.push_back(bucket.index);
    seen.last.push_back(bucket.last);
    EXPECT_EQ(bucket.grads.dim(), 1);
    EXPECT_TRUE(bucket.grads.is_contiguous());
    EXPECT_FALSE(bucket.label.empty());
    const auto* const begin = static_cast<const std::byte*>(bucket.grads.const_data_ptr());
    for (const GradBucket::Param& param : bucket.params) {
      const auto* const at = static_cast<const std::byte*>(param.grad.const_data_ptr());
      EXPECT_GE(at, begin) << param.name;
      EXPECT_LE(at + param.grad.nbytes(), begin + bucket.grads.nbytes()) << param.name;
    }
    const comm::Work work = data.all_reduce(bucket.grads, {.label = bucket.label});
    return [&seen, thread, work, index = bucket.index] {
      seen.foreign |= std::this_thread::get_id() != thread;
      work.wait();
      seen.completed.push_back(index);
    };
  };
}

TEST(ReduceHook, IsCalledOnceForEachBucketAndStep) {
  for (const bool overlap : {true, false}) {
    over(3, [&](const comm::Group& group) {
      Seen seen;
      auto net = make_net("mlp");
      net->initialize(7);
      Options options;
      options.bucket_bytes = 1;
      options.micro_batches = 2;
      options.overlap_grad_reduce = overlap;
      options.reduce_hook = record(seen);
      Engine engine(net, group, options);
      std::vector<int> all;
      for (std::size_t b = 0; b < engine.buckets().size(); ++b) all.push_back(static_cast<int>(b));
      ASSERT_GE(all.size(), 4u);
      std::vector<bool> last(all.size(), false);
      last.back() = true;
      const auto expect = [&](const char* when) {
        EXPECT_EQ(seen.started, all) << when;
        EXPECT_EQ(seen.completed, all) << when;
        EXPECT_EQ(seen.last, last) << when;
        EXPECT_FALSE(seen.foreign) << when;
        seen = {};
      };
      const auto backward = [&] { engine.backward(forward_loss(engine, *net, net->batch(5))); };
      for (int step = 0; step < 2; ++step) {
        backward();
        EXPECT_TRUE(seen.started.empty()) << "before the last micro-batch";
        backward();
        EXPECT_EQ(seen.started, all);
        EXPECT_TRUE(seen.completed.empty());
        engine.step();
        expect("step");
      }
      if (group.rank() == 0) backward();  // the other ranks have no data
      engine.step();
      expect("step of ranks without data");
      backward();
      engine.full_gradients();
      expect("full_gradients");
      engine.step();
      EXPECT_TRUE(seen.started.empty());
      backward();
      engine.discard();
      expect("discard");
    });
  }
}

TEST(ReduceHook, GetsTheViewsOfTheParameters) {
  over(2, [&](const comm::Group& group) {
    std::map<std::string, at::Tensor> sums;
    auto net = make_net("conv");
    net->initialize(7);
    Options options;
    options.reduce_hook = [&](const GradBucket& bucket, const comm::Group& data) -> PendingSums {
      data.all_reduce(bucket.grads, {.label = bucket.label}).wait();
      for (const auto& [name, grad] : bucket.params) sums[name] = grad.clone();
      return {};
    };
    Engine engine(net, group, options);
    engine.backward(forward_loss(engine, *net, net->batch(1)));
    const auto gradients = engine.full_gradients();
    EXPECT_EQ(gradients.size(), sums.size());
    for (const auto& [name, gradient] : gradients) {
      ASSERT_TRUE(sums.contains(name)) << name;
      EXPECT_TRUE(at::equal(sums[name], gradient)) << name;
    }
  });
}

TEST(ReduceHook, IsNotCalledByOneRank) {
  Case run = hooked("mlp", 1, [](const GradBucket&, const comm::Group&) -> PendingSums {
    ADD_FAILURE() << "called";
    return {};
  });
  EXPECT_EQ(train(run).hash, train(without_hook(run)).hash);
}

// The rank that fails reports the bucket, and the others report the rank instead of waiting.
TEST(ReduceHook, ErrorsNameTheBucketAndEndAllRanks) {
  for (const bool in_completion : {false, true}) {
    for (const bool usage : {false, true}) {
      for (const bool overlap : {true, false}) {
        std::vector<std::string> errors(3);
        over(3, [&](const comm::Group& group) {
          auto net = make_net("mlp");
          net->initialize(7);
          Options options;
          options.bucket_bytes = 1;
          options.overlap_grad_reduce = overlap;
          const auto fail = [usage] {
            if (usage) throw UsageError("made to fail");
            throw std::runtime_error("made to fail");
          };
          options.reduce_hook = [&](const GradBucket& bucket,
                                    const comm::Group& data) -> PendingSums {
            const bool fails = group.rank() == 1 && bucket.index == 2;
            if (fails && !in_completion) fail();
            const comm::Work work = data.all_reduce(bucket.grads, {.label = bucket.label});
            return [=] {
              if (fails) fail();
              work.wait();
            };
          };
          std::string& error = errors[static_cast<std::size_t>(group.rank())];
          try {
            Engine engine(net, group, options);
            engine.backward(forward_loss(engine, *net, net->batch(1)));
            engine.step();
          } catch (const PeerError& peer) {
            error = str("peer: ", peer.what());
          } catch (const UsageError& problem) {
            error = str("usage: ", problem.what());
          } catch (const Error& problem) {
            error = str("error: ", problem.what());
          }
        });
        EXPECT_TRUE(contains(errors[1], usage ? "usage: " : "error: ")) << errors[1];
        EXPECT_TRUE(contains(errors[1], "reduce_hook, bucket 2 (") &&
                    contains(errors[1], "): made to fail"))
            << errors[1];
        for (const int rank : {0, 2}) {
          const std::string& error = errors[static_cast<std::size_t>(rank)];
          EXPECT_TRUE(contains(error, "peer: ") && contains(error, "rank 1")) << error;
        }
      }
    }
  }
}

// The hook of the bucket that failed is called again, as the other ranks have sent that bucket.
TEST(ReduceHook, StepCanBeDiscardedAfterAnError) {
  over(2, [&](const comm::Group& group) {
    bool fails = group.rank() == 1;
    auto net = make_net("mlp");
    net->initialize(7);
    Options options;
    options.bucket_bytes = 1;
    options.reduce_hook = [&](const GradBucket& bucket, const comm::Group& data) {
      if (bucket.index == 2 && std::exchange(fails, false)) throw Error("made to fail");
      return all_reduce(bucket, data);
    };
    Engine engine(net, group, options);
    const Batch batch = net->batch(1);
    const std::string error = error_of([&] { engine.backward(forward_loss(engine, *net, batch)); });
    EXPECT_EQ(contains(error, "made to fail"), group.rank() == 1) << error;
    engine.discard();
    engine.backward(forward_loss(engine, *net, batch));
    engine.step();
    EXPECT_EQ(engine.steps(), 1);
  });
}

TEST(ReduceHook, RejectsUnsupportedOptions) {
  const auto refused = [](const std::function<void(Options&)>& change) {
    Options options;
    options.reduce_hook = all_reduce;
    change(options);
    return error_of([&] { Engine(std::make_shared<Mlp>(), comm::Group(), options); });
  };
  EXPECT_EQ(refused([](Options&) {}), "");
  EXPECT_EQ(refused([](Options& o) { o.stage = 1; }), "");
  for (const int stage : {2, 3}) {
    const std::string error = refused([&](Options& o) { o.stage = stage; });
    EXPECT_TRUE(contains(error, "reduce = ReducePolicy::last")) << error;
  }
  EXPECT_TRUE(contains(refused([](Options& o) { o.reduce = ReducePolicy::each; }),
                       "gradients must be reduced once per step"));
  EXPECT_TRUE(contains(refused([](Options& o) { o.grad_compression = GradCompression::fp16; }),
                       "got grad_compression fp16"));
  Case hybrid = hooked("mlp", 4, all_reduce);
  hybrid.replicas = 2;
  hybrid.options.stage = 1;
  EXPECT_TRUE(contains(error_of([&] { train(hybrid); }), "reduce_hook: got dp_replicate 2"));
  Options options;
  options.reduce_hook = all_reduce;
  Engine engine(std::make_shared<Mlp>(), comm::Group(), options);
  EXPECT_TRUE(contains(engine.graphs().problem(), "reduce_hook")) << engine.graphs().problem();
}

TEST(ReduceHook, MustBeSetOnAllRanksOrNone) {
  over(2, [](const comm::Group& group) {
    Options options;
    if (group.rank() == 1) options.reduce_hook = all_reduce;
    const std::string error = error_of([&] { Engine(std::make_shared<Mlp>(), group, options); });
    EXPECT_TRUE(contains(error, "with a reduce_hook")) << error;
  });
}

}  // namespace
}  // namespace tessera::zero::test
