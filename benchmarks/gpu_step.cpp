// Measures training steps of a model on a GPU, in total and by kernel.
//   build/bin/gpu_step --model gpt2-xl --micro-batch 15 [--seq 1024] [--layout bf16] [--steps 10]
//                      [--graphs on|off] [--recompute none] [--profile on]

#include <ATen/ops/randint.h>
#include <torch/cuda.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "benchmarks/kernel_times.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/memory/device_memory.h"
#include "tessera/models/init.h"
#include "tessera/models/language_model.h"
#include "tessera/parallel/parallelize.h"

namespace tessera {
namespace {

using Arguments = std::map<std::string, std::string>;
using Clock = std::chrono::steady_clock;

Arguments parse(int argc, char** argv) {
  Arguments arguments = {{"model", "gpt2-124m"}, {"micro-batch", "4"}, {"seq", "1024"},
                         {"layout", "bf16"},     {"steps", "10"},      {"graphs", "on"},
                         {"recompute", "none"},  {"profile", "on"},    {"accumulate", "1"},
                         {"stage", "0"},         {"layers", "0"}};
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string word = argv[i];
    const auto found = arguments.find(word.rfind("--", 0) == 0 ? word.substr(2) : word);
    if (found == arguments.end()) throw UsageError(str("gpu_step: unknown option ", quote(word)));
    found->second = argv[i + 1];
  }
  return arguments;
}

double seconds_since(Clock::time_point began) {
  return std::chrono::duration<double>(Clock::now() - began).count();
}

int run(int argc, char** argv) {
  if (!torch::cuda::is_available()) {
    std::printf("skipped: no GPU\n");
    return 0;
  }
  const Arguments given = parse(argc, argv);
  const auto number = [&](const char* name) { return std::stoll(given.at(name)); };
  const c10::Device device(c10::kCUDA, 0);
  ModelShape shape = find_model_shape(given.at("model"));
  if (number("layers") > 0) shape.layers = number("layers");
  ParallelOptions options;
  options.device = device;
  options.graphs = given.at("graphs") == "on" ? Graphs::automatic : Graphs::never;
  options.recompute = find_named<nn::Recompute>(given.at("recompute")).value();
  options.initial = models::initial_values(shape);
  options.micro_batches = static_cast<int>(number("accumulate"));
  options.engine.stage = static_cast<int>(number("stage"));
  options.engine.layout = parse_state_layout(given.at("layout"));
  options.engine.optimizer = zero::AdamW{.lr = 1e-4};
  options.engine.clip_norm = 1;
  const Clock::time_point began = Clock::now();
  ParallelModel model(
      models::layers_of(shape, nn::ParamOptions::unallocated(at::device(device)), 128),
      comm::Mesh(comm::Group(), Axes()), options);
  torch::cuda::synchronize();
  std::printf("start: %.2f s\n", seconds_since(began));
  const auto on = at::device(device).dtype(at::kLong);
  std::vector<MicroBatch> batches;
  for (int k = 0; k < options.micro_batches; ++k) {
    const at::Tensor ids = at::randint(shape.vocab, {number("micro-batch"), number("seq") + 1}, on);
    batches.push_back({ids.narrow(1, 0, number("seq")).contiguous(),
                       ids.narrow(1, 1, number("seq")).contiguous()});
  }
  const double tokens =
      static_cast<double>(number("micro-batch") * number("seq")) * options.micro_batches;
  const auto step = [&] { return model.start_step(batches, {.lr = 1e-4, .tokens = tokens}); };
  for (int i = 0; i < 4; ++i) step().get();
  torch::cuda::synchronize();
  std::vector<double> times;
  for (int round = 0; round < 3; ++round) {
    const Clock::time_point from = Clock::now();
    zero::PendingStep last;
    for (int i = 0; i < number("steps"); ++i) last = step();
    last.get();
    torch::cuda::synchronize();
    times.push_back(seconds_since(from) / static_cast<double>(number("steps")));
  }
  std::sort(times.begin(), times.end());
  const auto usage = memory::device_usage(device);
  std::printf(
      "%s micro-batch %s layout %s recompute %s: %.2f ms per step (min %.2f), peak %.2f GB, %s%s, "
      "loss %.4f\n",
      given.at("model").c_str(), given.at("micro-batch").c_str(), given.at("layout").c_str(),
      given.at("recompute").c_str(), 1e3 * times[1], 1e3 * times[0],
      usage ? static_cast<double>(usage->peak) * 1e-9 : 0,
      model.graphed() ? "one CUDA graph" : "no CUDA graph: ",
      model.graphed() ? "" : model.graph_problem().c_str(), step().get().loss);
  if (given.at("profile") == "on") print_kernel_times([&] { step().get(); });
  return 0;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  try {
    return tessera::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpu_step: %s\n", error.what());
    return 1;
  }
}
