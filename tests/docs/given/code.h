// Names that the C++ blocks of docs/*.md use without declaring them, such as a reader's model. One
// struct per page, named after it; the blocks become its members (tests/docs/code_blocks.py). They
// are compiled and never run, so nothing here has a definition.
#pragma once

#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/linear.h>
#include <torch/serialize.h>

#include <cstddef>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include "tessera/checkpoint/save.h"
#include "tessera/tessera.h"

namespace given {

// Modules of the reader.
struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int width);
  explicit BlockImpl(const tessera::LayerContext& at);
  at::Tensor forward(at::Tensor x);
};
TORCH_MODULE(Block);
struct NetImpl : torch::nn::Module {
  NetImpl();
  at::Tensor forward(at::Tensor x);
  at::Tensor loss(at::Tensor x, at::Tensor y);
  torch::nn::Linear backbone{nullptr};
};
TORCH_MODULE(Net);
struct EmbedImpl : torch::nn::Module {
  at::Tensor forward(at::Tensor ids);
};
TORCH_MODULE(Embed);
struct LossImpl : torch::nn::Module {
  at::Tensor forward(at::Tensor x, at::Tensor targets);
};
TORCH_MODULE(Loss);
using LossFunction = std::function<at::Tensor(at::Tensor output, at::Tensor targets)>;

struct checkpoints {
  Net model;
  tessera::Group world;
  const std::byte* bytes;
  std::byte* into;
  tessera::checkpoint::Description about;
  tessera::checkpoint::Team team;
};

struct comm {
  at::Tensor gradient, shard, partial;
};

struct engine : torch::nn::Module {
  Net model, generator, critic;
  tessera::Group world;
  at::Tensor x, y;
  LossFunction loss_function;
  std::vector<tessera::Unit<Block>> blocks;
  tessera::DataParallel<Net> train;
  std::string name;
  int config;
};

struct library {
  tessera::Group world;
  at::Tensor x, y;
  LossFunction loss;
  std::vector<tessera::MicroBatch> batches;
};

struct memory {
  Net model;
  at::Tensor ids, targets, loss;
};

struct HeadImpl : torch::nn::Module {
  explicit HeadImpl(at::Tensor weight);
  at::Tensor forward(at::Tensor x, at::Tensor targets);
};
TORCH_MODULE(Head);
struct context_parallel {
  tessera::LayerContext at;
  at::Tensor qkv, x;
  std::int64_t heads, kv_heads;
};

struct mixture_of_experts : torch::nn::Module {
  tessera::LayerContext at;
};

struct offload {
  Net model;
  tessera::Group world;
};
struct parallel : torch::nn::Module {
  using AnyModule = torch::nn::AnyModule;
  std::vector<tessera::Layer> layers;
  tessera::LayerContext at;
  tessera::MeshDropout drop;
};

struct pipeline {
  tessera::Group pp;
  int micro_batches, stage;
  bool last;
  std::vector<double> costs_of_layers;
  std::vector<Block> layers;
  std::vector<at::Tensor> tokens, targets;
  LossFunction loss_function;
};

struct porting_ddp_fsdp {
  Net model;
  at::Tensor x, y;
  LossFunction loss;
};

struct tensor_parallel : torch::nn::Module {
  tessera::Mesh mesh;
  tessera::ColumnParallelLinear up;
  tessera::RowParallelLinear down;
  std::int64_t C;
  std::uint64_t seed;
};

}  // namespace given
