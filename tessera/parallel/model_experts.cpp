#include "tessera/parallel/model_experts.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <sstream>
#include <utility>

#include "tessera/core/text.h"
#include "tessera/parallel/gather_texts.h"
#include "tessera/parallel/parallelize.h"

namespace tessera::parallel {
namespace {

// Numbers before the tokens of each expert.
enum Number : std::size_t { kDropped, kRouted, kEntropy, kBalance, kZ, kRows, kFirstExpert };

std::vector<double> numbers_of(const experts::Load& load) {
  std::vector<double> numbers = {load.dropped, load.routed, load.entropy,
                                 load.balance, load.z,      load.rows};
  const at::Tensor tokens = load.tokens.to(at::kCPU, at::kDouble).contiguous();
  const auto* const first = tokens.const_data_ptr<double>();
  numbers.insert(numbers.end(), first, first + tokens.numel());
  return numbers;
}

void add(std::vector<double>& sums, const std::vector<double>& more) {
  sums.resize(std::max(sums.size(), more.size()));
  std::transform(more.begin(), more.end(), sums.begin(), sums.begin(), std::plus<>());
}

// Sums in rank order, so that all ranks have the same bits.
std::vector<double> summed(const comm::Group& group, const std::vector<double>& own) {
  if (group.size() == 1 || group.simulated()) return own;
  const auto count = static_cast<std::int64_t>(own.size());
  const at::Tensor mine = at::tensor(own, at::kDouble);
  const at::Tensor all = at::empty({count * group.size()}, at::kDouble);
  comm::Call call;
  call.traffic = comm::Traffic::control;
  call.label = "use of experts";
  group.all_gather(all, mine, call).wait();
  std::vector<double> sums;
  for (int rank = 0; rank < group.size(); ++rank) {
    const auto* const theirs = all.const_data_ptr<double>() + rank * count;
    add(sums, {theirs, theirs + count});
  }
  return sums;
}

ExpertLoad load_of(std::string layer, const std::vector<double>& sums) {
  ExpertLoad load;
  load.layer = std::move(layer);
  double pairs = sums[kDropped];
  for (std::size_t i = kFirstExpert; i < sums.size(); ++i) {
    load.tokens.push_back(std::llround(sums[i]));
    pairs += sums[i];
  }
  const auto mean = [](double sum, double count) { return count > 0 ? sum / count : 0; };
  load.dropped = mean(sums[kDropped], pairs);
  load.entropy = mean(sums[kEntropy], sums[kRouted]);
  load.balance = mean(sums[kBalance], sums[kRows]);
  load.z = mean(sums[kZ], sums[kRows]);
  return load;
}

}  // namespace

void ModelExperts::take(std::size_t index, const std::string& layer, torch::nn::Module& module) {
  for (const auto& item : module.named_modules()) {
    auto experts = std::dynamic_pointer_cast<experts::MixtureOfExpertsImpl>(item.value());
    if (!experts) continue;
    layers_.push_back(
        {index, item.key().empty() ? layer : str(layer, ".", item.key()), experts.get()});
    owners_.emplace_back(std::move(experts));
  }
}

void ModelExperts::read_biases(const StoredValues& stored) {
  if (!stored.read) return;
  const at::NoGradGuard no_grad;
  for (const Entry& entry : layers_) {
    const auto buffers = entry.layer->named_buffers(/*recurse=*/false);
    const at::Tensor* const bias = buffers.find("selection_bias");
    if (bias == nullptr || !bias->defined()) continue;
    const ParamSpec spec{.name = entry.name + ".selection_bias", .shape = bias->sizes().vec()};
    if (!stored.has(spec)) continue;
    const at::Tensor values = at::empty(bias->sizes(), at::kFloat);
    stored.read(spec, {{.whole = 0, .local = 0, .count = values.numel()}},
                values.mutable_data_ptr<float>());
    bias->copy_(values);
  }
}

bool ModelExperts::has_jitter() const {
  return std::any_of(layers_.begin(), layers_.end(),
                     [](const Entry& entry) { return entry.layer->options().experts.jitter > 0; });
}

bool ModelExperts::has_losses() const {
  return std::any_of(layers_.begin(), layers_.end(), [](const Entry& entry) {
    const Experts& experts = entry.layer->options().experts;
    return experts.balance_loss > 0 || experts.z_loss > 0;
  });
}

bool ModelExperts::wait_for_counts() const {
  return std::any_of(layers_.begin(), layers_.end(), [](const Entry& entry) {
    const auto params = entry.layer->parameters();
    return std::any_of(params.begin(), params.end(), [](const at::Tensor& param) {
      return param.scalar_type() != at::kBFloat16;
    });
  });
}

void ModelExperts::take_from(Entry& entry) {
  add(entry.sums, numbers_of(entry.layer->take_load()));
}

void ModelExperts::end_step(const comm::Mesh& mesh) {
  for (Entry& entry : layers_) {
    if (entry.layer->options().experts.bias_rate == 0) continue;
    const std::vector<double> own = numbers_of(entry.layer->take_load());
    add(entry.sums, own);
    const std::vector<double> all =
        summed(mesh.group(kTokenAxes), {own.begin() + kFirstExpert, own.end()});
    entry.layer->update_selection_bias(at::tensor(all, at::kDouble));
  }
}

std::vector<ExpertLoad> ModelExperts::take_loads(const comm::Mesh& mesh) {
  std::vector<double> own;  // of all layers, for one exchange
  for (Entry& entry : layers_) {
    take_from(entry);
    own.insert(own.end(), entry.sums.begin(), entry.sums.end());
  }
  const std::vector<double> all = summed(mesh.group(kTokenAxes), own);
  std::ostringstream lines;
  lines.precision(17);
  auto next = all.begin();
  for (Entry& entry : layers_) {
    lines << entry.index << ' ' << entry.name;
    for (std::size_t i = 0; i < entry.sums.size(); ++i) lines << ' ' << *next++;
    lines << '\n';
    entry.sums.clear();
  }
  std::map<std::pair<std::size_t, std::string>, ExpertLoad> by_layer;
  for (const std::string& text :
       gather_texts(mesh.group(kLayerAxes), lines.str(), "use of experts")) {
    std::istringstream stage(text);
    for (std::string line; std::getline(stage, line);) {
      std::istringstream words(line);
      std::size_t index = 0;
      std::string name;
      words >> index >> name;
      std::vector<double> sums;
      for (double sum = 0; words >> sum;) sums.push_back(sum);
      by_layer[{index, name}] = load_of(name, sums);
    }
  }
  std::vector<ExpertLoad> loads;
  for (auto& [key, load] : by_layer) loads.push_back(std::move(load));
  return loads;
}

}  // namespace tessera::parallel
