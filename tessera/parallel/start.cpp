#include "tessera/parallel/start.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/kernels/cuda/cuda.h"
#include "tessera/nn/unallocated.h"
#include "tessera/parallel/initial.h"
#include "tessera/parallel/parallelize.h"

namespace tessera::parallel {

Start::Start(const comm::Mesh& mesh, const ParallelOptions& options,
             const std::vector<Layer>& layers)
    : mesh_(mesh), options_(options) {
  for (const Layer& layer : layers) {
    if (!ties_.try_emplace(layer.name).second) {
      throw UsageError(
          str("Two layers have the name ", quote(layer.name), ". Give each layer a unique name"));
    }
  }
  for (std::size_t i = 0; i < layers.size(); ++i) {
    for (const auto& [own, tie] : layers[i].tied) {
      const TieOwner owner = tie_owner(layers, i, own);
      const std::string name = whole_name(layers[owner.layer], owner.param);
      ties_[layers[i].name].own[own] = name;
      ties_[layers[owner.layer].name].to.emplace(owner.param, layers[i].name);
      shared_.insert(name);
    }
  }
}

// Throws UsageError if a name in a tie is not a parameter of its layer.
void Start::check_ties(const Layer& layer, const torch::nn::Module& module) const {
  const auto params = module.named_parameters();
  const auto all = [&] {
    std::vector<std::string> names;
    for (const auto& item : params) names.push_back(quote(item.key()));
    return names.empty() ? std::string("It has none.") : str("It has ", join(names, ", "), ".");
  };
  for (const auto& [own, name] : ties_.at(layer.name).own) {
    if (params.contains(own)) continue;
    throw UsageError(str("Layer ", quote(layer.name), ": Layer::tied has ", quote(own),
                         ", which is not a parameter of this layer. ", all()));
  }
  for (const auto& [param, who] : ties_.at(layer.name).to) {
    if (params.contains(param)) continue;
    throw UsageError(str("Layer ", quote(who), " is tied to ", quote(param), " of layer ",
                         quote(layer.name), ", which does not have that parameter. ", all()));
  }
}

// Throws UsageError unless a tied parameter is the tensor of the earlier layer on this rank.
void Start::check_shared(const Layer& layer, const std::string& param, const ParamSpec& spec,
                         const at::Tensor& tensor) const {
  const First& first = first_.at(spec.name);
  if (!first.tensor.is_same(tensor)) {
    throw UsageError(str("Layer ", quote(layer.name), ": parameter ", quote(param), " is tied to ",
                         quote(spec.name), ", which layer ", quote(first.layer),
                         " has on this rank too, but it is a different tensor, so the two would ",
                         "be trained separately. In the factory register at.tied(", quote(param),
                         ") if that is defined."));
  }
  const auto known = std::find_if(specs_.begin(), specs_.end(),
                                  [&](const ParamSpec& each) { return each.name == spec.name; });
  if (*known == spec) return;
  throw UsageError(str("Layer ", quote(layer.name), ": parameter ", quote(param), " is tied to ",
                       quote(spec.name), " of layer ", quote(first.layer),
                       ", but the two are cut in different ways: ", line(spec), " and ",
                       line(*known), ". They must be cut in the same way."));
}

std::string Start::line(const ParamSpec& spec) const {
  std::string text = tessera::str(quote(spec.name), " ", at::IntArrayRef(spec.shape));
  for (const ParamSpec::Cut& cut : spec.cuts) {
    text += str(" cut by ", axis_name(cut.axis), " along dim ", cut.dim);
    for (const ParamSpec::Segment& segment : cut.segments) {
      text += str(" ", segment.length, "/", segment.parts);
    }
  }
  const auto first = first_.find(spec.name);
  if (first != first_.end() && !first->second.tensor.requires_grad()) text += " frozen";
  return text;
}

std::vector<std::string> Start::lines(bool of_experts) const {
  std::vector<std::string> all;
  for (const ParamSpec& spec : specs_) {
    if (spec.of_expert == of_experts) all.push_back(line(spec));
  }
  return all;
}

std::vector<std::string> Start::tied_lines() const {
  std::vector<std::string> all;
  for (const ParamSpec& spec : specs_) {
    const auto shared = shared_.find(spec.name);
    if (shared == shared_.end()) continue;
    all.push_back(str(std::distance(shared_.begin(), shared), " ", line(spec)));
  }
  return all;
}

void Start::take(const Layer& layer, torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  if (!options_.device.is_cpu()) module.to(options_.device);
  check_ties(layer, module);
  const std::map<std::string, std::string>& ties = ties_.at(layer.name).own;
  std::vector<ParamSpec> specs = tensor_parallel::find_specs(module);
  std::size_t next = 0;
  for (const auto& item : module.named_parameters()) {
    ParamSpec& spec = specs.at(next++);
    const auto tie = ties.find(item.key());
    const bool copy = tie != ties.end();
    spec.name = copy ? tie->second : whole_name(layer, item.key());
    if (copy) tied_[whole_name(layer, item.key())] = spec.name;
    if (!first_.try_emplace(spec.name, First{layer.name, item.value()}).second) {
      if (copy) {
        check_shared(layer, item.key(), spec, item.value());
        continue;
      }
      throw UsageError(str("Two layers have a parameter ", quote(spec.name),
                           ". Give the layers unique names, or tie the parameters"));
    }
    counted_[spec.name] =
        copy ? std::vector<Run>() : counted_runs(spec, mesh_.axes(), mesh_.coordinate());
    specs_.push_back(spec);
    if (spec.of_expert) of_expert_.insert(spec.name);
    if (const StoredValues& stored = options_.stored; stored.has && stored.has(spec)) {
      nn::deallocate(item.value());
      filled_[spec.name] = spec;
      stored_.insert(spec.name);
      continue;
    }
    const Initial initial = options_.initial(spec);
    if (initial.keep) {
      kept_.insert(spec.name);
    } else {
      nn::deallocate(item.value());
      filled_[spec.name] = spec;
    }
  }
}

zero::InitialSource Start::source() const {
  zero::InitialSource source =
      [filled = filled_, names = stored_, stored = options_.stored, initial = options_.initial,
       seed = options_.seed, axes = mesh_.axes(), coordinate = mesh_.coordinate()](
          const std::string& name, std::int64_t begin, const at::Tensor& out) {
        const ParamSpec& spec = filled.at(name);
        if (names.contains(name)) {
          return fill_stored_range(out, spec, stored, axes, coordinate, begin);
        }
        fill_initial_range(out, spec, initial(spec), seed, axes, coordinate, begin);
      };
  source.on_device = kernels::cuda::built();
  return source;
}

void Start::share_kept(torch::nn::Module& module, const std::vector<TieGroup>& ties) {
  if (kept_.empty()) return;
  const at::NoGradGuard no_grad;
  std::map<std::string, at::Tensor> kept;  // each parameter once, even if several layers have it
  for (const auto& item : module.named_parameters()) {
    const std::string name = name_of(item.key());
    if (kept_.contains(name)) kept.emplace(name, item.value());
  }
  const auto share = [](const comm::Group& group, const std::string& name,
                        const at::Tensor& param) {
    comm::Call call;
    call.traffic = comm::Traffic::control;
    call.label = "start " + name;
    const at::Tensor values = param.contiguous();
    group.broadcast(values, 0, call).wait();
    if (!values.is_same(param)) param.copy_(values);
  };
  for (const auto& [name, param] : kept) {
    const auto spec = std::find_if(specs_.begin(), specs_.end(),
                                   [&name = name](const auto& each) { return each.name == name; });
    if (!spec->cut_along(Axis::tp)) share(mesh_.tp(), name, param);
  }
  // In the order of ties, which is the same on all stages, unlike the order of layers.
  for (const TieGroup& tie : ties) {
    if (const auto found = kept.find(tie.param); found != kept.end()) {
      share(tie.group, tie.param, found->second);
    }
  }
}

const std::vector<Run>& Start::counted(const std::string& param) const {
  const auto found = counted_.find(param);
  if (found == counted_.end()) throw Error(str("There is no parameter ", quote(param)));
  return found->second;
}

bool Start::is_cut(const std::string& param) const {
  const auto spec = std::find_if(specs_.begin(), specs_.end(),
                                 [&](const ParamSpec& each) { return each.name == param; });
  return spec != specs_.end() &&
         std::any_of(spec->cuts.begin(), spec->cuts.end(),
                     [&](const ParamSpec::Cut& cut) { return mesh_.axes().size(cut.axis) > 1; });
}

bool Start::of_expert(const std::string& param) const { return of_expert_.contains(param); }

std::string Start::name_of(const std::string& raw) const {
  const std::string name =
      mesh_.axes().pp() > 1 ? raw.substr(raw.find('.') + 1) : raw;  // without its chunk
  const auto tied = tied_.find(name);
  return tied == tied_.end() ? name : tied->second;
}

}  // namespace tessera::parallel
