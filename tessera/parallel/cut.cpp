#include "tessera/parallel/cut.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "tessera/core/errors.h"
#include "tessera/core/hash.h"
#include "tessera/core/text.h"
#include "tessera/parallel/parallelize.h"
#include "tessera/pipeline/transfers.h"
#include "tessera/schedule/split.h"

namespace tessera::parallel {
namespace {

// Returns the first layer of each stage, and the end.
std::vector<int> bounds_of(const std::vector<Layer>& layers, int stages,
                           const std::vector<int>& asked) {
  if (!asked.empty()) {
    return schedule::split_by_hand(asked, static_cast<int>(layers.size()), stages);
  }
  std::vector<double> costs;
  for (const Layer& layer : layers) costs.push_back(layer.cost);
  return schedule::split(costs, stages);
}

schedule::Schedule schedule_of(int pp, const ParallelOptions& options) {
  if (pp == 1) return schedule::one_f_one_b(1, 1);
  return schedule::make(options.schedule, pp, options.micro_batches, options.model_chunks);
}

}  // namespace

PipelineSplit::PipelineSplit(const std::vector<Layer>& layers, int pp,
                             const ParallelOptions& options)
    : schedule_(schedule_of(pp, options)) {
  if (layers.empty()) {
    throw UsageError("The model has no layers. Pass at least one layer, which returns the loss");
  }
  for (std::size_t i = 0; i < layers.size(); ++i) {
    for (const auto& [own, tie] : layers[i].tied) tie_owner(layers, i, own);
  }
  const std::vector<int> bounds =
      bounds_of(layers, schedule_.stage_count(), pp == 1 ? std::vector<int>() : options.split);
  for (std::size_t s = 0; s + 1 < bounds.size(); ++s) {
    stages_.push_back(
        {static_cast<std::size_t>(bounds[s]), static_cast<std::size_t>(bounds[s + 1])});
  }
  if (pp == 1) return;
  if (options.engine.stage == 3 && schedule::splits_backward(schedule_)) {
    throw UsageError(str("schedule ", options.schedule,
                         " defers weight gradients, but ZeRO stage 3 frees a layer after its "
                         "backward. Use another stage, or the schedule 1f1b"));
  }
  if (options.engine.stage == 3 && (options.engine.keep_params || options.engine.keep_unit)) {
    throw UsageError(
        "keep_params and keep_unit are not supported in a pipeline: several micro-batches are in "
        "flight, so parameters would be kept almost always. Use stage 2, or unset both");
  }
}

int PipelineSplit::stage_of(std::size_t layer) const {
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    if (layer < stages_[s].last) return static_cast<int>(s);
  }
  throw Error(str("layer ", layer, " is not on any stage"));
}

TieOwner tie_owner(const std::vector<Layer>& layers, std::size_t who, const std::string& param) {
  TieOwner owner{who, param};
  for (auto tie = layers[who].tied.find(param); tie != layers[owner.layer].tied.end();
       tie = layers[owner.layer].tied.find(owner.param)) {
    const auto end = layers.begin() + static_cast<std::ptrdiff_t>(owner.layer);
    const auto named = std::find_if(
        layers.begin(), end, [&](const Layer& layer) { return layer.name == tie->second.layer; });
    if (named == end) {
      throw UsageError(str("Layer ", quote(layers[owner.layer].name), " is tied to layer ",
                           quote(tie->second.layer), ". It must be the name of an earlier layer."));
    }
    owner = {static_cast<std::size_t>(named - layers.begin()), tie->second.param};
  }
  return owner;
}

std::string whole_name(const Layer& layer, const std::string& param) {
  return layer.flat ? param : str(layer.name, ".", param);
}

std::vector<TieGroup> tie_groups(const std::vector<Layer>& layers, const PipelineSplit& cut,
                                 const comm::Group& pp) {
  std::map<std::string, std::set<int>> stages;  // by the parameter's name
  for (std::size_t i = 0; i < layers.size(); ++i) {
    for (const auto& [own, tie] : layers[i].tied) {
      const TieOwner owner = tie_owner(layers, i, own);
      auto& with = stages[whole_name(layers[owner.layer], owner.param)];
      with.insert(cut.stage_of(owner.layer));
      with.insert(cut.stage_of(i));
    }
  }
  std::map<std::vector<int>, comm::Group> groups;  // by ranks: ties of the same ranks share one
  std::vector<TieGroup> own;
  for (const auto& [param, with] : stages) {
    std::vector<int> ranks;
    for (const int stage : with) ranks.push_back(cut.schedule().home(stage).rank);
    std::sort(ranks.begin(), ranks.end());
    if (std::adjacent_find(ranks.begin(), ranks.end()) != ranks.end()) {
      throw UsageError(str("Schedule ", cut.schedule().name, " has two stages with the tied ",
                           "parameter ", quote(param), " on one rank, where it would be trained ",
                           "twice. Use schedule 1f1b or gpipe, or another split, or untie it."));
    }
    if (ranks.size() == 1 || !std::binary_search(ranks.begin(), ranks.end(), pp.rank())) continue;
    auto group = groups.find(ranks);
    if (group == groups.end()) group = groups.emplace(ranks, pp.subset(ranks, "tied")).first;
    own.push_back({param, group->second});
  }
  return own;
}

std::vector<std::pair<const char*, comm::Group>> data_groups(const comm::Mesh& mesh) {
  const AxisSet all = mesh.axes().wide(kTokenAxes);
  std::vector<std::pair<const char*, comm::Group>> groups = {{"dp", mesh.group(all)}};
  const auto add = [&](const char* name, AxisSet axes) {
    if (axes != AxisSet() && axes != all) groups.emplace_back(name, mesh.group(axes));
  };
  add("dp_shard", mesh.axes().wide(kShardAxes));
  add("dp_replicate", mesh.axes().wide(Axis::dp_replicate));
  if (mesh.axes().size(Axis::ep) > 1) {
    groups.emplace_back("experts", mesh.expert_group(kTokenAxes));
    if (mesh.axes().size(Axis::dp_replicate) > 1) {
      groups.emplace_back("expert shards", mesh.expert_group(kShardAxes));
    }
  }
  return groups;
}

PerAxis<comm::TrafficCounts> axis_traffic(const comm::Mesh& mesh) {
  PerAxis<comm::TrafficCounts> sent;
  for (const Axis axis : kAllAxes) {
    // Without data parallelism, the group along cp is the engine's; attention has its own.
    const Axis of = axis == Axis::cp ? Axis::dp_shard : axis;
    sent[of] = sent[of] + mesh.group(axis).traffic();
  }
  // The engine's groups over several axes count for dp.
  for (const AxisSet axes :
       std::set<AxisSet>{mesh.axes().wide(kTokenAxes), mesh.axes().wide(kShardAxes)}) {
    if (axes.count() > 1) sent[Axis::dp_shard] = sent[Axis::dp_shard] + mesh.group(axes).traffic();
    if (mesh.axes().size(Axis::ep) == 1) continue;
    sent[Axis::dp_shard] = sent[Axis::dp_shard] + mesh.expert_group(axes).traffic();
  }
  return sent;
}

comm::Group replica_group(const comm::Mesh& mesh) {
  const AxisSet axes = AxisSet::all().without(kTokenAxes);
  if (mesh.axes().ranks(axes) == 1) return comm::Group();
  return mesh.world().subset(mesh.axes().ranks_along(axes, mesh.coordinate()), "model");
}

comm::Group whole_model(const comm::Mesh& mesh, const comm::Group& model) {
  if (mesh.axes().size(Axis::ep) == 1) return model;
  return mesh.group(AxisSet::all().without(kTokenAxes).with(Axis::ep));
}

std::string graph_problem(const Axes& axes, bool draws, bool waits_for_experts) {
  if (draws) return "dropout masks change in every step and are chosen on the host";
  if (axes.size(Axis::ep) > 1) {
    return "the host waits for the numbers of tokens that expert-parallel ranks exchange";
  }
  if (waits_for_experts) {
    return "the host waits for the numbers of tokens of experts whose parameters are not bf16";
  }
  return "";
}

std::string chunk_name(int chunk) { return str("chunk", chunk); }

int chunk_of(const std::string& raw) { return std::stoi(raw.substr(5, raw.find('.') - 5)); }

static at::Tensor broadcast_tensor(const comm::Group& group, int owner, const at::Tensor& tensor,
                                   c10::Device device) {
  if (group.size() == 1) return tensor;
  constexpr std::int64_t kMostDims = 8;
  comm::Call call;
  call.traffic = comm::Traffic::control;
  call.label = "answer";
  const at::Tensor about = at::zeros({2 + kMostDims}, at::kLong);
  auto* words = about.mutable_data_ptr<std::int64_t>();
  if (group.rank() == owner) {
    if (tensor.dim() > kMostDims) {
      throw UsageError(str("The output of the last layer has ", tensor.dim(),
                           " dims, must be at most ", kMostDims));
    }
    words[0] = static_cast<std::int64_t>(tensor.scalar_type());
    words[1] = tensor.dim();
    std::copy(tensor.sizes().begin(), tensor.sizes().end(), words + 2);
  }
  group.broadcast(about, owner, call).wait();
  const at::Tensor all =
      group.rank() == owner
          ? tensor.contiguous()
          : at::empty(at::IntArrayRef(words + 2, static_cast<std::size_t>(words[1])),
                      at::device(device).dtype(static_cast<at::ScalarType>(words[0])));
  group.broadcast(pipeline::movable(all), owner, call).wait();
  return all;
}

std::vector<at::Tensor> broadcast_tensors(const comm::Group& group, int owner,
                                          const std::vector<at::Tensor>& tensors, std::size_t count,
                                          c10::Device device) {
  std::vector<at::Tensor> all;
  for (std::size_t i = 0; i < count; ++i) {
    all.push_back(
        broadcast_tensor(group, owner, tensors.empty() ? at::Tensor() : tensors[i], device));
  }
  return all;
}

std::uint64_t hash_of_replica(const comm::Group& group, std::uint64_t own) {
  if (group.size() == 1) return own;
  const at::Tensor mine = at::empty({1}, at::kLong);
  const at::Tensor all = at::empty({group.size()}, at::kLong);
  std::memcpy(mine.mutable_data_ptr(), &own, sizeof own);
  comm::Call call;
  call.traffic = comm::Traffic::control;
  call.label = "hash of the shards";
  group.all_gather(all, mine, call).wait();
  std::uint64_t hash = 0;
  for (int r = 0; r < group.size(); ++r) {
    hash = mix(hash, static_cast<std::uint64_t>(all.const_data_ptr<std::int64_t>()[r]));
  }
  return hash;
}

}  // namespace tessera::parallel
