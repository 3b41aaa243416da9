// Flags of Megatron-LM for mixtures of experts.

#include "tessera/cli/import_megatron_experts.h"

#include <algorithm>
#include <charconv>
#include <vector>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::cli {
namespace {

constexpr const char* kLayerFrequency = "--moe-layer-freq";
constexpr std::int64_t kMostLayers = 100'000;

[[noreturn]] void refuse_frequency(const std::string& text) {
  throw UsageError(str(kLayerFrequency, ": got ", quote(text),
                       "; must be a number, or a list such as ([0]*1+[1]*23)"));
}

// Reads [0,1] or [0]*3 from the beginning of `text`, and removes it.
void read_list(std::string_view& text, const std::string& whole, std::vector<bool>& out) {
  const std::size_t end = text.find(']');
  if (!text.starts_with('[') || end == std::string_view::npos) refuse_frequency(whole);
  std::vector<bool> items;
  for (std::size_t i = 1; i < end; i += 2) {
    if ((text[i] != '0' && text[i] != '1') || (text[i + 1] != ',' && i + 1 != end)) {
      refuse_frequency(whole);
    }
    items.push_back(text[i] == '1');
  }
  text.remove_prefix(end + 1);
  std::int64_t times = 1;
  if (text.starts_with('*')) {
    const auto [at, problem] = std::from_chars(text.data() + 1, text.data() + text.size(), times);
    if (problem != std::errc() || times < 0 || times > kMostLayers) refuse_frequency(whole);
    text.remove_prefix(static_cast<std::size_t>(at - text.data()));
  }
  for (; times > 0; --times) {
    out.insert(out.end(), items.begin(), items.end());
    if (out.size() > static_cast<std::size_t>(kMostLayers)) refuse_frequency(whole);
  }
}

// Reads which layers have experts, as Python computes [0]*3+[1]*21.
std::vector<bool> parse_layers(const std::string& whole) {
  std::string packed = whole;
  std::erase(packed, ' ');
  std::string_view text = packed;
  if (text.starts_with('(') && text.ends_with(')')) text = text.substr(1, text.size() - 2);
  std::vector<bool> layers;
  read_list(text, whole, layers);
  while (text.starts_with('+')) {
    text.remove_prefix(1);
    read_list(text, whole, layers);
  }
  if (!text.empty()) refuse_frequency(whole);
  return layers;
}

// Returns the number of first layers without experts.
std::int64_t dense_layers(const MegatronWords& words, std::int64_t layers, Imported& out) {
  const std::string text = words.word(kLayerFrequency);
  if (text.empty() || text == "1") return 0;
  const auto refuse = [&] {
    out.note(kLayerFrequency, Fate::missing,
             quote(text) + ": experts are in all layers but some first ones");
    return 0;
  };
  if (text.find('[') == std::string::npos) {
    if (words.size(kLayerFrequency) > 1) return refuse();  // throws if it is not a number
    return 0;
  }
  const std::vector<bool> sparse = parse_layers(text);
  if (layers > 0 && static_cast<std::int64_t>(sparse.size()) != layers) {
    throw UsageError(str(kLayerFrequency, ": got ", quote(text), ", a list of ", sparse.size(),
                         " layers; must be one for each of --num-layers ", layers));
  }
  const auto first = std::find(sparse.begin(), sparse.end(), true);
  if (first == sparse.end() || std::find(first, sparse.end(), false) != sparse.end()) {
    return refuse();
  }
  return first - sparse.begin();
}

void note_selection(const MegatronWords& words, Imported& out) {
  const char* const flag = "--moe-router-score-function";
  const std::string function = words.word(flag);
  if (!function.empty() && function != "softmax" && function != "sigmoid") {
    out.note(flag, Fate::missing,
             quote(function) + ": must be softmax or sigmoid; softmax is used");
  }
  const char* const policy = "--moe-token-drop-policy";
  const char* const capacity = "--moe-expert-capacity-factor";
  if (!words.has(capacity)) return;
  out.note(capacity, Fate::changed, "counted in each sequence, not in the tokens of a rank");
  if (words.word(policy) != "position") {
    out.note(policy, Fate::changed, "an expert drops the last tokens of a sequence (position)");
  }
}

}  // namespace

Experts megatron_experts(const MegatronWords& words, std::int64_t layers, std::int64_t ffn,
                         Imported& out) {
  Experts experts;
  experts.count = words.size("--num-experts");
  if (!experts.any()) return {};
  const auto size_or = [&](const char* flag, std::int64_t otherwise) {
    return words.has(flag) ? words.size(flag) : otherwise;
  };
  experts.per_token = size_or("--moe-router-topk", 2);
  if (experts.per_token > experts.count) {
    throw UsageError(str("--moe-router-topk: got ", experts.per_token,
                         words.has("--moe-router-topk") ? "" : ", Megatron's default",
                         "; must be at most --num-experts ", experts.count));
  }
  experts.width = size_or("--moe-ffn-hidden-size", ffn);
  experts.shared_width = words.size("--moe-shared-expert-intermediate-size");
  experts.dense_layers = dense_layers(words, layers, out);
  const bool sigmoid = words.word("--moe-router-score-function") == "sigmoid";
  if (sigmoid) experts.scores = RouterScores::sigmoid;
  // Megatron computes the softmax of the selected logits, which are the scores divided by their
  // sum.
  experts.normalized = sigmoid ? experts.per_token > 1 : !words.has("--moe-router-pre-softmax");
  experts.scale = words.real("--moe-router-topk-scaling-factor", 1);
  experts.selection_bias = words.has("--moe-router-enable-expert-bias");
  note_selection(words, out);
  return experts;
}

bool settings_describe(const Experts& experts) { return experts.normalized && experts.scale == 1; }

void set_expert_sizes(const MegatronWords& words, const Experts& experts, Imported& out) {
  const auto set = [&](const char* setting, std::int64_t value, const char* flag) {
    out.set(setting, str(value), words.has(flag) ? flag : str(flag, ", Megatron's default"));
  };
  set("experts", experts.count, "--num-experts");
  set("experts-per-token", experts.per_token, "--moe-router-topk");
  if (words.has("--moe-ffn-hidden-size")) {
    set("expert-ffn", experts.width, "--moe-ffn-hidden-size");
  }
  if (experts.shared_width > 0) {
    set("shared-expert-ffn", experts.shared_width, "--moe-shared-expert-intermediate-size");
  }
  if (experts.dense_layers > 0) set("dense-layers", experts.dense_layers, kLayerFrequency);
  if (experts.scores == RouterScores::sigmoid) {
    out.set("router-scores", "sigmoid", "--moe-router-score-function");
  }
}

void set_expert_training(const MegatronWords& words, Imported& out) {
  if (!words.has("--num-experts")) return;
  const auto take = [&](const char* setting, const char* flag, const char* otherwise) {
    if (words.has(flag)) return out.set(setting, words.word(flag), flag);
    if (*otherwise != '\0') out.set(setting, otherwise, str(flag, ", Megatron's default"));
  };
  const char* const balancing = "--moe-router-load-balancing-type";
  const std::string type = words.has(balancing) ? words.word(balancing) : "aux_loss";
  const bool balances = type.ends_with("aux_loss");
  if (balances) {
    take("balance-loss", "--moe-aux-loss-coeff", "0");
    if (type != "seq_aux_loss" && words.real("--moe-aux-loss-coeff", 0) > 0) {
      out.note(balancing, Fate::changed,
               quote(type) + ": the loss is that of each sequence (seq_aux_loss), and their mean");
    }
  } else {
    out.set("balance-loss", "0", balancing);
    if (type != "none") {
      out.note(balancing, Fate::missing,
               quote(type) +
                   ": must be seq_aux_loss, aux_loss, global_aux_loss or none; none is "
                   "used");
    }
  }
  take("z-loss", "--moe-z-loss-coeff", "");
  take("router-jitter", "--moe-input-jitter-eps", "");
  take("expert-capacity", "--moe-expert-capacity-factor", "");
  if (words.has("--moe-router-enable-expert-bias")) {
    take("balance-bias-rate", "--moe-router-bias-update-rate", "0.001");
  }
}

}  // namespace tessera::cli
