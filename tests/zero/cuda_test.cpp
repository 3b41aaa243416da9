// The oracle on CUDA tensors: ranks as processes that share one GPU, over shm (staged through
// pinned memory) and over nccl. Skipped without a GPU.

#include <gtest/gtest.h>

#include <limits>

#include "tessera/core/errors.h"
#include "tessera/kernels/cuda/cuda.h"
#include "tessera/kernels/cuda/optimizer.h"
#include "tessera/nn/unallocated.h"
#include "tessera/tensor_parallel/sharded.h"
#include "tests/comm/cuda_cases.h"
#include "tests/zero/oracle.h"

namespace tessera::zero::test {
namespace {

using namespace comm::testing;

// All stages: equal bits, the bytes of the formula, and (fp32) the results of one CPU process.
void compare_stages(const comm::Group& group, bool ordered) {
  at::globalContext().setBenchmarkCuDNN(false);
  at::globalContext().setDeterministicCuDNN(true);
  at::globalContext().setAllowTF32CuDNN(false);
  for (const std::string net : {"mlp", "conv", "tied", "odd"}) {
    for (const StateLayout& layout : state_layouts()) {
      if (layout.fp16() && !kernels::cuda::built()) continue;
      for (const int micro_batches : {1, 2}) {
        std::vector<Result> stages;
        Case run;
        for (int stage = 0; stage < 4; ++stage) {
          run.net = net;
          run.ranks = group.size();
          run.device = c10::Device(c10::kCUDA, 0);
          run.options.stage = stage;
          run.options.layout = layout;
          run.options.micro_batches = micro_batches;
          run.options.clip_norm = 0.5;
          run.options.bucket_bytes = 300;
          run.options.optimizer = AdamW{.lr = 1e-2};
          stages.push_back(train(group, run));
          EXPECT_EQ(stages.back().sent, stages.back().expected) << run.describe();
        }
        // A ring of more than two ranks adds in a different order, so bits may differ.
        if (!ordered) continue;
        EXPECT_EQ(stages[0].hash, stages[1].hash) << run.describe();
        EXPECT_EQ(stages[2].hash, stages[3].hash) << run.describe();
        if (micro_batches == 1) {
          EXPECT_EQ(stages[0].hash, stages[2].hash) << run.describe();
        }
        if (layout.name != "fp32" || net == std::string("odd")) continue;
        const Result alone = train_alone(run);
        for (std::size_t step = 0; step < alone.losses.size(); ++step) {
          EXPECT_NEAR(stages[3].losses[step], alone.losses[step], 1e-4) << run.describe();
        }
      }
    }
  }
}

// Muon's batched update on the device: all stages have equal bits, send the bytes of the formula,
// and stay near the slow update of the CPU.
void compare_muon(const comm::Group& group) {
  for (const std::string net : {"mlp", "tied", "odd"}) {
    for (const char* layout : {"fp32", "bf16", "bf16-nomaster"}) {
      std::vector<Result> stages;
      Case run;
      for (int stage = 0; stage < 4; ++stage) {
        run.net = net;
        run.ranks = group.size();
        run.device = c10::Device(c10::kCUDA, 0);
        run.options.stage = stage;
        run.options.layout = parse_state_layout(layout);
        run.options.clip_norm = 0.5;
        run.options.optimizer = Muon{.lr = 0.02, .elementwise = {.lr = 0.01, .weight_decay = 0.2}};
        stages.push_back(train(group, run));
        EXPECT_EQ(stages.back().hash, stages.front().hash) << run.describe();
      }
      if (layout != std::string("fp32") || net == "odd") continue;
      run.device = c10::Device(c10::kCPU);
      const Result on_cpu = train(run);  // orthogonalizes in fp32, one matrix after another
      for (std::size_t step = 0; step < on_cpu.losses.size(); ++step) {
        EXPECT_NEAR(stages[3].losses[step], on_cpu.losses[step], 5e-2) << run.describe();
      }
    }
  }
}

// A hook that all-reduces has the bits of no hook.
void compare_hook(const comm::Group& group) {
  for (const char* layout : {"fp32", "bf16"}) {
    Case run;
    run.net = "tied";
    run.ranks = group.size();
    run.device = c10::Device(c10::kCUDA, 0);
    run.options.layout = parse_state_layout(layout);
    run.options.micro_batches = 2;
    run.options.bucket_bytes = 300;
    const Result want = train(group, run);
    run.options.reduce_hook = [](const GradBucket& bucket, const comm::Group& data) -> PendingSums {
      const comm::Work work = data.all_reduce(bucket.grads, {.label = bucket.label});
      return [work] { work.wait(); };
    };
    EXPECT_EQ(train(group, run).hash, want.hash) << layout;
  }
}

void compare_recompute(const comm::Group& group) {
  for (const int stage : {0, 3}) {
    Case run;
    run.net = "tied";
    run.device = c10::Device(c10::kCUDA, 0);
    run.options.stage = stage;
    const Result want = train(group, run);
    for (const auto mode : {nn::Recompute::selective, nn::Recompute::full}) {
      run.recompute = mode;
      EXPECT_EQ(train(group, run).hash, want.hash) << nn::name(mode) << " stage " << stage;
    }
  }
}

// One rank on the GPU; the result of each step is read `late` steps later.
struct Training {
  std::vector<StepInfo> infos;
  std::vector<at::Tensor> params;
  StepCounts progress;
};
Training run_alone(const Options& options, c10::Device device, int steps, std::size_t late,
                   int poisoned = -1) {
  auto net = std::make_shared<Tied>();
  net->initialize(7);
  net->to(device);
  Engine engine(net, comm::Group(), options);
  Training run;
  std::vector<PendingStep> pending;
  for (int step = 0; step < steps; ++step) {
    const Batch batch = on(net->batch(batch_seed(step, 0, 0)), device);
    const at::Tensor loss = forward_loss(engine, *net, batch);
    engine.backward(step == poisoned ? loss * std::numeric_limits<double>::infinity() : loss);
    StepOptions now{.lr = 0.01 / (step + 1)};
    if (step % 3 == 1) now.clip_norm = 0.1, now.weight_decay = 0.4;
    if (step % 3 == 2) now.lr_scale = [](const std::string& name) { return name.size() % 2 + 0.5; };
    pending.push_back(engine.start_step(now));
    if (pending.size() > late) run.infos.push_back(pending[pending.size() - 1 - late].get());
  }
  while (run.infos.size() < pending.size()) run.infos.push_back(pending[run.infos.size()].get());
  engine.synchronize();
  run.progress = engine.progress();
  for (const auto& [name, value] : engine.full_parameters()) run.params.push_back(value.cpu());
  return run;
}

void expect_near(const Training& got, const Training& want, double tolerance,
                 const std::string& what) {
  ASSERT_EQ(got.infos.size(), want.infos.size());
  for (std::size_t i = 0; i < want.infos.size(); ++i) {
    EXPECT_NEAR(got.infos[i].loss, want.infos[i].loss, tolerance) << what << ", step " << i;
    EXPECT_NEAR(got.infos[i].grad_norm, want.infos[i].grad_norm, tolerance) << what;
  }
  for (std::size_t i = 0; i < want.params.size(); ++i) {
    EXPECT_TRUE(at::allclose(got.params[i], want.params[i], tolerance, tolerance)) << what;
  }
}

TEST(EngineOnCuda, StepsEqualThoseOfTheCpuWheneverResultsAreRead) {
  NEEDS_GPU();
  run_gpu_ranks(1, [](std::shared_ptr<comm::Backend>, std::shared_ptr<comm::Peers>) {
    const c10::Device gpu(c10::kCUDA, 0);
    for (const Optimizer& optimizer : std::vector<Optimizer>{
             AdamW{.lr = 1e-2}, SGD{.lr = 0.1, .momentum = 0.9}, Lion{}, Muon{}}) {
      Options options;
      options.optimizer = optimizer;
      options.clip_norm = 0.5;
      const std::string what = str("optimizer ", optimizer.index());
      const Training on_cpu = run_alone(options, c10::kCPU, 6, 0);
      const Training now = run_alone(options, gpu, 6, 0), later = run_alone(options, gpu, 6, 2);
      // Lion uses the sign and Muon multiplies in bf16, so single elements may differ by a step.
      expect_near(now, on_cpu, optimizer.index() < 2 ? 2e-4 : 5e-2, what);
      EXPECT_EQ(now.progress.steps, 6) << what;
      EXPECT_EQ(now.progress.updates, on_cpu.progress.updates) << what;
      for (std::size_t i = 0; i < now.params.size(); ++i) {
        EXPECT_TRUE(at::equal(now.params[i], later.params[i])) << what;
      }
      for (std::size_t i = 0; i < now.infos.size(); ++i) {
        EXPECT_EQ(now.infos[i].loss, later.infos[i].loss) << what;
        EXPECT_EQ(now.infos[i].grad_norm, later.infos[i].grad_norm) << what;
      }
    }
  });
}

TEST(EngineOnCuda, SkipsOrStopsOnNonFiniteSteps) {
  NEEDS_GPU();
  run_gpu_ranks(1, [](std::shared_ptr<comm::Backend>, std::shared_ptr<comm::Peers>) {
    const c10::Device gpu(c10::kCUDA, 0);
    Options options;
    options.on_non_finite = OnNonFinite::skip;
    const Training skipped = run_alone(options, gpu, 4, 1, 2);
    EXPECT_TRUE(skipped.infos[2].skipped);
    EXPECT_FALSE(skipped.infos[3].skipped);
    EXPECT_EQ(skipped.progress.steps, 3);
    for (const auto& [name, updates] : skipped.progress.updates) EXPECT_EQ(updates, 3) << name;
    options.on_non_finite = OnNonFinite::stop;
    EXPECT_THROW(run_alone(options, gpu, 4, 1, 2), Error);
  });
}

TEST(EngineOnCuda, TrainsInFp16WithAScaledLoss) {
  NEEDS_GPU();
  run_gpu_ranks(1, [](std::shared_ptr<comm::Backend>, std::shared_ptr<comm::Peers>) {
    if (!kernels::cuda::built()) return;
    const c10::Device gpu(c10::kCUDA, 0);
    Options options;
    const Training want = run_alone(options, gpu, 8, 0);
    options.layout = parse_state_layout("fp16");
    const Training got = run_alone(options, gpu, 8, 0);
    expect_near(got, want, 2e-2, "fp16");
    EXPECT_EQ(got.infos.back().loss_scale, 65536);
    EXPECT_EQ(got.progress.loss_scale, 65536);
    EXPECT_THROW(run_alone(options, c10::kCPU, 1, 0), UsageError);
  });
}

// The scale doubles after kGoodSteps consecutive good steps, even if the run stopped and resumed in
// between.
TEST(EngineOnCuda, LossScaleGrowsAtTheSameStepAfterResume) {
  NEEDS_GPU();
  run_gpu_ranks(1, [](std::shared_ptr<comm::Backend>, std::shared_ptr<comm::Peers>) {
    if (!kernels::cuda::built()) return;
    const c10::Device gpu(c10::kCUDA, 0);
    Options options;
    options.layout = parse_state_layout("fp16");
    const auto fresh = [&](std::uint64_t seed) {
      auto net = std::make_shared<Tied>();
      net->initialize(seed);
      net->to(gpu);
      return net;
    };
    const auto train = [&](Engine& engine, Tied& net, int from, int to) {
      std::vector<double> scales;
      for (int step = from; step < to; ++step) {
        engine.backward(forward_loss(engine, net, on(net.batch(batch_seed(step, 0, 0)), gpu)));
        scales.push_back(engine.step(0.01).loss_scale);
      }
      return scales;
    };
    auto net = fresh(7), other = fresh(8);
    Engine whole(net, comm::Group(), options);
    StepCounts late = whole.progress();  // four good steps short of the next growth
    late.loss_scale = 1024;
    late.good_steps = kernels::cuda::kGoodSteps - 4;
    whole.resume(late);
    EXPECT_EQ(train(whole, *net, 0, 2), (std::vector<double>{1024, 1024}));
    const StepCounts stopped = whole.progress();
    EXPECT_EQ(stopped.good_steps, kernels::cuda::kGoodSteps - 2);

    Engine copy(other, comm::Group(), options);
    {
      const at::NoGradGuard no_grad;
      const auto from = whole.state(StateScope::held), to = copy.state(StateScope::held);
      ASSERT_EQ(from.size(), to.size());
      for (std::size_t i = 0; i < from.size(); ++i) to[i].values.copy_(from[i].values);
    }
    copy.resume(stopped);
    const std::vector<double> scales{1024, 1024, 2048};
    EXPECT_EQ(train(whole, *net, 2, 5), scales);
    EXPECT_EQ(train(copy, *other, 2, 5), scales);
    EXPECT_EQ(copy.params_hash(), whole.params_hash());
    EXPECT_EQ(copy.progress().good_steps, 1);
  });
}

// A tensor-parallel rank, and any range of its parameters.
TEST(StartOnCuda, InitialValuesEqualThoseOfTheCpu) {
  NEEDS_GPU();
  run_gpu_ranks(1, [](std::shared_ptr<comm::Backend>, std::shared_ptr<comm::Peers>) {
    if (!kernels::cuda::built()) return;
    const std::vector<ParamSpec> specs = {{"whole", {37, 29}},
                                          {"rows", {48, 20}, {{Axis::tp, 0, {{48, 4}}}}},
                                          {"columns", {30, 64}, {{Axis::tp, 1, {{64, 4}}}}},
                                          {"padded", {45, 7}, {{Axis::tp, 0, {}, 8}}},
                                          {"bias", {33}}};
    for (const ParamSpec& spec : specs) {
      for (const int tp : {1, 2, 4}) {
        const Axes axes{{Axis::tp, tp}};
        for (int t = 0; t < tp; ++t) {
          const Coordinate at{{Axis::tp, t}};
          const std::int64_t count = c10::multiply_integers(local_shape(spec, axes, at));
          for (const std::int64_t begin : {std::int64_t{0}, count / 3, count - 1}) {
            const at::Tensor want = at::empty({count - begin});
            const at::Tensor got = at::empty({count - begin}, at::device(kGpu));
            for (const at::Tensor& out : {want, got}) {
              tensor_parallel::fill_normal_range(out, spec, axes, at, begin, 9, 0.5, 0.25);
            }
            EXPECT_TRUE(at::allclose(got.cpu(), want, 1e-6, 1e-7))
                << spec.name << ", rank " << t << " of " << tp << " from " << begin;
          }
        }
      }
    }
  });
}

// One parameter is larger than one block of writing.
struct StartNet : torch::nn::Module {
  StartNet() {
    const auto on_gpu = at::device(kGpu);
    big = register_parameter("big", nn::unallocated({5800, 5801}, on_gpu));
    odd = register_parameter("odd", nn::unallocated({13, 7}, on_gpu));
  }
  at::Tensor big, odd;
};

void compare_start(const comm::Group& group) {
  for (const std::string layout : {"fp32", "bf16"}) {
    for (int stage = 0; stage < 4; ++stage) {
      Options options;
      options.stage = stage;
      options.layout = parse_state_layout(layout);
      options.optimizer = SGD{};
      const auto write = [](const std::string& name, std::int64_t begin, const at::Tensor& out) {
        const bool big = name == "big";
        const ParamSpec spec{name, {big ? 5800 : 13, big ? 5801 : 7}};
        tensor_parallel::fill_normal_range(out, spec, {}, {}, begin, 9, 0.5, 0.25);
      };
      options.initial = InitialSource(write);
      options.initial.on_device = true;
      Engine engine(std::make_shared<StartNet>(), group, options);
      for (const auto& [name, value] : engine.full_parameters()) {
        const at::Tensor want = at::empty({value.numel()});
        write(name, 0, want);
        EXPECT_TRUE(at::allclose(value.cpu().view(-1), want, 1e-6, 1e-7))
            << name << ", stage " << stage << ", " << layout;
      }
    }
  }
}

TEST(StartOnCuda, InitializesParametersOnTheDeviceShardByShard) {
  NEEDS_GPU();
  run_gpu_ranks(2, [](std::shared_ptr<comm::Backend> host, std::shared_ptr<comm::Peers>) {
    if (kernels::cuda::built()) compare_start(comm::Group(host));
  });
}

TEST(EngineOnCuda, TrainsOnTwoRanksOverSharedMemory) {
  NEEDS_GPU();
  run_gpu_ranks(2, [](std::shared_ptr<comm::Backend> host, std::shared_ptr<comm::Peers>) {
    const comm::Group group(host);
    compare_stages(group, /*ordered=*/true);
    compare_muon(group);
    compare_recompute(group);
    compare_hook(group);
  });
}

TEST(EngineOnCuda, TrainsOnOneRankOverNccl) {
  NEEDS_NCCL();
  run_gpu_ranks(1, [](std::shared_ptr<comm::Backend> host, std::shared_ptr<comm::Peers> peers) {
    compare_stages(comm::Group(comm::nccl::make_backend(host, peers, 0, {})), /*ordered=*/true);
  });
}

TEST(EngineOnCuda, TrainsOnTwoRanksOverNccl) {
  NEEDS_SHARED_GPU();
  run_gpu_ranks(2, [](std::shared_ptr<comm::Backend> host, std::shared_ptr<comm::Peers> peers) {
    const comm::Group group(comm::nccl::make_backend(host, peers, 0, {}));
    compare_stages(group, /*ordered=*/true);
    compare_muon(group);
    compare_hook(group);
  });
}

}  // namespace
}  // namespace tessera::zero::test
