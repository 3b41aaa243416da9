#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/nn/unit.h"
#include "tessera/parallel/layer.h"
#include "tessera/tensor_parallel/sharded.h"

namespace tessera::parallel {

// Value between two layers: its tensors, and whether they travel as a vector or as one tensor.
using LayerValue = std::pair<std::vector<at::Tensor>, bool>;

// A layer under its name: a unit with the parameters, buffers and children of the module in it, so
// that they are called as the layer says and nothing more.
class LayerUnit : public torch::nn::Module, public nn::UnitBase, public tensor_parallel::Sharded {
 public:
  explicit LayerUnit(torch::nn::AnyModule module);

  LayerValue forward(const LayerValue& x);
  LayerValue forward(const LayerValue& x, const at::Tensor& targets);  // of the last layer
  LayerValue forward(const LayerValue& x, const FinishList& finish);   // of the last layer
  std::vector<ParamSpec> specs() const override;
  void train(bool on = true) override;
  const std::shared_ptr<torch::nn::Module>& shared_module() const { return inner_; }
  torch::nn::Module& module() { return *inner_; }

 private:
  torch::nn::AnyModule module_;
  std::shared_ptr<torch::nn::Module> inner_;  // what is in it
};

// Calls `seen` with the name and each output of each layer that the calling thread runs forward,
// for as long as this lives; then the one before is called again. For finding where numbers go
// wrong.
class LayerWatch {
 public:
  using Seen = std::function<void(const std::string& layer, const at::Tensor& output)>;
  explicit LayerWatch(Seen seen);
  ~LayerWatch();
  LayerWatch(const LayerWatch&) = delete;
  LayerWatch& operator=(const LayerWatch&) = delete;

 private:
  friend class ModelChunkImpl;
  static LayerValue shown(const std::string& layer, LayerValue output);

  const Seen seen_;
  LayerWatch* const before_;
};

// Some layers of a model in a row: what one stage of a pipeline has, or all. Its parameters are
// called as in the whole model.
class ModelChunkImpl : public torch::nn::Module, public tensor_parallel::Sharded {
 public:
  // Layers [first, last) of the list. `made` finds layers of other chunks on this rank and gets
  // those of this one; null: there are no others. `on_made` is called with each when it is there.
  using Made = std::map<std::string, std::shared_ptr<torch::nn::Module>>;
  using OnMade = std::function<void(const Layer&, LayerUnit&)>;
  ModelChunkImpl(const std::vector<Layer>& layers, std::size_t first, std::size_t last,
                 const tensor_parallel::Axis& tp, Made* made = nullptr,
                 const OnMade& on_made = nullptr);

  // Through all layers. The last one of the model gives the loss, or what `finish` makes.
  LayerValue forward(const LayerValue& x, const at::Tensor& targets, const FinishList* finish);
  // Through the first `count` of them, none of which is the model's last.
  LayerValue forward_layers(LayerValue x, std::size_t count);
  // The same for layers that take and return one tensor each.
  at::Tensor forward_layers(const at::Tensor& x, std::size_t count);

  bool has_first() const { return first_; }
  std::size_t size() const { return layers_.size(); }
  torch::nn::Module& layer(std::size_t index) { return layers_[index]->module(); }
  // What its layers recompute: all but the model's first, whose input has no gradient, and its
  // last, whose results backward needs at once.
  void set_recompute(nn::Recompute mode);
  std::vector<ParamSpec> specs() const override;
  void train(bool on = true) override;

 private:
  bool first_, last_;
  std::vector<std::shared_ptr<LayerUnit>> layers_;
  std::vector<std::string> names_;  // of the layers
  std::vector<bool> flat_;
};
TORCH_MODULE(ModelChunk);

// While it lives, layers run as in evaluation: a dropout of torch's drops nothing, its batch norm
// learns nothing. Then each of their modules is as it was.
class Evaluating {
 public:
  explicit Evaluating(const std::vector<std::shared_ptr<ModelChunkImpl>>& chunks);
  ~Evaluating();
  Evaluating(const Evaluating&) = delete;
  Evaluating& operator=(const Evaluating&) = delete;

 private:
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> were_;
};

}  // namespace tessera::parallel
