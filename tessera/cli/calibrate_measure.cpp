#include "tessera/cli/calibrate_measure.h"

#include <ATen/Functions.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <span>

#include "tessera/cli/bench_comm.h"
#include "tessera/models/language_model.h"
#include "tessera/nn/matmul.h"
#include "tessera/nn/ops.h"
#include "tessera/planner/formulas.h"
#include "tessera/zero/engine.h"

namespace tessera::cli {
namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Times `calls` calls in a row, with events on a device. Returns the average per call.
CallTime run_timed(c10::Device device, int calls, const std::function<void()>& call) {
  if (device.is_cpu()) {
    const auto start = Clock::now();
    for (int i = 0; i < calls; ++i) call();
    const double each = since(start) / calls;
    return {each, each};
  }
  const c10::Stream stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  c10::Event begin(device.type(), c10::EventFlag::BACKEND_DEFAULT);
  c10::Event end(device.type(), c10::EventFlag::BACKEND_DEFAULT);
  begin.record(stream);
  const auto start = Clock::now();
  for (int i = 0; i < calls; ++i) call();
  const double host = since(start);
  end.record(stream);
  end.synchronize();
  return {begin.elapsedTime(end) * 1e-3 / calls, host / calls};
}

double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

at::Tensor numbers(const Bench& bench, at::IntArrayRef sizes, at::ScalarType dtype) {
  return at::randn(sizes, at::device(bench.device)).to(dtype);
}

// Elements per tensor: more than fit into the caches.
constexpr std::int64_t kValues = 16 << 20, kGpuValues = 256 << 20;
// A GPU is timed over calls that take this many seconds together: events cost some microseconds.
constexpr double kTogether = 5e-3;
constexpr int kMaxTogether = 200;

struct Shape {
  std::int64_t layers, hidden, heads, vocab, seq, batch;
};
constexpr Shape kShapes[] = {{2, 512, 8, 8192, 256, 2},  {2, 512, 8, 512, 256, 2},
                             {2, 256, 4, 512, 1024, 1},  {1, 256, 4, 16384, 128, 2},
                             {1, 1024, 16, 512, 128, 2}, {4, 256, 4, 512, 256, 2}};
// Dominated by products of wide layers, passes of narrow ones, logits, long sequences; and mixed.
constexpr Shape kGpuShapes[] = {{4, 1600, 25, 1024, 1024, 12}, {4, 768, 12, 1024, 1024, 32},
                                {1, 768, 12, 50304, 1024, 24}, {4, 1024, 16, 1024, 4096, 6},
                                {3, 2048, 16, 1024, 2048, 8},  {4, 1024, 16, 32000, 1024, 16}};

}  // namespace

CallTime time_of(const Bench& bench, const std::function<void()>& call) {
  call();
  int calls = 1;
  if (!bench.device.is_cpu()) {
    call();  // libraries choose their algorithms in the first call
    const double once = run_timed(bench.device, 1, call).seconds;
    calls = std::clamp(static_cast<int>(kTogether / std::max(once, 1e-7)), 1, kMaxTogether);
  }
  bench.world.barrier();
  std::vector<double> seconds, host;
  double total = 0;
  while (seconds.size() < 3 || (total < bench.budget && seconds.size() < 10'000)) {
    const CallTime time = run_timed(bench.device, calls, call);
    seconds.push_back(time.seconds);
    host.push_back(time.host);
    total += calls * std::max(time.seconds, time.host);
  }
  bench.world.barrier();
  return {median_of(seconds), median_of(host)};
}

double product_rate(const Bench& bench, at::ScalarType dtype, std::int64_t m, std::int64_t n,
                    std::int64_t k) {
  const at::NoGradGuard no_gradients;
  const at::Tensor a = numbers(bench, {m, k}, dtype), b = numbers(bench, {n, k}, dtype);
  const CallTime time =
      time_of(bench, [&] { bench.device.is_cpu() ? nn::gemm_nt(a, b) : nn::linear(a, b, {}); });
  return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) /
         time.seconds;
}

double memory_rate(const Bench& bench) {
  const std::int64_t values = bench.device.is_cpu() ? kValues : kGpuValues;
  const at::Tensor a = at::ones({values}, at::device(bench.device)), b = at::ones_like(a);
  at::Tensor sum = at::empty_like(a);
  const CallTime time = time_of(bench, [&] { at::add_out(sum, a, b); });
  return 3.0 * 4 * static_cast<double>(values) / time.seconds;
}

double launch_time(const Bench& bench) {
  const at::Tensor a = at::ones({8}, at::device(bench.device)), b = at::ones_like(a);
  at::Tensor sum = at::empty_like(a);
  return time_of(bench, [&] { at::add_out(sum, a, b); }).host;
}

double attention_rate(const Bench& bench) {
  constexpr std::int64_t kBatch = 16, kSeq = 1024, kHeads = 25, kDim = 64;
  at::Tensor qkv = numbers(bench, {kBatch, kSeq, 3 * kHeads * kDim}, at::kBFloat16);
  qkv.requires_grad_();
  const at::Tensor gradient = numbers(bench, {kBatch, kSeq, kHeads * kDim}, at::kBFloat16);
  const CallTime time = time_of(bench, [&] {
    qkv.mutable_grad().reset();
    nn::attention(qkv, kHeads).backward(gradient);
  });
  // Two products forward and five backward, each over half of the score matrix.
  return 7.0 * kBatch * kHeads * kSeq * kSeq * kDim / time.seconds;
}

double update_time(const Bench& bench, const std::string& layout, std::int64_t params) {
  struct One : torch::nn::Module {
    explicit One(at::Tensor values) : weight(register_parameter("weight", std::move(values))) {}
    at::Tensor weight;
  };
  zero::Options options;
  options.layout = parse_state_layout(layout);
  constexpr std::int64_t kRows = 1024;
  const auto net = std::make_shared<One>(
      at::zeros({kRows, params / kRows}, at::device(bench.device).dtype(at::kFloat)));
  zero::Engine engine(net, comm::Group(), options);
  std::vector<double> times;
  for (int step = 0; step < 8; ++step) {
    const at::Tensor loss = nn::observed(
        engine.root(), [&](const at::Tensor& weight) { return weight.sum(at::kFloat); },
        net->weight);
    engine.backward(loss);
    times.push_back(run_timed(bench.device, 1, [&] { engine.step(1e-6); }).seconds);
  }
  return median_of({times.begin() + 2, times.end()});
}

std::vector<planner::PassSample> measure_passes(const Bench& bench, const std::string& layout) {
  const bool gpu = !bench.device.is_cpu();
  std::vector<planner::PassSample> samples;
  for (const Shape& shape : gpu ? std::span<const Shape>(kGpuShapes) : std::span(kShapes)) {
    planner::RunConfig q = planner::RunConfig::for_plan();
    q.model = gpt_shape(shape.layers, shape.hidden, shape.heads, shape.vocab, shape.seq);
    q.layout = parse_state_layout(layout);
    q.micro_batch = shape.batch;
    q.software = planner::Software::tessera;
    q.gpu = gpu;
    q = planner::resolve(q);
    const auto dtype = q.layout.param == 4 ? at::kFloat : at::kBFloat16;
    const auto model =
        models::make_model(q.model, {}, 1, at::TensorOptions().dtype(dtype).device(bench.device));
    const at::Tensor ids = at::randint(shape.vocab, {shape.batch, shape.seq},
                                       at::device(bench.device).dtype(at::kLong));
    const CallTime time = time_of(bench, [&] {
      // On a GPU the engine writes gradients instead of accumulating into existing ones.
      if (gpu) model->zero_grad();
      model->loss(ids, ids).backward();
    });
    if (gpu && time.host > 0.9 * time.seconds) continue;
    samples.push_back({q, time.seconds});
  }
  return samples;
}

planner::Link measure_link(const Bench& bench) {
  const comm::Group& world = bench.world;
  BenchOptions options;
  options.ops = {"all_reduce"};
  options.sizes = {4 << 10, 25 << 20};
  options.memories = {world.shares_memory() && world.size() > 1 ? "symmetric" : "ordinary"};
  options.seconds = bench.budget;
  const std::vector<BenchResult> results = bench_comm(world, options);
  const int n = world.size();
  planner::Link link;
  const double shorter = results[0].ms * 1e-3, longer = results[1].ms * 1e-3;
  link.latency = shorter / (2.0 * (n - 1));
  link.bandwidth = planner::ring_all_reduce_bytes(static_cast<double>(results[1].bytes), n) /
                   std::max(longer - shorter, 1e-9);
  return link;
}

}  // namespace tessera::cli
