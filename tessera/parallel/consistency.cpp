#include "tessera/parallel/consistency.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/rnn.h>

#include <algorithm>
#include <map>
#include <set>

#include "tessera/core/errors.h"
#include "tessera/core/hash.h"
#include "tessera/core/log.h"
#include "tessera/core/text.h"
#include "tessera/parallel/gather_texts.h"

namespace tessera::parallel {
namespace {

// Gathers one word of each rank, by rank.
std::vector<std::uint64_t> gather_words(const comm::Group& group, std::uint64_t own,
                                        const char* label) {
  const at::Tensor mine = at::empty({1}, at::kLong), all = at::empty({group.size()}, at::kLong);
  mine.mutable_data_ptr<std::int64_t>()[0] = static_cast<std::int64_t>(own);
  comm::Call call;
  call.traffic = comm::Traffic::control;
  call.label = label;
  group.all_gather(all, mine, call).wait();
  std::vector<std::uint64_t> words;
  for (int r = 0; r < group.size(); ++r) {
    words.push_back(static_cast<std::uint64_t>(all.const_data_ptr<std::int64_t>()[r]));
  }
  return words;
}

std::vector<std::string> lines_in(const std::string& text) {
  std::vector<std::string> lines;
  std::size_t begin = 0;
  for (std::size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', begin)) {
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  lines.push_back(text.substr(begin));
  return lines;
}

// First difference between the lines of two ranks of the same color.
struct Difference {
  int rank = -1, other = -1;  // -1: no difference
  std::string line, other_line;
};

// Compares the lines of ranks of equal color. `colors`: small numbers by rank of the group.
Difference find_difference(const comm::Group& group, const std::vector<int>& colors,
                           const std::vector<std::string>& own, const char* label) {
  Difference found;
  if (group.size() == 1 || group.simulated()) return found;
  const std::string text = join(own, "\n");
  const std::vector<std::uint64_t> hashes = gather_words(group, hash_text(text), label);
  std::map<int, int> first;  // rank by color
  for (int r = 0; r < group.size() && found.rank < 0; ++r) {
    const int with = first.try_emplace(colors[static_cast<std::size_t>(r)], r).first->second;
    if (hashes[static_cast<std::size_t>(with)] == hashes[static_cast<std::size_t>(r)]) continue;
    found.rank = with;
    found.other = r;
  }
  if (found.rank < 0) return found;
  const std::vector<std::string> texts = gather_texts(group, text, label);
  const auto a = lines_in(texts[static_cast<std::size_t>(found.rank)]);
  const auto b = lines_in(texts[static_cast<std::size_t>(found.other)]);
  for (std::size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    found.line = i < a.size() ? a[i] : "nothing more";
    found.other_line = i < b.size() ? b[i] : "nothing more";
    if (found.line != found.other_line) break;
  }
  return found;
}

std::string text_of(const Difference& found) {
  return str("rank ", found.rank, " has ", found.line, ", rank ", found.other, " has ",
             found.other_line);
}

// Throws UsageError if copies of a tied parameter differ between any two ranks.
void expect_same_ties(const comm::Group& world, const Start& start) {
  if (!start.has_ties() || world.size() == 1 || world.simulated()) return;
  const auto texts = gather_texts(world, join(start.tied_lines(), "\n"), "tied parameters");
  std::map<std::string, std::pair<int, std::string>> seen;  // by the number before the line
  for (int r = 0; r < world.size(); ++r) {
    for (const std::string& numbered : lines_in(texts[static_cast<std::size_t>(r)])) {
      if (numbered.empty()) continue;
      const std::size_t space = numbered.find(' ');
      const std::string line = numbered.substr(space + 1);
      const auto& [rank, other] =
          seen.try_emplace(numbered.substr(0, space), r, line).first->second;
      if (other == line) continue;
      throw UsageError(str("Tied parameters must be equal on all ranks, but rank ", rank, " has ",
                           other, " and rank ", r, " has ", line, ". Give both the same shape."));
    }
  }
}

}  // namespace

void expect_same_list(const std::vector<Layer>& layers, const comm::Mesh& mesh,
                      const ParallelOptions& options) {
  std::vector<std::string> lines;
  const bool pipelined = mesh.axes().ranks(kLayerAxes) > 1;
  if (pipelined) {
    lines.push_back(str("schedule ", options.schedule, ", model_chunks ", options.model_chunks));
    std::string split = "split";
    for (const int count : options.split) split += str(" ", count);
    lines.push_back(split);
    lines.push_back(str("micro_batches ", options.micro_batches));
  }
  lines.push_back(str("seed ", options.seed));
  lines.push_back(str("sequence_parallel ", options.sequence_parallel, ", overlap_tp ",
                      options.overlap_tp, ", recompute ", nn::name(options.recompute)));
  lines.push_back(str("dropout ", options.dropout, ", attention_dropout ",
                      options.attention_dropout, ", adapter_dropout ", options.adapter_dropout));
  lines.push_back(str("context ", nn::name(options.context)));
  lines.push_back(str("check_replicas ", options.check_replicas));
  for (const Layer& layer : layers) {
    std::string line = str("layer ", quote(layer.name), layer.flat ? " (flat)" : "");
    if (pipelined && options.split.empty()) line += str(" of cost ", layer.cost);
    for (const auto& [own, tie] : layer.tied) {
      line += str(", ", quote(own), " tied to ", quote(tie.param), " of ", quote(tie.layer));
    }
    lines.push_back(std::move(line));
  }
  const std::vector<int> all(static_cast<std::size_t>(mesh.world().size()), 0);
  const Difference found = find_difference(mesh.world(), all, lines, "list of layers");
  if (found.rank < 0) return;
  throw UsageError(str("Ranks were given different models: ", text_of(found),
                       ". Pass the same list of layers and the same options on all ranks."));
}

void expect_same_layers(const comm::Mesh& mesh, const std::string& problem, const Start& start) {
  const comm::Group& world = mesh.world();
  if (world.size() == 1 || world.simulated()) {
    if (!problem.empty()) throw UsageError(problem);
    return;
  }
  const auto failed = gather_words(world, problem.empty() ? 0 : 1, "layers were made");
  if (const auto first = std::find(failed.begin(), failed.end(), 1); first != failed.end()) {
    const auto rank = static_cast<std::size_t>(first - failed.begin());
    const std::string text = gather_texts(world, problem, "layers were made")[rank];
    throw UsageError(str(text, " (Found on rank ", rank, ".)"));
  }
  for (const bool experts : {false, true}) {
    std::vector<int> colors;
    for (int r = 0; r < world.size(); ++r) {
      const AxisSet axes = experts ? kLayerAxes.with(Axis::ep) : kLayerAxes;
      colors.push_back(mesh.axes().index(axes, mesh.axes().coordinate_of(r)));
    }
    const Difference found =
        find_difference(world, colors, start.lines(experts), "parameters of the layers");
    if (found.rank < 0) continue;
    throw UsageError(str("Ranks of one pipeline stage ", experts ? "with the same experts " : "",
                         "made different layers: ", text_of(found),
                         ". Factories must make the same parameters on all of them."));
  }
  expect_same_ties(world, start);
}

void reject_torch_dropout(const Layer& layer, const torch::nn::Module& module, int tp) {
  if (tp == 1) return;
  namespace tn = torch::nn;
  for (const auto& item : module.named_modules()) {
    const tn::Module& each = *item.value();
    std::optional<double> rate;
    const auto take = [&](const auto* dropout) {
      if (dropout != nullptr) rate = dropout->options.p();
    };
    take(dynamic_cast<const tn::DropoutImpl*>(&each));
    take(dynamic_cast<const tn::Dropout2dImpl*>(&each));
    take(dynamic_cast<const tn::Dropout3dImpl*>(&each));
    take(dynamic_cast<const tn::AlphaDropoutImpl*>(&each));
    take(dynamic_cast<const tn::FeatureAlphaDropoutImpl*>(&each));
    std::string instead = "tessera::MeshDropout(at.tp, at.dropout(name, rate)) instead";
    if (!rate) {
      instead = "it without dropout";
      if (const auto* attention = dynamic_cast<const tn::MultiheadAttentionImpl*>(&each)) {
        rate = attention->options.dropout();
      }
      const auto take_rnn = [&](const auto* rnn) {
        if (rnn != nullptr) rate = rnn->options_base.dropout();
      };
      take_rnn(dynamic_cast<const tn::RNNImpl*>(&each));
      take_rnn(dynamic_cast<const tn::LSTMImpl*>(&each));
      take_rnn(dynamic_cast<const tn::GRUImpl*>(&each));
    }
    if (rate.value_or(0) == 0) continue;
    throw UsageError(str("Layer ", quote(layer.name), ": module ",
                         item.key().empty() ? "" : str(quote(item.key()), " "), "is a ",
                         each.name(), " with rate ", *rate,
                         ", which draws a different mask on each of ", "the ", tp,
                         " tensor-parallel ranks, so that replicated parameters would ",
                         "diverge. Use ", instead, "."));
  }
}

void reject_token_mixing(const Layer& layer, const torch::nn::Module& module, int cp) {
  if (cp == 1) return;
  namespace tn = torch::nn;
  for (const auto& item : module.named_modules()) {
    const tn::Module* const each = item.value().get();
    const bool mixes = dynamic_cast<const tn::MultiheadAttentionImpl*>(each) != nullptr ||
                       dynamic_cast<const tn::RNNImpl*>(each) != nullptr ||
                       dynamic_cast<const tn::LSTMImpl*>(each) != nullptr ||
                       dynamic_cast<const tn::GRUImpl*>(each) != nullptr ||
                       dynamic_cast<const tn::Conv1dImpl*>(each) != nullptr;
    if (!mixes) continue;
    throw UsageError(str("Layer ", quote(layer.name), ": module ",
                         item.key().empty() ? "" : str(quote(item.key()), " "), "is a ",
                         each->name(), ", which combines tokens of a row. Context-parallel ranks ",
                         "have only a part of each row. Use context_parallel::attention(), or a ",
                         "mesh with cp=1."));
  }
}

bool has_own_dropout(const torch::nn::Module& module) {
  const auto all = module.modules();
  return std::any_of(all.begin(), all.end(), [](const auto& each) {
    const auto* dropout = dynamic_cast<const tensor_parallel::MeshDropoutImpl*>(each.get());
    return dropout != nullptr && dropout->options().rate.value_or(0) > 0;
  });
}

namespace {

// Returns a hash or sum of the bits of each tensor. On a device, integers are summed, so that the
// order of its threads does not matter, and all sums are copied to the host together.
std::vector<std::uint64_t> bits_of(const NamedTensors& tensors) {
  std::vector<std::uint64_t> words(tensors.size());
  std::vector<at::Tensor> sums;
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& given = tensors[i].second;
    if (!given.defined() || given.numel() == 0) continue;
    const at::Tensor flat = given.detach().contiguous().view(-1);
    if (flat.is_cpu()) {
      words[i] = mix(kHashStart, flat.const_data_ptr(), flat.nbytes());
      continue;
    }
    const std::size_t size = flat.element_size();
    const at::ScalarType whole = size == 8   ? at::kLong
                                 : size == 4 ? at::kInt
                                 : size == 2 ? at::kShort
                                             : at::kByte;
    sums.push_back(flat.view(whole).sum(at::kLong));
    places.push_back(i);
  }
  if (sums.empty()) return words;
  const at::Tensor on_host = at::stack(sums).to(at::kCPU);
  for (std::size_t i = 0; i < places.size(); ++i) {
    words[places[i]] = static_cast<std::uint64_t>(on_host.const_data_ptr<std::int64_t>()[i]);
  }
  return words;
}

std::vector<std::string> lines_of(const NamedTensors& tensors) {
  const std::vector<std::uint64_t> bits = bits_of(tensors);
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto& [name, values] = tensors[i];
    lines.push_back(values.defined() ? tessera::str(name, " ", values.sizes(), " ",
                                                    c10::toString(values.scalar_type()),
                                                    " with hash ", hex(bits[i]))
                                     : str(name, " undefined"));
  }
  return lines;
}

}  // namespace

NamedTensors replicated_params(const Start& start, zero::Engine& engine) {
  std::set<std::string> whole;
  for (const ParamSpec& spec : start.specs()) {
    if (!spec.cut_along(Axis::tp)) whole.insert(spec.name);
  }
  NamedTensors found;
  for (const zero::StateShard& shard : engine.state(zero::StateScope::params)) {
    if (!whole.contains(shard.param)) continue;
    found.emplace_back(str("parameter ", quote(shard.param)), shard.read());
  }
  return found;
}

void expect_replicated(const comm::Mesh& mesh, const comm::Group& model, const comm::Group& sharing,
                       const Replicated& own) {
  const auto compare = [&](const comm::Group& group, AxisSet other,
                           const std::vector<std::string>& lines, const char* label) {
    // By rank of the group.
    const std::vector<int> ranks =
        mesh.axes().ranks_along(AxisSet::all().without(other), mesh.coordinate());
    std::vector<int> stages;
    for (const int rank : ranks) {
      stages.push_back(mesh.axes().index(kLayerAxes, mesh.axes().coordinate_of(rank)));
    }
    Difference found = find_difference(group, stages, lines, label);
    if (found.rank < 0) return found;
    found.rank = ranks[static_cast<std::size_t>(found.rank)];
    found.other = ranks[static_cast<std::size_t>(found.other)];
    return found;
  };
  if (const Difference found =
          compare(sharing, kDataAxes, lines_of(own.inputs), "inputs of tensor-parallel ranks");
      found.rank >= 0) {
    throw UsageError(str(mesh.axes().size(Axis::cp) > 1 ? "Tensor- and context" : "Tensor",
                         "-parallel ranks must get the same micro-batches, but were given ",
                         "different ones: ", text_of(found),
                         ". Give all ranks with the same dp coordinate the same data."));
  }
  const Difference found =
      compare(model, kTokenAxes, lines_of(own.params), "replicated parameters");
  if (found.rank < 0) return;
  const std::string text =
      str("Tensor-parallel ranks have different values of replicated parameters after ",
          plural(own.steps, "step"), ": ", text_of(found),
          ". A layer computes different results on each rank. Possible causes are its own random ",
          "numbers (use tessera::MeshDropout), use of the rank's number, and a different number ",
          "of threads. ParallelOptions::check_replicas = 0 disables this check.");
  if (own.device.is_cpu()) throw UsageError(text);
  if (model.rank() == 0) Logger().warn(text);
}

}  // namespace tessera::parallel
