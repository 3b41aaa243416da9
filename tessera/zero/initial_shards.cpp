#include "tessera/zero/initial_shards.h"

#include <map>

#include "tessera/core/errors.h"
#include "tessera/core/shard.h"
#include "tessera/core/text.h"
#include "tessera/memory/allocator.h"
#include "tessera/nn/unallocated.h"
#include "tessera/zero/engine_of_part.h"
#include "tessera/zero/same_model.h"
#include "tessera/zero/storage.h"

namespace tessera::zero {

struct InitialShards::State {
  DataGroups groups;
  bool broadcast = true;
  std::map<std::string, at::Tensor> shards;
};

InitialShards::InitialShards(comm::Group group, bool broadcast)
    : state_(std::make_shared<State>(State{DataGroups(std::move(group)), broadcast, {}})) {}

InitialShards::InitialShards(const comm::Mesh& mesh, bool broadcast)
    : state_(std::make_shared<State>(State{DataGroups(mesh), broadcast, {}})) {}

void InitialShards::take(torch::nn::Module& module, const std::string& name) {
  for (const auto& entry : module.named_parameters()) {
    if (!entry.value().defined() || nn::is_unallocated(entry.value())) continue;
    take_parameter(name.empty() ? entry.key() : name + "." + entry.key(), entry.value());
  }
}

void InitialShards::take_parameter(const std::string& name, const at::Tensor& param) {
  if (!at::isFloatingType(param.scalar_type()) || param.scalar_type() == at::kDouble) {
    throw UsageError(str("parameter ", quote(name), " is ", c10::toString(param.scalar_type()),
                         ". InitialShards keeps values in fp32, which cannot represent it"));
  }
  const at::NoGradGuard no_grad;
  const comm::Group& all = state_->groups.all;
  const comm::Group& shard = state_->groups.shard;
  const at::Tensor values = elements_in_memory_order(param);
  if (state_->broadcast && all.size() > 1 && values.numel() > 0) {
    comm::Call call;
    call.traffic = comm::Traffic::control;
    call.label = "start " + name;
    all.broadcast(values, 0, call).wait();
  } else if (!state_->broadcast) {
    expect_same_start(all, mix_bits(0, values));
  }
  const ShardRange own =
      nth_shard(param.numel(), shard_size(param.numel(), shard.size()), shard.rank());
  const memory::CategoryScope scope(MemoryCategory::params);
  state_->shards[name] = values.narrow(0, own.begin, own.size).to(at::kFloat, false, /*copy=*/true);
  nn::deallocate(param);
}

InitialSource InitialShards::source() const {
  InitialSource source([state = state_](const std::string& name, std::int64_t,
                                        const at::Tensor& out) {
    const auto found = state->shards.find(name);
    if (found == state->shards.end()) {
      throw UsageError(str("parameter ", quote(name),
                           " was not taken, or was already used by an engine. Call "
                           "InitialShards::take() for each module with its name in the model, and "
                           "use the source for one engine only"));
    }
    if (found->second.numel() != out.numel()) {
      throw UsageError(str("parameter ", quote(name), ": the engine needs ", out.numel(),
                           " elements, but the shard has ", found->second.numel(),
                           ". Make InitialShards with the engine's group"));
    }
    out.copy_(found->second);
    state->shards.erase(found);
  });
  source.own_shard_only = [](const std::string&) { return true; };
  return source;
}

}  // namespace tessera::zero
