// What the engine does before the first step, and what it tells about itself.

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <cstring>
#include <iterator>
#include <map>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/zero/engine_impl.h"

namespace tessera::zero {
namespace {

// Mixes bytes, eight at a time, into a hash.
std::uint64_t mix(std::uint64_t hash, const at::Tensor& values) {
  const at::Tensor host = values.to(at::kCPU).contiguous();
  const auto* bytes = static_cast<const unsigned char*>(host.const_data_ptr());
  const std::size_t count = static_cast<std::size_t>(host.numel()) * host.element_size();
  const auto add = [&hash](std::uint64_t word) {
    hash = (hash ^ word) * 0x9e3779b97f4a7c15ull;
    hash ^= hash >> 29;
  };
  std::size_t at = 0;
  for (; at + 8 <= count; at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes + at, 8);
    add(word);
  }
  std::uint64_t rest = count - at;
  for (; at < count; ++at) rest = (rest << 8) | bytes[at];
  add(rest);
  return hash;
}

// All ranks have the same value, or all throw.
void expect_same(const comm::Group& group, std::uint64_t value) {
  const at::Tensor mine = at::empty({1}, at::dtype(at::kLong));
  std::memcpy(mine.data_ptr(), &value, sizeof(value));
  const at::Tensor all = at::empty({group.size()}, at::dtype(at::kLong));
  comm::Call call;
  call.traffic = comm::Traffic::control;
  call.label = "hash of the parameters";
  group.all_gather(all, mine, call).wait();
  for (int r = 0; r < group.size(); ++r) {
    if (all.data_ptr<std::int64_t>()[r] == all.data_ptr<std::int64_t>()[0]) continue;
    throw UsageError(str("rank ", r,
                         " starts with other parameters or buffers than rank 0; load the same "
                         "checkpoint on all ranks, or let broadcast_start = true give them those "
                         "of rank 0"));
  }
}

}  // namespace

// Before the engine takes them over: at stage 3 nobody has all of another's values afterwards.
Plan same_on_all_ranks(Plan plan, const torch::nn::Module& model, const comm::Group& group,
                       const Options& options) {
  check_same_model(model, plan, group, options);
  if (options.broadcast_start || group.simulated()) return plan;
  std::uint64_t value = 0;
  for (const Param& param : plan.params) value = mix(value, param.tensor.detach());
  expect_same(group, value);
  return plan;
}

std::uint64_t Engine::Impl::hash() {
  gatherer.unshard_all();
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < plan.params.size(); ++i) {
    value = mix(value, gatherer.elements(static_cast<int>(i)));
  }
  gatherer.reshard_all();
  return value;
}

// All ranks have the same parameters and buffers, or all are told that they have not.
void Engine::Impl::check_start() {
  if (group.simulated()) return;  // the others' values are not there
  if (options.broadcast_start) send_buffers();
  std::uint64_t value = hash();
  for (const at::Tensor& buffer : model->buffers()) {
    if (buffer.defined()) value = mix(value, buffer);
  }
  expect_same(group, value);
}

// Buffers travel in one call per type. Rank 0's are everybody's.
void Engine::Impl::send_buffers() {
  if (group.size() == 1) return;
  std::map<at::ScalarType, std::vector<at::Tensor>> by_type;
  for (const at::Tensor& buffer : model->buffers()) {
    if (buffer.defined() && buffer.numel() > 0) by_type[buffer.scalar_type()].push_back(buffer);
  }
  const at::NoGradGuard no_grad;
  for (const auto& [type, list] : by_type) {
    std::vector<at::Tensor> flat;
    for (const at::Tensor& buffer : list) flat.push_back(buffer.flatten());
    // Bytes travel as they are, whatever their type.
    const at::Tensor all = at::cat(flat).view(at::kByte);
    comm::Call call;
    call.traffic = comm::Traffic::control;
    call.label = "buffers";
    const comm::Work work = group.broadcast(all, 0, call);
    reducer.exposed().time([&] { work.wait(); });
    const at::Tensor values = all.view(type);
    std::int64_t at = 0;
    for (const at::Tensor& buffer : list) {
      // variable_data(): autograd need not know, and ranks do not differ in what it knows.
      if (group.rank() != 0)
        buffer.variable_data().copy_(values.narrow(0, at, buffer.numel()).view(buffer.sizes()));
      at += buffer.numel();
    }
  }
}

std::vector<std::pair<std::string, at::Tensor>> Engine::full_parameters() {
  Impl& impl = *impl_;
  const at::NoGradGuard no_grad;
  impl.gatherer.unshard_all();
  std::vector<std::pair<std::string, at::Tensor>> result;
  for (std::size_t i = 0; i < impl.plan.params.size(); ++i) {
    const Param& param = impl.plan.params[i];
    const at::Tensor master = impl.update->master_shard(static_cast<int>(i));
    at::Tensor flat;
    if (master.defined() && sharding_of_stage(impl.options.stage).optimizer) {
      flat = at::zeros({param.shard * impl.plan.ranks}, master.options());
      const at::Tensor own = at::zeros({param.shard}, master.options());
      own.narrow(0, 0, master.numel()).copy_(master);
      comm::Call call;
      call.traffic = comm::Traffic::control;
      call.label = param.name;
      impl.group.all_gather(flat, own, call).wait();
    } else {
      flat = master.defined() ? master : impl.gatherer.elements(static_cast<int>(i));
    }
    const at::Tensor elements = flat.narrow(0, 0, param.numel).to(at::kFloat, false, true);
    result.emplace_back(param.name, elements.as_strided(param.sizes, param.strides));
  }
  impl.gatherer.reshard_all();
  return result;
}

std::vector<BucketInfo> Engine::buckets() const {
  std::vector<BucketInfo> result;
  for (const Bucket& bucket : impl_->plan.buckets) {
    BucketInfo& info = result.emplace_back();
    info.bytes = bucket.bytes;
    // The last to be declared is the first to be ready.
    for (auto at = bucket.range.params.rbegin(); at != bucket.range.params.rend(); ++at) {
      info.params.push_back(impl_->plan.params[static_cast<std::size_t>(*at)].name);
    }
  }
  return result;
}

std::string Engine::describe() const {
  const Plan& plan = impl_->plan;
  std::int64_t elements = 0;
  for (const Param& param : plan.params) elements += param.numel;
  std::int64_t largest = 0;
  for (const Bucket& bucket : plan.buckets) largest = std::max(largest, bucket.bytes);
  std::string text =
      str("stage ", impl_->options.stage, ", layout ", impl_->options.layout.name, ": ",
          plural(std::ssize(plan.params), "parameter"), " (", format_count(elements),
          " elements) in ", plural(std::ssize(plan.units) - 1, "unit"), " and ",
          plural(std::ssize(plan.buckets), "bucket"), " of ", format_bytes(largest),
          " at most over ", plural(plan.ranks, "rank"));
  if (plan.units.size() > 1) return text;
  if (impl_->options.stage == 3) {
    text +=
        ". No units are declared: the whole model is gathered at once, so that at its peak "
        "stage 3 takes the memory of stage 2. Hold its blocks in nn::Unit<Block>, or put them "
        "into a Sequential";
  } else if (impl_->options.stage > 0) {
    text +=
        ". No units are declared: forward waits for all parameters instead of one block's. "
        "Hold its blocks in nn::Unit<Block>, or put them into a Sequential";
  }
  return text;
}

}  // namespace tessera::zero
