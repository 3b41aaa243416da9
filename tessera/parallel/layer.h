#pragma once

#include <torch/nn/modules/container/any.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/context_parallel/attention.h"
#include "tessera/experts/layer.h"
#include "tessera/tensor_parallel/layers.h"

namespace tessera {

// Arguments of a layer's factory on one rank.
struct LayerContext {
  std::string name;          // of the layer
  tensor_parallel::Axis tp;  // ranks that share its matrices; one rank without tensor parallelism
  // Ranks that share the tokens of its input, dim 1: [Note: context layers].
  context_parallel::Axis cp = {};
  comm::Group ep = {};  // ranks that share its experts: experts::MixtureOfExperts
  // Returns a layer that this rank made before, by its name; null if it is on another stage.
  std::function<std::shared_ptr<torch::nn::Module>(const std::string& name)> find;
  // Returns the tensor that an earlier layer on this rank has for a parameter in Layer::tied, by
  // its name in this layer: register that tensor. Undefined if no earlier layer here has it:
  // register a new one.
  std::function<at::Tensor(const std::string& param)> tied;

  // Returns options for a MeshDropout inside the layer. Default rate: ParallelOptions::dropout.
  tensor_parallel::DropoutOptions dropout(const std::string& child,
                                          std::optional<double> rate = std::nullopt) const {
    return {.rate = rate, .label = name + "." + child};
  }
  // Returns the ranks of an experts::MixtureOfExperts inside the layer.
  experts::Ranks experts() const { return {tp, cp.group, ep}; }
  // Returns options for a tensor-parallel linear inside the layer: its size, and its name in
  // messages and traces.
  tensor_parallel::LinearOptions linear(const std::string& child, std::int64_t in,
                                        std::int64_t out) const {
    return {.in = in, .out = out, .label = name + "." + child};
  }
};

// [Note: context layers] With context parallelism, ParallelModel gives each rank its part of the
// tokens: dim 1 of inputs and targets, padded to equal parts (inputs with 0, int64 targets with
// -1) and cut as [Note: zig-zag] describes. Layers that work on each token alone need no change. A
// layer that mixes tokens calls context_parallel::attention() with LayerContext::cp, and one that
// needs positions takes nn::positions_of(at.cp.part(), …). The loss of a rank covers its own
// tokens. If ranks may have different numbers of labels, return sums and pass
// StepNumbers::tokens, so that every label has the same weight.
//
// [Note: layers] One layer of a model. A model is a list of layers: the output of each layer is the
// input of the next. Each rank makes its layers in order, with their factories. A layer takes one
// tensor and returns one; the last layer also takes the targets, and returns the loss of a
// micro-batch, one number.
//
// A layer may return several tensors (such as hidden states and a mask) as
// std::vector<at::Tensor>; the next layer then takes that vector. They may be of any type; only
// floating-point tensors that require a gradient get one. Pipelines send at most 8 between stages.
struct Layer {
  std::string name;  // unique; dots make a path ("blocks.3")
  std::function<torch::nn::AnyModule(const LayerContext&)> make;
  // Parameters shared with an earlier layer, by their names in this layer. Any number of layers may
  // be tied to one. The factory registers the tensor that LayerContext::tied() returns, or a new
  // one if that is undefined: copies on other ranks start with equal values, and their gradients
  // are summed. UsageError on every rank if a name is wrong, if a copy has another shape, or if it
  // is a second copy on its rank.
  struct Tie {
    std::string layer, param;
  };
  std::map<std::string, Tie> tied = {};
  // False: the layer is a unit of ZeRO and of recomputation, and the names of its parameters in the
  // whole model start with its name. True: the names have no prefix, and the parameters belong to
  // the enclosing unit (for an embedding whose table the head also uses).
  bool flat = false;
  // Relative cost of running it. The pipeline split balances the costs of stages.
  double cost = 1;
};

// Function that replaces loss(input, targets) of the last layer, for example to predict.
using Finish = std::function<at::Tensor(torch::nn::Module& last, const at::Tensor& input)>;
// The same for a last layer that takes several tensors.
using FinishList =
    std::function<at::Tensor(torch::nn::Module& last, const std::vector<at::Tensor>& input)>;

}  // namespace tessera
