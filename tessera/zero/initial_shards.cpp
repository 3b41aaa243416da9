#include "tessera/zero/initial_shards.h"

#include "tessera/core/errors.h"
#include "tessera/core/shard.h"
#include "tessera/core/text.h"
#include "tessera/memory/allocator.h"
#include "tessera/nn/unallocated.h"
#include "tessera/zero/same_model.h"
#include "tessera/zero/storage.h"

namespace tessera::zero {

InitialShards::InitialShards(comm::Group group, bool broadcast)
    : groups_(std::move(group)),
      broadcast_(broadcast),
      shards_(std::make_shared<std::map<std::string, at::Tensor>>()) {}

InitialShards::InitialShards(const comm::Mesh& mesh, bool broadcast)
    : groups_(mesh),
      broadcast_(broadcast),
      shards_(std::make_shared<std::map<std::string, at::Tensor>>()) {}

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
  const at::Tensor values = elements_in_memory_order(param);
  if (broadcast_ && groups_.all.size() > 1 && values.numel() > 0) {
    comm::Call call;
    call.traffic = comm::Traffic::control;
    call.label = "start " + name;
    groups_.all.broadcast(values, 0, call).wait();
  } else if (!broadcast_) {
    expect_same_start(groups_.all, mix_bits(0, values));
  }
  const ShardRange own =
      tessera::shard_of(param.numel(), groups_.shard.size(), groups_.shard.rank());
  const memory::CategoryScope scope(MemoryCategory::params);
  (*shards_)[name] = values.narrow(0, own.begin, own.size).to(at::kFloat, false, /*copy=*/true);
  nn::deallocate(param);
}

InitialSource InitialShards::source() const {
  InitialSource source([shards = shards_](const std::string& name, std::int64_t,
                                          const at::Tensor& out) {
    const auto found = shards->find(name);
    if (found == shards->end()) {
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
    shards->erase(found);
  });
  source.own_shard_only = [](const std::string&) { return true; };
  return source;
}

}  // namespace tessera::zero
