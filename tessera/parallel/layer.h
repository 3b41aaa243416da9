#pragma once

#include <torch/nn/modules/container/any.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/tensor_parallel/layers.h"

namespace tessera {

// What the factory of a layer is told about the rank that it makes the layer on.
struct LayerContext {
  std::string name;          // of the layer
  tensor_parallel::Axis tp;  // the ranks that share its matrices; alone: one
  // A layer that this rank made before, by its name; null if it is on another stage.
  std::function<std::shared_ptr<torch::nn::Module>(const std::string& name)> find;
  // Tensor that this rank already has for a parameter in Layer::tied, by its name in this layer,
  // from whichever layer was made first: register that very tensor. Undefined if no layer made here
  // has it: register one of your own.
  std::function<at::Tensor(const std::string& param)> tied;

  // For a MeshDropout inside the layer. Without a rate it is ParallelOptions::dropout.
  tensor_parallel::DropoutOptions dropout(const std::string& child,
                                          std::optional<double> rate = std::nullopt) const {
    return {.rate = rate, .label = name + "." + child};
  }
  // For a tensor-parallel linear inside the layer: its size, and its name in messages and traces.
  tensor_parallel::LinearOptions linear(const std::string& child, std::int64_t in,
                                        std::int64_t out) const {
    return {.in = in, .out = out, .label = name + "." + child};
  }
};

// [Note: layers] A model as a list: the output of each layer is the input of the next. Layers are
// made on the ranks that have them, one after the other, each by a factory that shapes it by the
// ranks it gets. Layers take one tensor and return one; the last takes the targets too, and returns
// the loss of a micro-batch, one number.
//
// A layer may return several tensors (hidden states and a mask, say) as std::vector<at::Tensor>;
// then the next one takes them as such. They may be of any type; only floating-point tensors that
// require a gradient get one. Pipelines carry them over stages, at most 8 at a time.
struct Layer {
  std::string name;  // its own; dots make a path ("blocks.3")
  std::function<torch::nn::AnyModule(const LayerContext&)> make;
  // Parameters that are another, earlier layer's, by their names here. Any number of layers may be
  // tied to one. The factory registers the tensor that LayerContext::tied() returns, or one of its
  // own where that is undefined: copies on other ranks start alike, and their gradients are added
  // up. UsageError on every rank if a name is wrong, or if a copy has another shape or is a second
  // one on its rank.
  struct Tie {
    std::string layer, param;
  };
  std::map<std::string, Tie> tied = {};
  // Its parameters are called by its name and theirs in the whole model, and it is a unit of ZeRO
  // and of recomputation. Flat: they are called as they are inside it, and belong to the unit
  // around it (an embedding whose table the head uses too).
  bool flat = false;
  double cost =
      1;  // of running it, beside the others': a pipeline's stages cost as little as can be
};

// Called with the last layer and its input, in place of loss(input, targets): to predict, say.
using Finish = std::function<at::Tensor(torch::nn::Module& last, const at::Tensor& input)>;
// The same for a last layer that takes several tensors.
using FinishList =
    std::function<at::Tensor(torch::nn::Module& last, const std::vector<at::Tensor>& input)>;

}  // namespace tessera
