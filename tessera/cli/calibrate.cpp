// tessera calibrate: measures this machine and writes an entry for --hardware-file.

#include <ATen/Parallel.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tessera/cli/calibrate_measure.h"
#include "tessera/cli/command_line.h"
#include "tessera/cli/commands.h"
#include "tessera/cli/machine.h"
#include "tessera/cli/rank_failure.h"
#include "tessera/comm/bootstrap.h"
#include "tessera/comm/gpus.h"
#include "tessera/comm/launch.h"
#include "tessera/core/errors.h"
#include "tessera/core/log.h"
#include "tessera/core/publish.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/nn/matmul_precision.h"
#include "tessera/planner/program_cost.h"
#include "tessera/process/cpu_topology.h"
#include "tessera/process/own_ranks.h"

namespace tessera::cli {
namespace {

constexpr const char* kCalibrateExamples =
    "  tessera calibrate --ranks 2 --out mine.toml\n"
    "  tessera plan --hardware-file mine.toml --hardware this-machine --model gpt2-124m --dp 2\n"
    "  tessera calibrate --device cuda --out gpu.toml\n"
    "  tessera train --device cuda --hardware-file gpu.toml --hardware this-machine\n"
    "\n"
    "All ranks measure at the same time, as in training: matrix products, memory, forward and\n"
    "backward of small GPTs, and collectives; on a GPU attention and the optimizer too. Keep the\n"
    "machine otherwise idle.";

struct CalibrateArguments {
  int ranks = 0, threads = 0;  // ranks 0: 2 on the CPU, 1 on a GPU
  int cores = 0;               // shared by all ranks; 0: unknown
  std::string name = "this-machine", device = "cpu", layout, out;
  double seconds = 1;  // of each measurement

  bool gpu() const { return device == "cuda"; }
};

// Measured machine, and comments of its entry on how it was measured.
struct Measured {
  planner::Hardware machine;
  std::string notes;  // comment lines
};

Measured measure_cpu(const Bench& bench) {
  constexpr std::int64_t kSize = 1024;  // larger than the caches
  Measured result{planner::Catalog().find("cpu"), ""};
  planner::Hardware& machine = result.machine;
  machine.memory = static_cast<double>(memory_info().total) / bench.world.size();
  machine.units = at::get_num_threads();
  machine.peak_fp32 = product_rate(bench, at::kFloat, kSize, kSize, kSize);
  machine.peak_16bit = product_rate(bench, at::kBFloat16, kSize, kSize, kSize);
  machine.memory_bandwidth = memory_rate(bench);
  machine.launch = launch_time({bench.world, bench.device, std::min(bench.budget, 0.1)});
  return result;
}

// Returns the catalog entry for a card by its driver name ("NVIDIA H200"), or null. For an
// unknown card the peaks are the measured ones, and what is not measured (links, watts) is that of
// h200.
const char* known_card(const std::string& name) {
  constexpr std::pair<const char*, const char*> kCards[] = {{"B200", "b200"},
                                                            {"H200", "h200"},
                                                            {"H100", "h100"},
                                                            {"A100", "a100-80"},
                                                            {"V100", "v100-32"}};
  for (const auto& [part, entry] : kCards) {
    if (name.find(part) != std::string::npos) return entry;
  }
  return nullptr;
}

Measured measure_gpu(const Bench& bench) {
  struct Product {
    std::int64_t m, n, k;
  };
  // The largest, and products of a wide and of a narrow model.
  constexpr Product kProducts[] = {{8192, 8192, 8192}, {15360, 6400, 1600}, {15360, 1600, 6400},
                                   {16384, 3072, 768}, {8192, 8192, 2048},  {1024, 4800, 1600},
                                   {2560, 50304, 1600}};
  const planner::Catalog catalog;
  const planner::Hardware ours = catalog.find("h200");
  const std::vector<Gpu> cards = driver_gpus().value_or(std::vector<Gpu>());
  const auto index = static_cast<std::size_t>(bench.device.index());
  const Gpu card = index < cards.size() ? cards[index] : Gpu{"an unknown GPU", 0, 0};
  const char* const known = known_card(card.name);
  Measured result{catalog.find(known != nullptr ? known : "h200"), ""};
  planner::Hardware& machine = result.machine;
  machine.figures.clear();
  machine.software = "tessera";
  // Properties of Tessera on the card.
  machine.launch = launch_time({bench.world, bench.device, std::min(bench.budget, 0.1)});
  machine.kernel_start = ours.kernel_start;
  machine.launch_skew = ours.launch_skew;
  machine.logit_bytes = ours.logit_bytes;
  machine.reserve = ours.reserve, machine.usable = ours.usable;
  if (card.memory > 0) machine.memory = static_cast<double>(card.memory);
  if (card.units > 0) machine.units = card.units;
  machine.memory_bandwidth = memory_rate(bench);
  machine.memory_efficiency = 0.95;
  std::vector<double> rates;
  std::string products;
  for (const Product& p : kProducts) {
    rates.push_back(product_rate(bench, at::kBFloat16, p.m, p.n, p.k));
    products += str(products.empty() ? "" : ", ", p.m, "x", p.n, "x", p.k, " ",
                    std::lround(rates.back() * 1e-12));
  }
  if (known == nullptr) {
    machine.peak_16bit = *std::max_element(rates.begin(), rates.end());
    machine.peak_fp32 = product_rate(bench, at::kFloat, 4096, 4096, 4096);
    const nn::MatmulPrecisionScope tf32(MatmulPrecision::high);
    machine.peak_tf32 = product_rate(bench, at::kFloat, 4096, 4096, 4096);
  }
  machine.product_efficiency = 1;
  double share = 0;  // sum of log(time at the peak / measured time)
  for (std::size_t i = 0; i < rates.size(); ++i) {
    const auto m = static_cast<double>(kProducts[i].m), n = static_cast<double>(kProducts[i].n),
               k = static_cast<double>(kProducts[i].k);
    const double seconds = 2 * m * n * k / rates[i];
    share += std::log(planner::product_time(machine, 2, m, n, k) / seconds);
  }
  machine.product_efficiency =
      std::clamp(std::exp(share / static_cast<double>(rates.size())), 0.01, 1.0);
  const double attention = attention_rate(bench);
  machine.attention_efficiency = std::clamp(attention / machine.peak_16bit, 0.01, 1.0);
  result.notes = str("# ", card.name, ". Products, TFLOP/s: ", products,
                     ".\n# Attention, forward and backward: ", std::lround(attention * 1e-12),
                     " TFLOP/s. Sum of two tensors: ", std::lround(machine.memory_bandwidth * 1e-9),
                     " GB/s.\n");
  return result;
}

// Measures the optimizer update and expresses it as passes over the gradient.
void set_update(const Bench& bench, const std::string& layout, Measured& result) {
  constexpr std::int64_t kParams = 256 << 20;
  planner::Hardware& machine = result.machine;
  const double seconds = update_time(bench, layout, kParams);
  const StateLayout bytes = parse_state_layout(layout);
  const double moved = seconds * machine.memory_bandwidth * machine.memory_efficiency / kParams;
  machine.gradient_passes =
      std::clamp((moved - 2.0 * bytes.optimizer() - bytes.param) / bytes.grad, 0.0, 100.0);
  result.notes += str("# Update of 2^28 parameters: ", std::lround(seconds * 1e6), " us.\n");
}

int measure(const CalibrateArguments& arguments, const comm::Launch& launch) {
  comm::InitOptions init;
  if (arguments.gpu() && launch.size > 1) init.backend = "nccl";
  comm::Group world = comm::init(init);
  const c10::Device device =
      arguments.gpu() ? c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(comm::gpu_of(
                                                    launch.local_rank, comm::gpu_count())))
                      : c10::Device(c10::kCPU);
  const c10::OptionalDeviceGuard guard(arguments.gpu() ? std::optional(device) : std::nullopt);
  const Bench bench{world, device, arguments.seconds};
  Measured result = arguments.gpu() ? measure_gpu(bench) : measure_cpu(bench);
  planner::Hardware& machine = result.machine;
  machine.name = arguments.name;
  if (!arguments.gpu() || world.size() > 1) machine.per_node = world.size();
  if (world.size() > 1) machine.inside = measure_link(bench);
  const std::vector<planner::PassSample> samples = measure_passes(bench, arguments.layout);
  if (!samples.empty()) machine = planner::calibrate(machine, samples);
  if (arguments.gpu()) set_update(bench, arguments.layout, result);
  if (world.rank() != 0) return 0;
  std::string text = str("# Measured by tessera calibrate: ", world.size(),
                         world.size() == 1 ? " rank" : " ranks", " of ", at::get_num_threads(),
                         " threads, layout ", arguments.layout, ".\n", result.notes);
  if (samples.empty()) {
    text += "# The host was too slow to keep the device busy: no passes were measured.\n";
  } else {
    const double error = planner::calibration_error(machine, samples);
    text += str("# Average error on the passes it was fitted to: ",
                std::max(1L, std::lround(100 * error)), "%");
    if (arguments.gpu()) {
      text += "; predicted/measured:";
      for (const planner::PassSample& sample : samples) {
        planner::RunConfig q = sample.question;
        q.hardware = machine;
        text += str(" ", std::lround(1e6 * planner::pass_seconds(q)), "/",
                    std::lround(1e6 * sample.seconds));
      }
      text += " us";
    }
    text += ".\n";
  }
  if (!arguments.gpu())
    machine.cores = arguments.cores;  // after the fit: its passes shared the cores
  text += planner::hardware_toml(machine);
  if (arguments.out.empty()) {
    print_out(text);
    return 0;
  }
  publish(arguments.out, text);
  return 0;
}

int own_cores() { return process::threads_per_rank(process::topology(), process::cpu_quota(), 1); }

// Sets the defaults that depend on the device.
void resolve_arguments(CalibrateArguments& arguments) {
  if (arguments.ranks == 0) arguments.ranks = arguments.gpu() ? 1 : 2;
  if (arguments.layout.empty()) arguments.layout = arguments.gpu() ? "bf16" : "fp32";
  if (!arguments.gpu()) return;
  const int gpus = comm::gpu_count();
  if (gpus == 0) {
    throw UsageError(Flag("device"), "got cuda, but LibTorch finds no CUDA device; must be cpu");
  }
  if (arguments.ranks > gpus) {
    throw UsageError(Flag("ranks"), str("got ", arguments.ranks, ", but there ",
                                        gpus == 1 ? "is one GPU" : str("are ", gpus, " GPUs"),
                                        "; must be at most that many"));
  }
}

}  // namespace

int calibrate_command(int argc, char** argv) {
  CalibrateArguments arguments;
  CommandLine line("calibrate", "Measures this machine for the planner.", kCalibrateExamples);
  CLI::App& app = line.app();
  line.integer(app, "-n,--ranks", arguments.ranks, 1, 4096,
               "ranks to start on this machine (CPU: 2, GPU: 1); under a launcher, its ranks")
      ->default_str("");
  line.choice(app, "--device", arguments.device, {"cpu", "cuda"}, "device to measure");
  line.integer(app, "--threads", arguments.threads, 0, 4096,
               "threads per rank; 0: its share of the cores");
  line.integer(app, "--cores", arguments.cores, 1, 1 << 16,
               "cores shared by all ranks; by default those this process may use; unknown under a "
               "launcher")
      ->default_str("");
  app.add_option("--name", arguments.name, "name of the entry")->default_str(arguments.name);
  line.choice(app, "--layout", arguments.layout, {"fp32", "bf16", "bf16-fp32grad"},
              "state layout of the measured models (CPU: fp32, GPU: bf16)");
  app.add_option("-o,--out", arguments.out, "file to write; by default the entry is printed");
  line.seconds(app, "--time", arguments.seconds, "time of each measurement");
  if (!line.parse(argc, argv)) return 0;
  constexpr double kShortest = 1e-3, kLongest = 3600;
  if (!(arguments.seconds >= kShortest && arguments.seconds <= kLongest)) {
    throw UsageError(Flag("time"), str("got ", format_time(arguments.seconds),
                                       "; must be 1ms to 1h. The default is 1s."));
  }
  resolve_arguments(arguments);
  // Checked before half a minute of measurements.
  if (!arguments.out.empty()) check_publishable(arguments.out, "--out");
  const comm::Launch launch = comm::detect_launch();
  if (launch.launcher != "alone" && app.count("--ranks") > 0) {
    process::check_given_ranks(arguments.ranks, launch.launcher, launch.size);
  }
  if (launch.launcher != "alone" || arguments.ranks == 1) {
    if (launch.launcher == "alone" && arguments.cores == 0) arguments.cores = own_cores();
    if (arguments.threads > 0) at::set_num_threads(arguments.threads);
    return report_to_launcher([&] { return measure(arguments, launch); });
  }
  std::vector<std::string> command = process::own_command(argc, argv);
  if (arguments.cores == 0 && !arguments.gpu()) {
    // A rank may be bound to its share of the cores, so the parent passes the total.
    command.insert(command.end(), {"--cores", str(own_cores())});
  }
  return process::start_ranks(
      {.ranks = arguments.ranks, .threads = arguments.threads, .name = "calibrate"}, command);
}

}  // namespace tessera::cli
