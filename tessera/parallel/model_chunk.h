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

// Value between two layers: its tensors, and true if they are passed as a vector.
using LayerValue = std::pair<std::vector<at::Tensor>, bool>;

// Unit for one layer. It registers the parameters, buffers and children of the layer's module, so
// that their names have no additional prefix.
class LayerUnit : public torch::nn::Module, public nn::UnitBase, public tensor_parallel::Sharded {
 public:
  explicit LayerUnit(torch::nn::AnyModule module);

  LayerValue forward(const LayerValue& x);
  LayerValue forward(const LayerValue& x, const at::Tensor& targets);  // last layer only
  LayerValue forward(const LayerValue& x, const FinishList& finish);   // last layer only
  std::vector<ParamSpec> specs() const override;
  void train(bool on = true) override;
  const std::shared_ptr<torch::nn::Module>& shared_module() const { return inner_; }
  torch::nn::Module& module() { return *inner_; }

 private:
  torch::nn::AnyModule module_;
  std::shared_ptr<torch::nn::Module> inner_;  // the same module
};

// Scope in which `seen` is called with the name and each output of every layer that the calling
// thread runs forward. Scopes may be nested; the innermost is called. For locating numerical
// errors.
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

// Ranks that run a layer together.
struct LayerAxes {
  // Implicit, for layers without context parallelism.
  LayerAxes(tensor_parallel::Axis tensor, context_parallel::Axis context = {},
            comm::Group experts = {})
      : tp(std::move(tensor)), cp(std::move(context)), ep(std::move(experts)) {}

  tensor_parallel::Axis tp;
  context_parallel::Axis cp;
  comm::Group ep;
};

// Consecutive layers of a model: those of one pipeline stage, or all. Its parameters have the names
// of the whole model.
class ModelChunkImpl : public torch::nn::Module, public tensor_parallel::Sharded {
 public:
  // Makes layers [first, last) of the list. `made` has the layers of other chunks on this rank, and
  // gets those of this one; null if there are no others. `on_made` is called after each layer.
  using Made = std::map<std::string, std::shared_ptr<torch::nn::Module>>;
  using OnMade = std::function<void(const Layer&, LayerUnit&)>;
  ModelChunkImpl(const std::vector<Layer>& layers, std::size_t first, std::size_t last,
                 const LayerAxes& axes, Made* made = nullptr, const OnMade& on_made = nullptr);

  // Runs all layers. The last layer of the model returns the loss, or the result of `finish`.
  LayerValue forward(const LayerValue& x, const at::Tensor& targets, const FinishList* finish);
  // Runs the first `count` layers, which must not include the model's last.
  LayerValue forward_layers(LayerValue x, std::size_t count);
  // The same for layers that take and return one tensor each.
  at::Tensor forward_layers(const at::Tensor& x, std::size_t count);

  bool has_first() const { return first_; }
  std::size_t size() const { return layers_.size(); }
  torch::nn::Module& layer(std::size_t index) { return layers_[index]->module(); }
  // Sets the recomputation of all layers except the model's first, whose input has no gradient, and
  // its last, whose backward follows immediately.
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

// Scope in which layers are in evaluation mode. Restores the mode of each module at its end.
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
