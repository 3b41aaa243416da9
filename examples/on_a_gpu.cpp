// The same program on GPUs, one for each rank, or on the CPU if there is no GPU.
//   build/bin/tessera run -n 2 -- build/bin/on_a_gpu
#include <torch/cuda.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <cstdio>
#include <exception>

#include "tessera/tessera.h"

int main() try {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // line-buffered, also in pipes
  using namespace torch::nn;
  const auto world = tessera::init();
  // Assigns ranks to the GPUs of the host in turn; if there are more ranks than GPUs, they share.
  const int gpus = static_cast<int>(torch::cuda::device_count());
  const int gpu = gpus > 0 ? world.rank() % gpus : 0;
  const auto device = gpus > 0 ? c10::Device(c10::kCUDA, gpu) : c10::Device(c10::kCPU);

  torch::manual_seed(1);
  Sequential net(Linear(64, 256), GELU(), Linear(256, 256), GELU(), Linear(256, 64));
  net->to(device);  // the engine uses the device of the parameters
  tessera::zero::Options options{.stage = 2};
  // Parameters in bf16 with fp32 master copies. LibTorch warns on CPUs without bf16 instructions.
  options.layout = tessera::parse_state_layout(device.is_cuda() ? "bf16" : "fp32");
  tessera::DataParallel train(net, world, options);

  tessera::zero::PendingStep pending;
  for (int step = 1; step <= 60; ++step) {
    const at::Tensor x =
        at::sin(at::arange(32 * 64, at::kFloat).view({32, 64}) * (step % 4 + 1)).to(device);
    train.backward(at::mse_loss(train(x).to(at::kFloat), x.flip(1)));
    pending = train.start_step();  // does not wait for the device; get() does
    if (step % 20 == 0) {
      const auto info = pending.get();
      if (world.rank() == 0) std::printf("step %d  loss %.4f\n", step, info.loss);
    }
  }
  if (world.rank() == 0) std::printf("on %s\n", device.str().c_str());
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
