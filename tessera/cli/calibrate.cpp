// tessera calibrate: measures this machine and writes it down as an entry for --hardware-file.

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "tessera/cli/bench_comm.h"
#include "tessera/cli/command_line.h"
#include "tessera/cli/commands.h"
#include "tessera/cli/machine.h"
#include "tessera/comm/bootstrap.h"
#include "tessera/core/errors.h"
#include "tessera/core/log.h"
#include "tessera/core/publish.h"
#include "tessera/core/text.h"
#include "tessera/models/gpt.h"
#include "tessera/nn/matmul.h"
#include "tessera/planner/calibration.h"
#include "tessera/planner/formulas.h"
#include "tessera/process/own_ranks.h"

namespace tessera::cli {
namespace {

constexpr const char* kCalibrateExamples =
    "  tessera calibrate --ranks 2 --out mine.toml\n"
    "  tessera plan --hardware-file mine.toml --hardware this-machine --model gpt2-124m --dp 2\n"
    "\n"
    "All ranks measure at the same time, as they would train: products, memory, small GPTs "
    "forward\n"
    "and backward, and collectives. Keep the machine otherwise idle.";

struct CalibrateArguments {
  int ranks = 2, threads = 0;
  std::string name = "this-machine", layout = "fp32", out;
  double seconds = 1;  // of each measurement
};

// The median time of a call, on ranks that start together.
double median_seconds(const comm::Group& world, double budget, const std::function<void()>& call) {
  using Clock = std::chrono::steady_clock;
  call();
  world.barrier();
  std::vector<double> times;
  double total = 0;
  while (times.size() < 3 || (total < budget && times.size() < 10'000)) {
    const auto start = Clock::now();
    call();
    times.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    total += times.back();
  }
  world.barrier();
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2),
                   times.end());
  return times[times.size() / 2];
}

// FLOP/s of a product that is large for a processor's caches.
double product_rate(const comm::Group& world, double budget, at::ScalarType dtype) {
  constexpr std::int64_t kSize = 1024;
  const at::Tensor a = at::randn({kSize, kSize}).to(dtype), b = at::randn({kSize, kSize}).to(dtype);
  const double seconds = median_seconds(world, budget, [&] { nn::gemm_nt(a, b); });
  return 2.0 * kSize * kSize * kSize / seconds;
}

double memory_rate(const comm::Group& world, double budget) {
  const at::Tensor a = at::ones({16 << 20}), b = at::ones({16 << 20});
  at::Tensor sum = at::empty_like(a);
  const double seconds = median_seconds(world, budget, [&] { at::add_out(sum, a, b); });
  return 3.0 * 4 * static_cast<double>(a.numel()) / seconds;
}

double launch_time(const comm::Group& world, double budget) {
  const at::Tensor a = at::ones({8}), b = at::ones({8});
  at::Tensor sum = at::empty_like(a);
  return median_seconds(world, budget, [&] { at::add_out(sum, a, b); });
}

// Small models that differ in what they spend their time on.
std::vector<planner::PassSample> measure_passes(const comm::Group& world,
                                                const CalibrateArguments& arguments) {
  struct Shape {
    std::int64_t layers, hidden, heads, vocab, seq, batch;
  };
  constexpr Shape kShapes[] = {{2, 512, 8, 8192, 256, 2},  {2, 512, 8, 512, 256, 2},
                               {2, 256, 4, 512, 1024, 1},  {1, 256, 4, 16384, 128, 2},
                               {1, 1024, 16, 512, 128, 2}, {4, 256, 4, 512, 256, 2}};
  std::vector<planner::PassSample> samples;
  for (const Shape& shape : kShapes) {
    planner::Question q;
    q.model = gpt_shape(shape.layers, shape.hidden, shape.heads, shape.vocab, shape.seq);
    q.layout = parse_state_layout(arguments.layout);
    q.micro_batch = shape.batch;
    q = planner::settle(q);
    const auto dtype = q.layout.param == 4 ? at::kFloat : at::kBFloat16;
    models::Gpt model(q.model, 1, at::TensorOptions().dtype(dtype));
    const at::Tensor ids = at::randint(shape.vocab, {shape.batch, shape.seq}, at::kLong);
    samples.push_back(
        {q, median_seconds(world, arguments.seconds, [&] { model->loss(ids, ids).backward(); })});
  }
  return samples;
}

// A ring's latency and bandwidth from a short and a long all-reduce.
planner::Link measure_link(const comm::Group& world, double budget) {
  BenchOptions options;
  options.ops = {"all_reduce"};
  options.sizes = {4 << 10, 25 << 20};
  options.memories = {world.shares_memory() && world.size() > 1 ? "symmetric" : "ordinary"};
  options.seconds = budget;
  const std::vector<BenchResult> results = bench_comm(world, options);
  const int n = world.size();
  planner::Link link;
  const double shorter = results[0].ms * 1e-3, longer = results[1].ms * 1e-3;
  link.latency = shorter / (2.0 * (n - 1));
  link.bandwidth = planner::ring_all_reduce_bytes(static_cast<double>(results[1].bytes), n) /
                   std::max(longer - shorter, 1e-9);
  return link;
}

int measure(const CalibrateArguments& arguments) {
  comm::Group world = comm::init({});
  const int threads = at::get_num_threads();
  const double budget = arguments.seconds;
  planner::Hardware machine = planner::Catalogue().find("cpu");
  machine.name = arguments.name;
  machine.memory = static_cast<double>(memory_info().total) / world.size();
  machine.units = threads;
  machine.per_node = world.size();
  machine.peak_fp32 = product_rate(world, budget, at::kFloat);
  machine.peak_16bit = product_rate(world, budget, at::kBFloat16);
  machine.memory_bandwidth = memory_rate(world, budget);
  machine.launch = launch_time(world, std::min(budget, 0.1));
  if (world.size() > 1) machine.inside = measure_link(world, budget);
  const std::vector<planner::PassSample> samples = measure_passes(world, arguments);
  if (world.rank() != 0) return 0;
  machine = planner::calibrate(machine, samples);
  const double error = planner::calibration_error(machine, samples);
  const std::string text = str(
      "# Measured by tessera calibrate: ", world.size(), " ranks of ", threads, " threads, layout ",
      arguments.layout, ".\n# The steps it was set from are met within ",
      std::max(1L, std::lround(100 * error)), "% on average.\n", planner::hardware_toml(machine));
  if (arguments.out.empty()) {
    write_all(1, text);
    return 0;
  }
  publish(arguments.out, text);
  return 0;
}

}  // namespace

int calibrate_command(int argc, char** argv) {
  CalibrateArguments arguments;
  CommandLine line("calibrate", "Measures this machine for the planner.", kCalibrateExamples);
  CLI::App& app = line.app();
  line.integer(app, "-n,--ranks", arguments.ranks, 1, 4096,
               "ranks to start on this machine; under a launcher those that are there");
  line.integer(app, "--threads", arguments.threads, 0, 4096,
               "of each rank; 0 is its share of the cores");
  app.add_option("--name", arguments.name, "of the entry")->default_str(arguments.name);
  line.choice(app, "--layout", arguments.layout, {"fp32", "bf16", "bf16-fp32grad"},
              "what the models that it measures are made of");
  app.add_option("-o,--out", arguments.out, "file to write; otherwise the entry is printed");
  line.seconds(app, "--time", arguments.seconds, "time of each measurement");
  if (!line.parse(argc, argv)) return 0;
  // Better known before half a minute of measurements than after it.
  if (!arguments.out.empty()) check_publishable(arguments.out, "--out");
  const comm::Launch launch = comm::detect_launch();
  if (launch.launcher != "alone") {
    if (arguments.threads > 0) at::set_num_threads(arguments.threads);
    return measure(arguments);
  }
  return process::start_ranks(
      {.ranks = arguments.ranks, .threads = arguments.threads, .name = "calibrate"},
      process::own_command(argc, argv));
}

}  // namespace tessera::cli
