#include "tessera/nn/unit.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/container/sequential.h>

#include <unordered_map>
#include <unordered_set>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/nn/sequential_unit.h"

namespace tessera::nn {
namespace {

struct ObserverHolder : torch::CustomClassHolder {
  explicit ObserverHolder(std::shared_ptr<UnitObserver> o) : observer(std::move(o)) {}
  std::shared_ptr<UnitObserver> observer;
};

// All observed tensors go through one node, so that its backward runs once: for outputs before
// anything inside the unit, for inputs after everything that leads to them.
template <void (UnitObserver::*Notify)()>
struct BackwardHook : torch::autograd::Function<BackwardHook<Notify>> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context,
                                                const std::shared_ptr<UnitObserver>& observer,
                                                at::TensorList tensors) {
    context->saved_data["observer"] =
        c10::IValue::make_capsule(c10::make_intrusive<ObserverHolder>(observer));
    context->set_materialize_grads(false);
    // detach() rather than the tensor itself: autograd does not treat the result as a view, so the
    // unit may change it in place, and changes are still visible in the version that autograd
    // checks.
    torch::autograd::variable_list same;
    for (const at::Tensor& tensor : tensors) same.push_back(tensor.detach());
    return same;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    auto capsule = context->saved_data["observer"].toCapsule();
    (static_cast<ObserverHolder*>(capsule.get())->observer.get()->*Notify)();
    grads.insert(grads.begin(), at::Tensor());  // gradient of the observer argument
    return grads;
  }
};

template <void (UnitObserver::*Notify)()>
std::vector<at::Tensor> watch(const std::shared_ptr<UnitObserver>& observer,
                              std::vector<at::Tensor> tensors) {
  if (!at::GradMode::is_enabled()) return tensors;
  std::vector<at::Tensor> observed_tensors;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined() && tensor.requires_grad()) observed_tensors.push_back(tensor);
  }
  if (observed_tensors.empty()) return tensors;
  std::vector<at::Tensor> same =
      BackwardHook<Notify>::apply(observer, at::TensorList(observed_tensors));
  std::size_t next = 0;
  for (at::Tensor& tensor : tensors) {
    if (tensor.defined() && tensor.requires_grad()) tensor = same[next++];
  }
  return tensors;
}

bool is_unit(const torch::nn::Module& module) {
  return dynamic_cast<const UnitBase*>(&module) != nullptr;
}

class Finder {
 public:
  std::vector<FoundUnit> units;

  void visit(torch::nn::Module& module, const std::string& prefix, bool inside) {
    if (!seen_.insert(&module).second) return;
    auto* sequential = inside ? nullptr : dynamic_cast<torch::nn::SequentialImpl*>(&module);
    auto slot = sequential == nullptr ? torch::nn::SequentialImpl::Iterator() : sequential->begin();
    for (const auto& child : module.named_children()) {
      const std::string name = prefix.empty() ? child.key() : prefix + "." + child.key();
      torch::nn::Module& value = *child.value();
      bool unit = false;
      if (auto* declared = dynamic_cast<UnitBase*>(&value)) {
        add({name, &value, declared});
        unit = true;
      } else if (sequential != nullptr && slot->ptr() == child.value() &&
                 is_sequential_unit(value)) {
        // One unit for a child that occurs several times, and for repeated calls of find_units().
        auto& one = sequential_units_[&value];
        if (auto earlier = unit_of(*slot)) {
          one = earlier;
        } else {
          if (one == nullptr) one = std::make_shared<SequentialUnit>(*slot);
          call_through(*slot, one);
        }
        add({name, &value, one.get()});
        unit = true;
      }
      if (sequential != nullptr) ++slot;
      visit(value, name, inside || unit);
    }
  }

 private:
  void add(FoundUnit unit) {
    if (listed_.insert(unit.module).second) units.push_back(std::move(unit));
  }

  // Excludes a child that is a Sequential or contains units; it is searched for smaller units
  // instead.
  static bool is_sequential_unit(torch::nn::Module& child) {
    if (child.parameters().empty() || dynamic_cast<torch::nn::SequentialImpl*>(&child))
      return false;
    for (const auto& module : child.modules(/*include_self=*/false)) {
      if (is_unit(*module)) return false;
    }
    return true;
  }

  std::unordered_set<const torch::nn::Module*> seen_, listed_;
  std::unordered_map<const torch::nn::Module*, std::shared_ptr<SequentialUnit>> sequential_units_;
};

}  // namespace

std::vector<at::Tensor> watch_inputs(const std::shared_ptr<UnitObserver>& observer,
                                     std::vector<at::Tensor> tensors) {
  if (const auto type = observer->input_type()) {
    for (at::Tensor& tensor : tensors) {
      if (tensor.defined() && at::isFloatingType(tensor.scalar_type())) tensor = tensor.to(*type);
    }
  }
  return watch<&UnitObserver::leave_backward>(observer, std::move(tensors));
}
std::vector<at::Tensor> watch_outputs(const std::shared_ptr<UnitObserver>& observer,
                                      std::vector<at::Tensor> tensors) {
  return watch<&UnitObserver::enter_backward>(observer, std::move(tensors));
}

std::vector<FoundUnit> find_units(torch::nn::Module& model) {
  Finder finder;
  finder.visit(model, "", false);
  return std::move(finder.units);
}

void release_units(torch::nn::Module& model) {
  for (const auto& module : model.modules()) {
    auto* sequential = dynamic_cast<torch::nn::SequentialImpl*>(module.get());
    if (sequential == nullptr) continue;
    for (torch::nn::AnyModule& slot : *sequential) {
      const auto unit = unit_of(slot);
      if (unit != nullptr && !unit->in_use()) slot = unit->child();
    }
  }
}

void set_recompute(torch::nn::Module& model, Recompute mode) {
  const std::vector<FoundUnit> units = find_units(model);
  if (units.empty() && mode != Recompute::none) {
    throw UsageError(str(
        "Activation recomputation \"", name(mode),
        "\" works on units, but this model has none. Hold its blocks in nn::Unit<Block>, or put "
        "them into a Sequential."));
  }
  for (const FoundUnit& unit : units) unit.unit->set_recompute(mode);
}

}  // namespace tessera::nn
