// A GPT block whose matrices are sharded over ranks as in Megatron, with plain LibTorch around it.
//   build/bin/tensor_parallel_block
//   build/bin/tessera run -n 4 -- build/bin/tensor_parallel_block
// Prints the same losses, within rounding, on any number of ranks that divides the heads.
#include <torch/torch.h>

#include <cstdio>
#include <exception>

#include "tessera/tessera.h"

namespace tp = tessera::tensor_parallel;
constexpr std::int64_t C = 64, H = 8;

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(const tp::Axis& axis) : heads(H / axis.size()) {
    norm1 = register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({C})));
    qkv = register_module(
        "qkv",
        tp::ColumnParallelLinear(
            axis, tp::LinearOptions{.in = C, .out = 3 * C, .outputs = {{C, H}, {C, H}, {C, H}}}));
    proj = register_module("proj", tp::RowParallelLinear(axis, tp::LinearOptions{C, C}));
    norm2 = register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({C})));
    up = register_module("up", tp::ColumnParallelLinear(axis, tp::LinearOptions{C, 4 * C}));
    down = register_module("down", tp::RowParallelLinear(axis, tp::LinearOptions{4 * C, C}));
  }
  at::Tensor forward(at::Tensor x) {  // [B, T, C], the same on every rank
    auto own = qkv(norm1(x));         // [B, T, 3 · C / ranks]
    auto parts = own.unflatten(2, {3, heads, C / H}).permute({2, 0, 3, 1, 4});
    auto mixed = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, true);
    x = x + proj(mixed.transpose(1, 2).flatten(2));
    return x + down(torch::gelu(up(norm2(x))));
  }
  std::int64_t heads;  // heads of this rank
  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  tp::ColumnParallelLinear qkv{nullptr}, up{nullptr};
  tp::RowParallelLinear proj{nullptr}, down{nullptr};
};
TORCH_MODULE(Block);

int main() try {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // line-buffered, also in pipes
  const auto world = tessera::init();
  const tp::Axis axis{world};
  Block block(axis);
  tp::initialize(*block, axis.axes(), axis.coordinate(), /*seed=*/1, /*deviation=*/0.1);
  torch::optim::SGD optimizer(block->parameters(), 0.05);
  const at::Tensor x = torch::sin(torch::arange(4 * 16 * C, at::kFloat)).view({4, 16, C});
  for (int step = 0; step < 5; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = torch::mse_loss(block(x), x.flip(2));
    loss.backward();
    optimizer.step();
    if (world.rank() == 0) std::printf("step %d  loss %.6f\n", step, loss.item<float>());
  }
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
