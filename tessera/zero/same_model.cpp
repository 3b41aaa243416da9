#include "tessera/zero/same_model.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tessera/core/errors.h"
#include "tessera/core/hash.h"
#include "tessera/core/text.h"
#include "tessera/nn/unallocated.h"

namespace tessera::zero {
namespace {

// Returns one line for each property that must be equal on all ranks, or for those of experts on
// the ranks that have the same ones.
std::string model_text(const torch::nn::Module& model, const Plan& plan, const Options& options,
                       bool experts) {
  std::string text;
  const auto line = [&](const char* kind, const std::string& name, const at::Tensor& tensor) {
    text += tessera::str(kind, " ", quote(name), " ", tensor.sizes(), " ",
                         c10::toString(tensor.scalar_type()), "\n");
  };
  for (const Param& param : plan.params) {
    if (plan.space_of(param).of_experts != experts) continue;
    line(param.tensor.requires_grad() ? "parameter" : "frozen parameter", param.name, param.tensor);
    // Values are sent in memory order, so strides must agree.
    if (!param.tensor.is_contiguous() && param.tensor.is_non_overlapping_and_dense()) {
      text.back() = ' ';
      text += tessera::str("with strides ", at::IntArrayRef(param.strides), "\n");
    }
  }
  for (const auto& buffer : model.named_buffers()) {
    if (buffer.value().defined() && !experts) line("buffer", buffer.key(), buffer.value());
  }
  // Every rank draws the noise of stochastic rounding itself, so the seeds must agree.
  const StateLayout& layout = options.layout;
  const bool draws =
      (layout.param < 4 && layout.master == 0) || options.optimizer_state != OptimizerState::fp32;
  const std::string seed = draws ? str(", seed ", options.seed) : std::string();
  return text + str("stage ", options.stage, ", layout ", options.layout.name, ", optimizer state ",
                    name(options.optimizer_state), ", buckets of ", options.bucket_bytes,
                    " bytes, gradients compressed by ", name(options.grad_compression),
                    options.reduce_hook ? ", with a reduce_hook" : "", seed, "\n");
}

comm::Call model_call(const char* label = "shape of the model") {
  comm::Call call;
  call.traffic = comm::Traffic::control;
  call.label = label;
  return call;
}

}  // namespace

std::vector<std::int64_t> gather_numbers(const comm::Group& group, std::int64_t mine,
                                         const char* label) {
  const at::Tensor own = at::empty({1}, at::kLong), all = at::empty({group.size()}, at::kLong);
  own.mutable_data_ptr<std::int64_t>()[0] = mine;
  group.all_gather(all, own, model_call(label)).wait();
  const auto* first = all.const_data_ptr<std::int64_t>();
  return {first, first + group.size()};
}

namespace {

std::vector<std::string> gather_lines(const comm::Group& group, const std::string& mine) {
  const std::vector<std::int64_t> sizes =
      gather_numbers(group, static_cast<std::int64_t>(mine.size()));
  const std::int64_t most = *std::max_element(sizes.begin(), sizes.end());
  const at::Tensor own = at::zeros({most}, at::kByte);
  const at::Tensor all = at::empty({most * group.size()}, at::kByte);
  std::memcpy(own.mutable_data_ptr(), mine.data(), mine.size());
  group.all_gather(all, own, model_call()).wait();
  const auto* bytes = static_cast<const char*>(all.const_data_ptr());
  std::vector<std::string> texts;
  for (std::size_t r = 0; r < sizes.size(); ++r) {
    texts.emplace_back(bytes + static_cast<std::int64_t>(r) * most,
                       static_cast<std::size_t>(sizes[r]));
  }
  return texts;
}

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::size_t begin = 0;
  for (std::size_t end = text.find('\n'); end != std::string::npos;
       begin = end + 1, end = text.find('\n', begin)) {
    lines.push_back(text.substr(begin, end - begin));
  }
  return lines;
}

// Returns the first line of each in which they differ. The last line of both describes the options.
std::pair<std::string, std::string> first_difference(const std::vector<std::string>& a,
                                                     const std::vector<std::string>& b) {
  for (std::size_t i = 0; i + 1 < std::max(a.size(), b.size()); ++i) {
    const std::string of_a = i + 1 < a.size() ? a[i] : "nothing";
    const std::string of_b = i + 1 < b.size() ? b[i] : "nothing";
    if (of_a != of_b) return {of_a, of_b};
  }
  return {a.back(), b.back()};
}

}  // namespace

std::uint64_t mix_bits(std::uint64_t hash, const at::Tensor& values) {
  const at::Tensor host = values.to(at::kCPU).contiguous();
  return mix(hash, host.const_data_ptr(),
             static_cast<std::size_t>(host.numel()) * host.element_size());
}

bool on_any_rank(const comm::Group& group, bool here) {
  if (group.size() == 1 || group.simulated()) return here;
  const std::vector<std::int64_t> all = gather_numbers(group, here ? 1 : 0, "gradients are there");
  return std::count(all.begin(), all.end(), 1) > 0;
}

void expect_same_lines(const comm::Group& group, const std::string& mine, const char* what,
                       const char* todo) {
  if (group.size() == 1 || group.simulated()) return;
  const std::vector<std::int64_t> hashes =
      gather_numbers(group, static_cast<std::int64_t>(hash_text(mine)));
  if (std::count(hashes.begin(), hashes.end(), hashes.front()) == group.size()) return;
  const std::vector<std::string> texts = gather_lines(group, mine);
  const auto first = std::find_if(texts.begin(), texts.end(),
                                  [](const std::string& text) { return !text.empty(); });
  for (auto at = first; at != texts.end(); ++at) {
    if (at->empty() || *at == *first) continue;
    const auto [here, there] = first_difference(split_lines(*first), split_lines(*at));
    throw UsageError(str("The ranks were given different ", what, ": rank ", at - texts.begin(),
                         " of group ", group.name(), " has ", there, " where rank ",
                         first - texts.begin(), " has ", here, ". ", todo));
  }
}

void expect_same_start(const comm::Group& group, std::uint64_t hash) {
  if (group.size() == 1 || group.simulated()) return;
  const std::vector<std::int64_t> all =
      gather_numbers(group, static_cast<std::int64_t>(hash), "hash of the parameters");
  for (std::size_t r = 1; r < all.size(); ++r) {
    if (all[r] == all[0]) continue;
    throw UsageError(str("rank ", r,
                         " starts with other parameters or buffers than rank 0. Load the same "
                         "checkpoint on all ranks, or set broadcast_start = true to use the values "
                         "of rank 0"));
  }
}

void expect_same_as_next(const comm::Group& group, std::uint64_t own, std::uint64_t next) {
  const char* const label = "hash of the initial values";
  const std::vector<std::int64_t> owns =
      gather_numbers(group, static_cast<std::int64_t>(own), label);
  const std::vector<std::int64_t> nexts =
      gather_numbers(group, static_cast<std::int64_t>(next), label);
  for (std::size_t r = 0; r < owns.size(); ++r) {
    const std::size_t other = (r + 1) % owns.size();
    if (nexts[r] == owns[other]) continue;
    throw UsageError(str("Options::initial gives other values on rank ", r, " than on rank ", other,
                         " of group ", group.name(),
                         ". The values must depend only on the name and the element, with the same "
                         "seed on every rank"));
  }
}

Plan same_on_all_ranks(Plan plan, const torch::nn::Module& model, const comm::Group& group,
                       const Options& options) {
  // Compares names, shapes and types before anything is sent that depends on them.
  const auto compare = [&](const comm::Group& ranks, bool experts) {
    expect_same_lines(ranks, model_text(model, plan, options, experts), "models",
                      "Build the same model, with the same options, on every rank");
    if (options.broadcast_start) return;
    std::uint64_t value = 0;
    for (const Param& param : plan.params) {
      if (plan.space_of(param).of_experts != experts) continue;
      if (!nn::is_unallocated(param.tensor)) value = mix_bits(value, param.tensor.detach());
    }
    expect_same_start(ranks, value);
  };
  compare(group, false);
  if (plan.expert_groups) compare(plan.expert_groups->all, true);
  return plan;
}

}  // namespace tessera::zero
