#include "tessera/planner/settings.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/lora.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"

namespace tessera::planner {
namespace {

[[noreturn]] void refuse_setting(const Field& field, std::string_view text,
                                 const std::string& wanted) {
  throw UsageError(str("--", field.name, ": got ", quote(text), ", wanted ", wanted));
}

// 1e+15 as 1000000000000000, 0.001 as it is.
std::string number_text(double value) {
  char text[64];
  const bool whole = value == std::floor(value) && std::abs(value) < 1e16;
  const auto end =
      whole ? std::to_chars(text, text + sizeof text, static_cast<std::int64_t>(value)).ptr
            : std::to_chars(text, text + sizeof text, value).ptr;
  return {text, end};
}

std::string bounds_of(const Field& field) {
  return str(number_text(field.least), " to ", number_text(field.most));
}

// "12", "-1", "4,194,304", "13B".
std::optional<std::int64_t> whole_number(std::string_view text) {
  std::int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [at, problem] = std::from_chars(text.data(), end, value);
  if (problem == std::errc() && at == end) return value;
  try {
    return parse_count(text);
  } catch (const UsageError&) {
    return std::nullopt;
  }
}

std::int64_t parse_whole(const Field& field, std::string_view text, Command command) {
  // A plan leaves the greatest to settle(), which knows what can be counted.
  const bool open = command == Command::plan && !field.bounded_in_plans;
  const std::string bounds = open ? "at least 1" : bounds_of(field);
  const std::optional<std::int64_t> value = whole_number(text);
  // 1e30 is one, too: what it is not is one that can be counted.
  if (!value) {
    refuse_setting(field, text, str("a whole number, ", bounds, open ? " and below 9.2e18" : ""));
  }
  const auto wide = static_cast<double>(*value);
  if (open ? *value < 1 : !(wide >= field.least && wide <= field.most)) {
    const bool much = !field.bound.empty() && !open && wide > field.most;
    refuse_setting(field, text, much ? str(bounds, ": ", field.bound) : bounds);
  }
  return *value;
}

// What the planner keeps as an int.
int narrow(std::int64_t value, std::string_view name) {
  if (value > std::numeric_limits<int>::max()) {
    throw UsageError(
        str("--", name, ": got ", value, ", wanted at most ", std::numeric_limits<int>::max()));
  }
  return static_cast<int>(value);
}

double parse_real(const Field& field, std::string_view text) {
  if (field.automatic && text == "auto") return kAutomatic;
  const std::string bounds = bounds_of(field) + (field.automatic ? ", or auto" : "");
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [at, problem] = std::from_chars(text.data(), end, value);
  if (problem != std::errc() || at != end) {
    refuse_setting(field, text, str("a number, ", bounds));
  }
  if (!(value >= field.least && value <= field.most)) {
    refuse_setting(field, text, bounds);
  }
  return value;
}

bool parse_truth(const Field& field, std::string_view text) {
  if (text == "true" || text == "1") return true;
  if (text == "false" || text == "0") return false;
  refuse_setting(field, text, "true or false");
}

std::int64_t parse_size(const Field& field, std::string_view text) {
  try {
    return parse_bytes(text);
  } catch (const UsageError& error) {
    throw UsageError(str("--", field.name, ": ", error.what()));
  }
}

std::string parse_word(const Field& field, std::string_view text, Command command) {
  const auto& choices = field.choices;
  const bool any = choices.empty() || (field.free_in_plans && command == Command::plan);
  if (!any && std::find(choices.begin(), choices.end(), text) == choices.end()) {
    refuse_setting(field, text, join(choices, ", ") + did_you_mean(text, choices));
  }
  return std::string(text);
}

RunSettings plan_defaults() {
  RunSettings settings;
  settings.model = "gpt2-xl";
  settings.hardware = "h100";
  settings.layout = "bf16";
  settings.micro_batch = settings.chunks = 0;
  return settings;
}

// With the name of the flag before what cannot be found or read.
template <typename Body>
auto named(const char* flag, const Body& body) {
  try {
    return body();
  } catch (const UsageError& error) {
    const std::string why = error.what();  // some name the flag themselves
    throw UsageError(why.rfind("--", 0) == 0 ? why : str("--", flag, ": ", why));
  }
}

// Sizes over those of a named model, if there is one: what follows from a size follows again.
void put_sizes(ModelShape& m, const RunSettings& s) {
  const bool grouped = m.kv_heads != m.heads;
  if (s.layers > 0) m.layers = s.layers, m.window_from = std::min(m.window_from, s.layers);
  if (s.hidden > 0) {
    const auto real = [](std::int64_t value) { return static_cast<double>(value); };
    m.ffn = m.hidden > 0 && m.swiglu ? static_cast<std::int64_t>(std::min(
                                           1e18, real(m.ffn) * real(s.hidden) / real(m.hidden)))
                                     : 4 * std::min<std::int64_t>(s.hidden, 1'000'000'000);
    m.hidden = s.hidden;
  }
  if (s.hidden > 0 || s.heads > 0) m.head_width = 0;
  if (s.heads > 0) m.heads = s.heads;
  if (s.heads > 0 && !grouped) m.kv_heads = s.heads;
  if (s.kv_heads > 0) m.kv_heads = s.kv_heads;
  if (s.ffn > 0) m.ffn = s.ffn;
  if (s.vocab > 0) m.vocab = s.vocab;
  if (std::max({s.layers, s.hidden, s.heads, s.kv_heads, s.ffn, s.vocab}) > 0) m.name.clear();
}

std::size_t field_index(std::string_view key) {
  static const auto index = [] {
    std::unordered_map<std::string, std::size_t> map;
    const std::vector<Field>& all = fields(Command::plan);
    for (std::size_t i = 0; i < all.size(); ++i) {
      map[all[i].name] = i;
      if (!all[i].formerly.empty()) map[all[i].formerly] = i;
    }
    return map;
  }();
  std::string name(key);
  std::replace(name.begin(), name.end(), '_', '-');
  const auto found = index.find(name);
  if (found != index.end()) return found->second;
  std::vector<std::string> names;
  for (const Field& each : fields(Command::plan)) names.push_back(each.name);
  throw UsageError(str(quote(key), " is no setting of a plan", did_you_mean(name, names)));
}

}  // namespace

double default_lr(std::int64_t params) {
  constexpr double kSmallest = 1e6;
  return 3e-3 * std::cbrt(kSmallest / std::max(kSmallest, static_cast<double>(params)));
}

std::string Field::type_name() const {
  if (!type.empty()) return type;
  if (!choices.empty() && !free_in_plans) return "{" + join(choices, ",") + "}";
  if (bytes) return "SIZE";
  if (std::holds_alternative<double S::*>(member)) return "NUMBER";
  return std::holds_alternative<std::string S::*>(member) ? "TEXT" : "INT";
}

std::string Field::shown_default(Command command) const {
  return command == Command::plan ? planned : get({}, *this);
}

void set(RunSettings& settings, const Field& field, std::string_view text, Command command) {
  if (const auto* axis = std::get_if<Field::OfAxis>(&field.member)) {
    settings.axes.set_given(axis->axis, narrow(parse_whole(field, text, command), field.name));
    return;
  }
  std::visit(
      [&](auto member) {
        if constexpr (!std::is_same_v<decltype(member), Field::OfAxis>) {
          auto& value = settings.*member;
          using T = std::remove_reference_t<decltype(value)>;
          if constexpr (std::is_same_v<T, bool>) {
            value = parse_truth(field, text);
          } else if constexpr (std::is_same_v<T, std::string>) {
            value = parse_word(field, text, command);
          } else if constexpr (std::is_same_v<T, std::int64_t>) {
            value = field.bytes ? parse_size(field, text) : parse_whole(field, text, command);
          } else {
            value = parse_real(field, text);
          }
        }
      },
      field.member);
}

std::string get(const RunSettings& settings, const Field& field) {
  return std::visit(
      [&](auto member) -> std::string {
        if constexpr (std::is_same_v<decltype(member), Field::OfAxis>) {
          return str(settings.axes.given(member.axis));
        } else if constexpr (std::is_same_v<decltype(member), double RunSettings::*>) {
          const bool unset = field.automatic && settings.*member == kAutomatic;
          return unset ? "auto" : number_text(settings.*member);
        } else if constexpr (std::is_same_v<decltype(member), bool RunSettings::*>) {
          return settings.*member ? "true" : "false";
        } else {
          return str(settings.*member);
        }
      },
      field.member);
}

// Compression is for fp32 gradients; PowerSGD for whole ones of known matrices.
static void check_compression(const Question& q, bool size_alone) {
  const bool none = q.grad_compression == GradCompression::none;
  if (!none && !q.power_sgd_asked() && q.layout.grad < 4) {
    throw UsageError(str("--grad-compression: got ", name(q.grad_compression), " with --layout ",
                         q.layout.name,
                         ", whose gradients have 16 bits already; wanted none, or a layout with "
                         "fp32 gradients: fp32 or bf16-fp32grad"));
  }
  if (q.grad_compression == q.compression() && !(size_alone && q.power_sgd_asked())) return;
  const std::string wanted =
      q.zero != 0 ? str("--zero ", q.zero, ", wanted stage 0, which keeps whole gradients")
      : q.policy() != ReducePolicy::last ? std::string("--grad-reduce each, wanted last")
      : size_alone ? std::string("--params, wanted a --model, whose matrices are known")
                   : str("--layout ", q.layout.name,
                         ", wanted one with fp32 gradients: fp32 or bf16-fp32grad");
  throw UsageError(str("--grad-compression: got powersgd with ", wanted,
                       "; --grad-compression bf16 goes with every stage"));
}

std::int64_t bucket_bytes_of(const RunSettings& s) {
  if (s.bucket_size > 0 && s.bucket_mb > 0) {
    throw UsageError("--bucket-size and --bucket-mb: got both, wanted one of them");
  }
  if (s.bucket_size > 0 || s.bucket_mb <= 0) return s.bucket_size;
  return std::max<std::int64_t>(1, std::llround(s.bucket_mb * 1e6));
}

Question described(const RunSettings& s) {
  Question q;
  q.seq = s.seq;
  q.axes = s.axes;
  q.gpus = narrow(s.gpus, "gpus");
  q.sequence_parallel = s.sequence_parallel;
  if (s.slice_hops) q.slice_hops = true;
  if (!s.axis_order.empty()) q.order = s.axis_order;
  q.zero = static_cast<int>(s.zero);
  q.layout = named("layout", [&] { return parse_state_layout(s.layout); });
  if (s.grad_reduce != "auto") {
    q.grad_reduce = s.grad_reduce == "each" ? ReducePolicy::each : ReducePolicy::last;
  }
  q.grad_compression = parse_grad_compression(s.grad_compression);
  q.power_sgd.rank = narrow(s.powersgd_rank, "powersgd-rank");
  q.power_sgd.warm_up_steps = s.powersgd_warmup;
  check_compression(q, s.params > 0);
  q.keep_params = s.keep_params;
  q.overlap_grad_reduce = s.overlap_grad_reduce;
  q.overlap_param_gather = s.overlap_param_gather;
  q.bucket_bytes = static_cast<double>(bucket_bytes_of(s));
  q.micro_batch = s.micro_batch;
  q.grad_accum = s.grad_accum;
  q.global_batch = s.global_batch;
  q.recompute = parse_recompute(s.recompute);
  q.dropout = s.dropout > 0;
  if (!s.attention.empty()) {
    q.attention = s.attention == "fused" ? Attention::fused : Attention::unfused;
  }
  if (!s.software.empty()) {
    q.software = parse_software(s.software);
  }
  if (s.gather != "auto") q.gather = s.gather == "alias" ? Gather::alias : Gather::copy;
  q.prefetch = s.prefetch;
  q.cuda_graph = s.cuda_graph != "off";
  q.schedule = s.schedule;
  q.chunks = narrow(s.chunks, "chunks");
  q.split = s.split;
  q.vocab_multiple = narrow(s.pad_vocab, "pad-vocab");
  q.nodes = narrow(s.nodes, "nodes");
  q.per_node = narrow(s.gpus_per_node, "gpus-per-node");
  return q;
}

void Settings::set(std::string_view key, std::string value) {
  values_.resize(fields(Command::plan).size());
  values_[field_index(key)] = std::move(value);
}

bool Settings::has(std::string_view key) const {
  const std::size_t at = field_index(key);
  return at < values_.size() && values_[at].has_value();
}

Question Settings::question(const Catalogue& catalogue) const {
  RunSettings s = plan_defaults();
  for (std::size_t i = 0; i < values_.size(); ++i) {
    if (values_[i]) planner::set(s, fields(Command::plan)[i], *values_[i], Command::plan);
  }
  const bool shaped = std::max({s.layers, s.hidden, s.heads}) > 0;
  if (s.params > 0 && (shaped || has("model"))) {
    throw UsageError("--params: a model known by its size alone has no --model and no sizes");
  }
  Question q = described(s);
  if (has("slice-hops")) q.slice_hops = s.slice_hops;
  q.hardware = named("hardware", [&] { return catalogue.find(s.hardware); });
  if (s.price_per_hour >= 0) q.hardware.price_per_hour = s.price_per_hour;
  if (s.watts >= 0) q.hardware.watts = s.watts;
  if (!q.hardware.bf16 && !has("layout")) q.layout = parse_state_layout("fp16");
  q.params = static_cast<double>(s.params);
  if (s.params > 0 && s.lora_rank > 0) {
    throw UsageError("--lora-rank: got --params too, wanted a --model, whose linears are known");
  }
  if (s.params > 0) return q;
  if (shaped && !has("model")) {
    q.model.vocab = 50257;
    q.model.positions = 1;  // grows with the sequence
    if (q.seq == 0) q.seq = 1024;
  } else {
    q.model = named("model", [&] { return catalogue.model(s.model); });
  }
  put_sizes(q.model, s);
  if (s.lora_rank > 0 && !q.software) q.software = Software::tessera;
  if (s.lora_rank > 0 && q.software != Software::tessera) {
    throw UsageError(str("--lora-rank: got --software ", name(*q.software),
                         ", wanted tessera, whose adapters are known"));
  }
  q.model.lora = {s.lora_rank, s.lora_alpha, s.lora_targets};
  return q;
}

}  // namespace tessera::planner
