#include "tessera/core/lora.h"

#include <algorithm>
#include <cmath>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera {
namespace {

constexpr std::int64_t kMaxRank = 1 << 16;

struct Alias {
  const char* name;
  std::vector<std::string> targets;
};
// Names of several targets at once, and the names used by other libraries.
const std::vector<Alias>& aliases() {
  static const std::vector<Alias> all = {{"q_proj", {"q"}},
                                         {"k_proj", {"k"}},
                                         {"v_proj", {"v"}},
                                         {"qkv", {"q", "k", "v", "qkv"}},
                                         {"c_attn", {"qkv"}},
                                         {"qkv_proj", {"qkv"}},
                                         {"gate_up_proj", {"fc"}},
                                         {"proj", {"o"}},
                                         {"o_proj", {"o"}},
                                         {"attn.c_proj", {"o"}},
                                         {"gate_proj", {"gate"}},
                                         {"up_proj", {"up"}},
                                         {"fc", {"gate", "up", "fc"}},
                                         {"c_fc", {"fc"}},
                                         {"proj2", {"down"}},
                                         {"down_proj", {"down"}},
                                         {"mlp.c_proj", {"down"}},
                                         {"c_proj", {"o", "down"}},
                                         {"auto", {"q", "v", "qkv"}}};
  return all;
}

// Returns the targets of an alias, or the word itself if it is not an alias.
std::vector<std::string> expand_alias(const std::string& word) {
  for (const Alias& each : aliases()) {
    if (word == each.name) return each.targets;
  }
  return {word};
}

std::vector<std::string> split_words(const std::string& text) {
  std::vector<std::string> list;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    std::string word = text.substr(begin, end - begin);
    word.erase(std::remove(word.begin(), word.end(), ' '), word.end());
    list.push_back(std::move(word));
    begin = end + 1;
  }
  return list;
}

}  // namespace

std::vector<Adapter> possible_adapters(const ModelShape& shape) {
  const std::int64_t h = shape.hidden, q = shape.q_width(), kv = shape.kv_width();
  const ParamSpec::Segment queries{q, shape.heads}, keys{kv, shape.kv_heads};
  std::vector<Adapter> all;
  const bool gpt = !shape.rotary();
  const bool packed = shape.family == Family::phi3;  // one matrix for q, k, v and one for gate, up
  const std::string attention = gpt ? "attn." : "self_attn.";
  if (gpt || packed) {
    all.push_back({"qkv",
                   "qkv",
                   "lora",
                   attention + (gpt ? "c_attn" : "qkv_proj"),
                   -1,
                   h,
                   q + 2 * kv,
                   false,
                   {queries, keys, keys}});
  } else {
    all.push_back({"q", "qkv", "lora_q", attention + "q_proj", 0, h, q, false, {queries}});
    all.push_back({"k", "qkv", "lora_k", attention + "k_proj", 1, h, kv, false, {keys}});
    all.push_back({"v", "qkv", "lora_v", attention + "v_proj", 2, h, kv, false, {keys}});
  }
  all.push_back({"o", "proj", "lora", attention + (gpt ? "c_proj" : "o_proj"), -1, q, h, true});
  if (shape.experts.any()) return all;  // only attention has adapters
  const ParamSpec::Segment wide{shape.ffn, shape.ffn};
  if (packed) {
    all.push_back(
        {"fc", "fc", "lora", "mlp.gate_up_proj", -1, h, 2 * shape.ffn, false, {wide, wide}});
  } else if (shape.swiglu) {
    all.push_back({"gate", "fc", "lora_gate", "mlp.gate_proj", 0, h, shape.ffn, false, {wide}});
    all.push_back({"up", "fc", "lora_up", "mlp.up_proj", 1, h, shape.ffn, false, {wide}});
  } else {
    all.push_back({"fc", "fc", "lora", "mlp.c_fc", -1, h, shape.ffn, false, {wide}});
  }
  all.push_back(
      {"down", "proj2", "lora", gpt ? "mlp.c_proj" : "mlp.down_proj", -1, shape.ffn, h, true});
  return all;
}

// Throws UsageError if a target is in the MLP of a model with experts.
static void refuse_experts(const ModelShape& shape, const std::string& word,
                           const std::vector<std::string>& known) {
  if (!shape.experts.any()) return;
  bool in_mlp = word == "all";
  for (const std::string& target : expand_alias(word)) {
    in_mlp = in_mlp || target == "gate" || target == "up" || target == "fc" || target == "down";
  }
  if (!in_mlp) return;
  throw UsageError(
      Flag("lora-targets"),
      str("got ", quote(word), ", which includes the experts of this model. Tessera adapts the ",
          "attention of models with experts only; must be auto, or some of ", join(known, ", ")));
}

std::vector<Adapter> adapters_of(const ModelShape& shape) {
  if (!shape.lora.any()) return {};
  std::vector<Adapter> all = possible_adapters(shape);
  if (shape.lora.targets == "all" && !shape.experts.any()) return all;
  std::vector<std::string> requested, known;
  for (const Adapter& adapter : all) known.push_back(adapter.target);
  for (const std::string& word : split_words(shape.lora.targets)) {
    refuse_experts(shape, word, known);
    bool any = false;
    for (const std::string& target : expand_alias(word)) {
      if (std::find(known.begin(), known.end(), target) == known.end()) continue;
      requested.push_back(target);
      any = true;
    }
    if (any) continue;
    throw UsageError(
        Flag("lora-targets"),
        str("got ", quote(word), " in ", quote(shape.lora.targets),
            "; must be auto, all, or some of ", join(known, ", "),
            " (the linears of this model), separated by commas", did_you_mean(word, known)));
  }
  std::erase_if(all, [&](const Adapter& adapter) {
    return std::find(requested.begin(), requested.end(), adapter.target) == requested.end();
  });
  return all;
}

std::string targets_of(const ModelShape& shape) {
  std::vector<std::string> names;
  for (const Adapter& adapter : adapters_of(shape)) names.push_back(adapter.target);
  return join(names, ",");
}

void check_lora(const ModelShape& shape) {
  const Lora& lora = shape.lora;
  if (lora.rank == 0) {  // invalid targets are an error even if they have no effect
    if (lora.targets == "auto" || lora.targets == "all") return;
    ModelShape adapted = shape;
    adapted.lora.rank = 1;
    adapters_of(adapted);
    return;
  }
  if (lora.rank < 0 || lora.rank > kMaxRank) {
    throw UsageError(Flag("lora-rank"), str("got ", lora.rank, "; must be 1 to ", kMaxRank,
                                            ", or 0 for a model without adapters"));
  }
  if (!std::isfinite(lora.alpha) || lora.alpha <= 0) {
    throw UsageError(Flag("lora-alpha"), str("got ", lora.alpha, "; must be a positive number"));
  }
  if (!(lora.dropout >= 0) || lora.dropout >= 1) {
    throw UsageError(
        Flag("lora-dropout"),
        str("got ", lora.dropout, "; must be at least 0 (no dropout) and less than 1"));
  }
  if (shape.experts.bias_rate > 0) {
    throw UsageError(Flag("balance-bias-rate"),
                     str("got ", shape.experts.bias_rate,
                         " with --lora-rank: it would change biases of the frozen model, which are "
                         "not saved with the adapters. Omit it"));
  }
  adapters_of(shape);
}

AdapterSpecs specs_of(const Adapter& adapter, std::int64_t rank, const std::string& block) {
  const std::string prefix = str(block, ".", adapter.linear, ".", adapter.module, ".");
  AdapterSpecs specs;
  specs.a.name = prefix + "A";
  specs.a.shape = {rank, adapter.in};
  if (adapter.cut_inputs) specs.a.cuts = {{Axis::tp, 1}};
  specs.b.name = prefix + "B";
  specs.b.shape = {adapter.out, rank};
  if (!adapter.cut_inputs) specs.b.cuts = {{Axis::tp, 0, adapter.segments}};
  return specs;
}

bool is_adapter_param(std::string_view name) {
  const std::size_t last = name.rfind('.');
  if (last == std::string_view::npos) return false;
  const std::string_view param = name.substr(last + 1), path = name.substr(0, last);
  if (param != "A" && param != "B") return false;
  const std::size_t dot = path.rfind('.');
  const std::string_view module = dot == std::string_view::npos ? path : path.substr(dot + 1);
  return module == "lora" || module.starts_with("lora_");
}

}  // namespace tessera
