// Measures forward and backward of a layer with experts on a GPU. Its peer is peer_experts.py.
//   build/bin/experts_bench [--tokens 16384] [--hidden 2048] [--ffn 1024] [--experts 64]
//                           [--per-token 8] [--steps 20] [--profile on]
// Prints JSON lines: the median time of the layer, and of dense products with the same operations.

#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
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
#include "tessera/experts/layer.h"
#include "tessera/nn/pass.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

std::map<std::string, std::string> parse(int argc, char** argv) {
  std::map<std::string, std::string> arguments = {
      {"tokens", "16384"}, {"hidden", "2048"}, {"ffn", "1024"},   {"experts", "64"},
      {"per-token", "8"},  {"steps", "20"},    {"profile", "off"}};
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string word = argv[i];
    const auto found = arguments.find(word.rfind("--", 0) == 0 ? word.substr(2) : word);
    if (found == arguments.end()) {
      throw UsageError(str("experts_bench: unknown option ", quote(word)));
    }
    found->second = argv[i + 1];
  }
  return arguments;
}

template <class F>
double median_seconds(std::int64_t steps, F&& run) {
  std::vector<double> times;
  for (std::int64_t step = 0; step < steps + 5; ++step) {
    torch::cuda::synchronize();
    const Clock::time_point began = Clock::now();
    run();
    torch::cuda::synchronize();
    if (step >= 5) times.push_back(std::chrono::duration<double>(Clock::now() - began).count());
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

void print(const char* kind, double flops, double seconds) {
  std::printf("{\"kind\": \"%s\", \"ms\": %.3f, \"tflops\": %.1f}\n", kind, 1e3 * seconds,
              flops / seconds * 1e-12);
}

int run(int argc, char** argv) {
  if (!torch::cuda::is_available()) {
    std::printf("skipped: no GPU\n");
    return 0;
  }
  const auto given = parse(argc, argv);
  const auto number = [&](const char* name) -> std::int64_t { return std::stoll(given.at(name)); };
  const std::int64_t tokens = number("tokens"), hidden = number("hidden"), ffn = number("ffn");
  const std::int64_t k = number("per-token");
  const auto bf16 = at::TensorOptions(c10::Device(c10::kCUDA, 0)).dtype(at::kBFloat16);
  experts::LayerOptions options;
  options.hidden = hidden;
  options.experts = {.count = number("experts"), .per_token = k, .width = ffn};
  options.experts.balance_loss = 0.01;
  options.tensors.tensors = bf16;
  experts::MixtureOfExperts layer(experts::Ranks{}, options);
  // In one buffer, as an engine lays them out.
  std::int64_t numbers = 0;
  for (const at::Tensor& param : layer->parameters()) numbers += param.numel();
  const at::Tensor buffer = at::randn({numbers}, bf16).mul_(0.02);
  std::int64_t first = 0;
  for (at::Tensor& param : layer->parameters()) {
    param.set_data(buffer.narrow(0, first, param.numel()).view(param.sizes()));
    first += param.numel();
  }
  const at::Tensor x = at::randn({1, tokens, hidden}, bf16).requires_grad_();
  const at::Tensor dy = at::randn({1, tokens, hidden}, bf16);
  const auto step = [&] {
    const nn::PassScope scope(std::make_shared<const nn::Pass>());
    x.mutable_grad() = at::Tensor();
    for (at::Tensor& param : layer->parameters()) param.mutable_grad() = at::Tensor();
    layer->forward(x).backward(dy);
  };
  const double flops = 3.0 * 2 * static_cast<double>(tokens * k * 3 * hidden * ffn);
  print("tessera", flops, median_seconds(number("steps"), step));
  if (given.at("profile") == "on") print_kernel_times(step);

  const at::Tensor rows = x.detach().view({tokens, hidden}), d = dy.view({tokens, hidden});
  const at::Tensor up = at::randn({hidden, 2 * ffn * k}, bf16);
  const at::Tensor down = at::randn({ffn * k, hidden}, bf16);
  const auto dense = [&] {
    const at::Tensor h = at::mm(rows, up), a = h.narrow(1, 0, ffn * k);
    const at::Tensor y = at::mm(a, down);
    const at::Tensor da = at::mm(d, down.t()), ddown = at::mm(a.t(), d);
    const at::Tensor dx = at::mm(h, up.t()), dup = at::mm(rows.t(), h);
  };
  print("dense products", flops, median_seconds(number("steps"), dense));
  return 0;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  try {
    return tessera::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
