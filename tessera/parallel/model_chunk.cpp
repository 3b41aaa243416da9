#include "tessera/parallel/model_chunk.h"

#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::parallel {
namespace {

[[noreturn]] void refuse_twice(const std::string& what) {
  throw UsageError(str("two layers have ", what,
                       "; give each layer a name of its own, or let them share the same object"));
}

// Gives `to` what `from` has, under the same names. What both share already is there once.
void adopt(torch::nn::Module& to, const torch::nn::Module& from) {
  const auto params = to.named_parameters(/*recurse=*/false);
  for (const auto& item : from.named_parameters(/*recurse=*/false)) {
    if (const at::Tensor* there = params.find(item.key())) {
      if (!there->is_same(item.value())) refuse_twice(str("a parameter ", quote(item.key())));
      continue;
    }
    to.register_parameter(item.key(), item.value(), item.value().requires_grad());
  }
  const auto buffers = to.named_buffers(/*recurse=*/false);
  for (const auto& item : from.named_buffers(/*recurse=*/false)) {
    if (buffers.contains(item.key())) refuse_twice(str("a buffer ", quote(item.key())));
    to.register_buffer(item.key(), item.value());
  }
  const auto children = to.named_children();
  for (const auto& item : from.named_children()) {
    if (const auto* there = children.find(item.key())) {
      if (*there != item.value()) refuse_twice(str("a module ", quote(item.key())));
      continue;
    }
    to.register_module(item.key(), item.value());
  }
}

// Where a name with dots leads to: "blocks.3" is child 3 of child blocks, which is made if need be.
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
  if (at->named_children().contains(last)) refuse_twice(str("the name ", quote(name)));
  at->register_module(last, module);
}

thread_local LayerWatch* watching = nullptr;

torch::nn::AnyModule made_by(const Layer& layer, const tensor_parallel::Axis& tp,
                             const ModelChunkImpl::Made& made) {
  if (layer.name.empty()) throw UsageError("a layer has no name; wanted one of its own for each");
  if (!layer.make) throw UsageError(str("layer ", quote(layer.name), " has no factory"));
  const LayerContext context{
      layer.name, tp, [&made](const std::string& name) -> std::shared_ptr<torch::nn::Module> {
        const auto found = made.find(name);
        return found == made.end() ? nullptr : found->second;
      }};
  torch::nn::AnyModule module = layer.make(context);
  if (module.is_empty()) {
    throw UsageError(str("the factory of layer ", quote(layer.name),
                         " returned no module; wanted torch::nn::AnyModule(YourLayer(…))"));
  }
  return module;
}

}  // namespace

LayerWatch::LayerWatch(Seen seen)
    : seen_(std::move(seen)), before_(std::exchange(watching, this)) {}
LayerWatch::~LayerWatch() { watching = before_; }

at::Tensor LayerWatch::shown(const std::string& layer, at::Tensor output) {
  if (watching != nullptr) watching->seen_(layer, output);
  return output;
}

LayerUnit::LayerUnit(torch::nn::AnyModule module)
    : module_(std::move(module)), inner_(module_.ptr()) {
  adopt(*this, *inner_);
}

at::Tensor LayerUnit::forward(const at::Tensor& x) {
  return run([module = module_](at::Tensor in) mutable { return module.forward<at::Tensor>(in); },
             x);
}

at::Tensor LayerUnit::forward(const at::Tensor& x, const at::Tensor& targets) {
  return run(
      [module = module_](at::Tensor in, at::Tensor wanted) mutable {
        return module.forward<at::Tensor>(in, wanted);
      },
      x, targets);
}

at::Tensor LayerUnit::forward(const at::Tensor& x, const Finish& finish) {
  return run([&](at::Tensor in) { return finish(*inner_, in); }, x);
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
                               std::size_t last, const tensor_parallel::Axis& tp, Made* made,
                               const OnMade& on_made)
    : first_(first == 0), last_(last == layers.size()) {
  Made own;
  if (made == nullptr) made = &own;
  for (std::size_t i = first; i < last; ++i) {
    const Layer& layer = layers[i];
    auto unit = std::make_shared<LayerUnit>(made_by(layer, tp, *made));
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

at::Tensor ModelChunkImpl::forward_layers(const at::Tensor& x, std::size_t count) {
  at::Tensor y = x;
  for (std::size_t i = 0; i < count; ++i) y = LayerWatch::shown(names_[i], layers_[i]->forward(y));
  return y;
}

at::Tensor ModelChunkImpl::forward(const at::Tensor& x, const at::Tensor& targets,
                                   const Finish* finish) {
  const at::Tensor y = forward_layers(x, layers_.size() - (last_ ? 1 : 0));
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

}  // namespace tessera::parallel
