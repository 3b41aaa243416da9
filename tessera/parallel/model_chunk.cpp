#include "tessera/parallel/model_chunk.h"

#include <c10/util/Type.h>

#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/parallel/cut.h"

namespace tessera::parallel {
namespace {

[[noreturn]] void throw_duplicate(const std::string& what) {
  throw UsageError(str("Two layers have ", what,
                       ". Give each layer a unique name, or let them share the same object"));
}

// Registers the members of `from` in `to` under the same names. Shared members are registered once.
void adopt(torch::nn::Module& to, const torch::nn::Module& from) {
  const auto params = to.named_parameters(/*recurse=*/false);
  for (const auto& item : from.named_parameters(/*recurse=*/false)) {
    if (const at::Tensor* there = params.find(item.key())) {
      if (!there->is_same(item.value())) throw_duplicate(str("a parameter ", quote(item.key())));
      continue;
    }
    to.register_parameter(item.key(), item.value(), item.value().requires_grad());
  }
  const auto buffers = to.named_buffers(/*recurse=*/false);
  for (const auto& item : from.named_buffers(/*recurse=*/false)) {
    if (buffers.contains(item.key())) throw_duplicate(str("a buffer ", quote(item.key())));
    to.register_buffer(item.key(), item.value());
  }
  const auto children = to.named_children();
  for (const auto& item : from.named_children()) {
    if (const auto* there = children.find(item.key())) {
      if (*there != item.value()) throw_duplicate(str("a module ", quote(item.key())));
      continue;
    }
    to.register_module(item.key(), item.value());
  }
}

// Registers a module under a name with dots: "blocks.3" is child 3 of child blocks, which is made
// if needed.
void register_at(torch::nn::Module& root, const std::string& name,
                 const std::shared_ptr<torch::nn::Module>& module) {
  torch::nn::Module* at = &root;
  std::size_t begin = 0;
  for (std::size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', begin)) {
    const std::string step = name.substr(begin, dot - begin);
    const auto children = at->named_children();
    const auto* there = children.find(step);
    at = there != nullptr ? there->get()
                          : at->register_module(step, std::make_shared<torch::nn::Module>()).get();
    begin = dot + 1;
  }
  const std::string last = name.substr(begin);
  if (at->named_children().contains(last)) throw_duplicate(str("the name ", quote(name)));
  at->register_module(last, module);
}

thread_local LayerWatch* watching = nullptr;

// Returns the tensor that an earlier layer has for a tied parameter of layer `who`; undefined if
// none has it.
at::Tensor tied_tensor(const std::vector<Layer>& layers, std::size_t who, const std::string& param,
                       const ModelChunkImpl::Made& made) {
  if (!layers[who].tied.contains(param)) {
    throw UsageError(str("LayerContext::tied(", quote(param), ") in layer ",
                         quote(layers[who].name), ": Layer::tied does not have that name."));
  }
  const TieOwner owner = tie_owner(layers, who, param);
  for (std::size_t i = 0; i < who; ++i) {
    const auto found = made.find(layers[i].name);
    if (found == made.end()) continue;
    const auto params = found->second->named_parameters();
    const auto has = [&](const std::string& name) {
      const at::Tensor* there = params.find(name);
      return there == nullptr ? at::Tensor() : *there;
    };
    if (i == owner.layer) return has(owner.param);
    for (const auto& [own, tie] : layers[i].tied) {
      if (tie_owner(layers, i, own) == owner) return has(own);
    }
  }
  return {};
}

torch::nn::AnyModule make_layer(const std::vector<Layer>& layers, std::size_t index,
                                const LayerAxes& axes, const ModelChunkImpl::Made& made) {
  const Layer& layer = layers[index];
  if (layer.name.empty()) throw UsageError("A layer has no name. Give each layer a unique name");
  if (!layer.make) throw UsageError(str("layer ", quote(layer.name), " has no factory"));
  const LayerContext context{
      layer.name,
      axes.tp,
      axes.cp,
      axes.ep,
      [&made](const std::string& name) -> std::shared_ptr<torch::nn::Module> {
        const auto found = made.find(name);
        return found == made.end() ? nullptr : found->second;
      },
      [&](const std::string& param) { return tied_tensor(layers, index, param, made); }};
  torch::nn::AnyModule module = layer.make(context);
  if (module.is_empty()) {
    throw UsageError(str("The factory of layer ", quote(layer.name),
                         " returned an empty module. Return torch::nn::AnyModule(YourLayer(…))"));
  }
  return module;
}

LayerValue value_of(torch::nn::AnyValue output, const torch::nn::AnyModule& module) {
  if (auto* one = output.try_get<at::Tensor>()) return {{std::move(*one)}, false};
  if (auto* list = output.try_get<std::vector<at::Tensor>>()) return {std::move(*list), true};
  throw UsageError(str("A ", module.ptr()->name(), " returned a value of type ",
                       c10::demangle(output.type_info().name()),
                       ". A layer must return at::Tensor or std::vector<at::Tensor>."));
}

}  // namespace

LayerWatch::LayerWatch(Seen seen)
    : seen_(std::move(seen)), before_(std::exchange(watching, this)) {}
LayerWatch::~LayerWatch() { watching = before_; }

LayerValue LayerWatch::shown(const std::string& layer, LayerValue output) {
  if (watching == nullptr) return output;
  for (const at::Tensor& tensor : output.first) watching->seen_(layer, tensor);
  return output;
}

LayerUnit::LayerUnit(torch::nn::AnyModule module)
    : module_(std::move(module)), inner_(module_.ptr()) {
  adopt(*this, *inner_);
}

LayerValue LayerUnit::forward(const LayerValue& x) {
  return run(
      [module = module_](LayerValue in) mutable {
        return value_of(in.second ? module.any_forward(std::move(in.first))
                                  : module.any_forward(std::move(in.first[0])),
                        module);
      },
      x);
}

LayerValue LayerUnit::forward(const LayerValue& x, const at::Tensor& targets) {
  return run(
      [module = module_](LayerValue in, at::Tensor wanted) mutable {
        return value_of(in.second ? module.any_forward(std::move(in.first), std::move(wanted))
                                  : module.any_forward(std::move(in.first[0]), std::move(wanted)),
                        module);
      },
      x, targets);
}

LayerValue LayerUnit::forward(const LayerValue& x, const FinishList& finish) {
  return run([&](LayerValue in) { return LayerValue({finish(*inner_, in.first)}, false); }, x);
}

std::vector<ParamSpec> LayerUnit::specs() const {
  const auto* sharded = dynamic_cast<const tensor_parallel::Sharded*>(inner_.get());
  return sharded != nullptr ? sharded->specs() : std::vector<ParamSpec>();
}

void LayerUnit::train(bool on) {
  torch::nn::Module::train(on);
  inner_->train(on);
}

ModelChunkImpl::ModelChunkImpl(const std::vector<Layer>& layers, std::size_t first,
                               std::size_t last, const LayerAxes& axes, Made* made,
                               const OnMade& on_made)
    : first_(first == 0), last_(last == layers.size()) {
  Made own;
  if (made == nullptr) made = &own;
  for (std::size_t i = first; i < last; ++i) {
    const Layer& layer = layers[i];
    auto unit = std::make_shared<LayerUnit>(make_layer(layers, i, axes, *made));
    if (on_made) on_made(layer, *unit);
    (*made)[layer.name] = unit->shared_module();
    names_.push_back(layer.name);
    flat_.push_back(layer.flat);
    if (layer.flat) {
      adopt(*this, *unit);
    } else {
      register_at(*this, layer.name, unit);
    }
    layers_.push_back(std::move(unit));
  }
}

LayerValue ModelChunkImpl::forward_layers(LayerValue x, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) x = LayerWatch::shown(names_[i], layers_[i]->forward(x));
  return x;
}

at::Tensor ModelChunkImpl::forward_layers(const at::Tensor& x, std::size_t count) {
  return forward_layers(LayerValue({x}, false), count).first[0];
}

LayerValue ModelChunkImpl::forward(const LayerValue& x, const at::Tensor& targets,
                                   const FinishList* finish) {
  const LayerValue y = forward_layers(x, layers_.size() - (last_ ? 1 : 0));
  if (!last_) return y;
  return LayerWatch::shown(names_.back(), finish != nullptr ? layers_.back()->forward(y, *finish)
                                                            : layers_.back()->forward(y, targets));
}

void ModelChunkImpl::set_recompute(nn::Recompute mode) {
  for (std::size_t i = first_ ? 1 : 0; i + (last_ ? 1 : 0) < layers_.size(); ++i) {
    layers_[i]->set_recompute(mode);
  }
}

std::vector<ParamSpec> ModelChunkImpl::specs() const {
  std::vector<ParamSpec> specs;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    if (!flat_[i]) continue;
    const std::vector<ParamSpec> own = layers_[i]->specs();
    specs.insert(specs.end(), own.begin(), own.end());
  }
  return specs;
}

void ModelChunkImpl::train(bool on) {
  torch::nn::Module::train(on);
  for (const auto& layer : layers_) layer->train(on);
}

Evaluating::Evaluating(const std::vector<std::shared_ptr<ModelChunkImpl>>& chunks) {
  // Outer modules first: train() also sets the modules inside, which follow.
  for (const auto& chunk : chunks) were_.emplace_back(chunk, chunk->is_training());
  for (const auto& chunk : chunks) {
    for (std::size_t i = 0; i < chunk->size(); ++i) {
      for (const auto& module : chunk->layer(i).modules()) {
        were_.emplace_back(module, module->is_training());
      }
    }
  }
  for (const auto& chunk : chunks) chunk->eval();
}

Evaluating::~Evaluating() {
  for (const auto& [module, was] : were_) module->train(was);
}

}  // namespace tessera::parallel
