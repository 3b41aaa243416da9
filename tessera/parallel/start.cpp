#include "tessera/parallel/start.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/kernels/cuda/cuda.h"
#include "tessera/nn/unallocated.h"
#include "tessera/parallel/parallelize.h"

namespace tessera::parallel {

Start::Start(const comm::Mesh& mesh, const ParallelOptions& options,
             const std::vector<Layer>& layers)
    : mesh_(mesh), options_(options) {
  for (const Layer& layer : layers) {
    if (!flat_.emplace(layer.name, layer.flat).second) {
      throw UsageError(
          str("two layers are called ", quote(layer.name), "; wanted a name of its own for each"));
    }
  }
}

std::string Start::whole_name_of(const Layer::Tie& tie) const {
  return flat_.at(tie.layer) ? tie.param : str(tie.layer, ".", tie.param);
}

void Start::take(const Layer& layer, torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  if (!options_.device.is_cpu()) module.to(options_.device);
  const int t = mesh_.coordinate().tp(), tp = mesh_.axes().tp();
  std::vector<ParamSpec> specs = tensor_parallel::find_specs(module);
  std::size_t next = 0;
  for (const auto& item : module.named_parameters()) {
    ParamSpec& spec = specs.at(next++);
    const auto tie = layer.tied.find(item.key());
    const bool copy = tie != layer.tied.end();
    spec.name = copy ? whole_name_of(tie->second) : whole_name(layer, item.key());
    if (copy) tied_[whole_name(layer, item.key())] = spec.name;
    if (counted_.contains(spec.name)) {
      if (copy) continue;  // the very tensor that an earlier layer here has
      throw UsageError(str("two layers have a parameter ", quote(spec.name),
                           "; give the layers names of their own, or tie them"));
    }
    counted_[spec.name] = copy ? std::vector<Run>() : counted_runs(spec, t, tp);
    specs_.push_back(spec);
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
      [filled = filled_, lying = stored_, stored = options_.stored, initial = options_.initial,
       seed = options_.seed, t = mesh_.coordinate().tp(),
       tp = mesh_.axes().tp()](const std::string& name, std::int64_t begin, const at::Tensor& out) {
        const ParamSpec& spec = filled.at(name);
        if (lying.contains(name)) return fill_stored_range(out, spec, stored, t, tp, begin);
        fill_initial_range(out, spec, initial(spec), seed, t, tp, begin);
      };
  source.on_device = kernels::cuda::built();
  return source;
}

void Start::share_kept(torch::nn::Module& module, const std::vector<TieGroup>& ties) {
  if (kept_.empty()) return;
  const at::NoGradGuard no_grad;
  std::map<std::string, at::Tensor> kept;  // each once, however many layers here have it
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
    if (spec->tp_dim < 0) share(mesh_.tp(), name, param);
  }
  // Stages have their layers in other orders, and all of them these.
  for (const TieGroup& tie : ties) {
    if (const auto found = kept.find(tie.param); found != kept.end()) {
      share(tie.group, tie.param, found->second);
    }
  }
}

const std::vector<Run>& Start::counted(const std::string& param) const {
  const auto found = counted_.find(param);
  if (found == counted_.end()) throw Error(str("no parameter is called ", quote(param)));
  return found->second;
}

std::string Start::name_of(const std::string& raw) const {
  const std::string name =
      mesh_.axes().pp() > 1 ? raw.substr(raw.find('.') + 1) : raw;  // less its chunk
  const auto tied = tied_.find(name);
  return tied == tied_.end() ? name : tied->second;
}

}  // namespace tessera::parallel
