#include "tessera/planner/fields.h"

#include <algorithm>
#include <limits>
#include <unordered_map>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/schedule/schedule.h"

namespace tessera::planner {
namespace {

constexpr const char* kDefaultModel = "gpt2-xl";
constexpr const char* kDefaultHardware = "h100";

std::int64_t whole_number(std::string_view text) {
  std::int64_t value = 0;
  try {
    value = parse_count(text);
  } catch (const UsageError&) {
    const bool below = text.size() > 1 && text.front() == '-' &&
                       text.find_first_not_of("0123456789", 1) == std::string_view::npos;
    throw UsageError(
        str("got ", quote(text), below ? ", wanted at least 1" : ", wanted a whole number"));
  }
  if (value < 1) throw UsageError(str("got ", quote(text), ", wanted at least 1"));
  return value;
}

int small_number(std::string_view text) {
  const std::int64_t value = whole_number(text);
  if (value > std::numeric_limits<int>::max()) {
    throw UsageError(
        str("got ", quote(text), ", wanted at most ", std::numeric_limits<int>::max()));
  }
  return static_cast<int>(value);
}

bool truth(std::string_view text) {
  if (text == "true" || text == "1") return true;
  if (text == "false" || text == "0") return false;
  throw UsageError(str("got ", quote(text), ", wanted true or false"));
}

double amount(std::string_view text) {
  // parse_time reads plain numbers with fractions, and refuses what is no number or negative.
  if (text.empty() || text.find_first_not_of("0123456789.eE+-") != std::string_view::npos) {
    throw UsageError(str("got ", quote(text), ", wanted a number"));
  }
  return parse_time(text);
}

// A size of the model over those of a named one: what follows from it follows again.
void set_hidden(Question& q, std::int64_t hidden) {
  ModelShape& m = q.model;
  const bool named = m.hidden > 0 && m.swiglu;
  m.ffn = named
              ? static_cast<std::int64_t>(static_cast<double>(m.ffn) * static_cast<double>(hidden) /
                                          static_cast<double>(m.hidden))
              : 4 * std::min<std::int64_t>(hidden, 1'000'000'000);
  m.hidden = hidden;
  m.name.clear();
}

// How a field reads its text into a question; `text` is that text.
#define TESSERA_READ(statement) \
  [](Question& q, [[maybe_unused]] const Catalogue& catalogue, std::string_view text) { statement; }

std::vector<Field> make_fields() {
  std::vector<Field> all;
  std::string group;
  const auto add = [&](const char* name, const char* type, const char* shown, const char* help,
                       auto apply, std::vector<std::string> choices = {}) {
    all.push_back({name, group, help, type, shown, std::move(choices), false, apply});
  };
  const auto flag = [&](const char* name, const char* shown, const char* help, auto apply) {
    all.push_back({name, group, help, "BOOL", shown, {}, true, apply});
  };

  // Applied in this order: a name before the sizes over it.
  group = "Model";
  add("model", "NAME", kDefaultModel, "one of --list-models",
      TESSERA_READ(q.model = find_model_shape(text)));
  add("layers", "INT", "", "sizes, over those of --model or alone", TESSERA_READ({
        q.model.layers = whole_number(text);
        q.model.name.clear();
      }));
  add("hidden", "INT", "", "width between the layers",
      TESSERA_READ(set_hidden(q, whole_number(text))));
  add("heads", "INT", "", "of attention", TESSERA_READ({
        const bool grouped = q.model.kv_heads != q.model.heads;
        q.model.heads = whole_number(text);
        if (!grouped) q.model.kv_heads = q.model.heads;
        q.model.name.clear();
      }));
  add("kv-heads", "INT", "heads", "fewer than heads: grouped-query attention", TESSERA_READ({
        q.model.kv_heads = whole_number(text);
        q.model.name.clear();
      }));
  add("ffn", "INT", "4·hidden", "width inside the MLP", TESSERA_READ({
        q.model.ffn = whole_number(text);
        q.model.name.clear();
      }));
  add("vocab", "INT", "50257", "tokens", TESSERA_READ({
        q.model.vocab = whole_number(text);
        q.model.name.clear();
      }));
  add("seq", "INT", "the model's", "tokens in a sequence",
      TESSERA_READ(q.seq = whole_number(text)));
  flag("pad-vocab", "false", "pad the vocabulary to a multiple of 128 · tp, as Megatron does",
       TESSERA_READ(q.vocab_multiple = truth(text) ? 128 : 0));
  add("params", "COUNT", "", "a model known by its size alone, as 13B: memory of state, no time",
      TESSERA_READ(q.params = static_cast<double>(whole_number(text))));

  group = "Parallelism";
  add("gpus", "INT", "dp · tp · pp", "all of them; --dp follows",
      TESSERA_READ(q.gpus = small_number(text)));
  add("dp", "INT", "gpus / (tp · pp)", "data-parallel ranks",
      TESSERA_READ(q.axes.set("dp", small_number(text))));
  add("tp", "INT", "1", "tensor-parallel ranks",
      TESSERA_READ(q.axes.set("tp", small_number(text))));
  add("pp", "INT", "1", "pipeline ranks", TESSERA_READ(q.axes.set("pp", small_number(text))));
  flag("sequence-parallel", "false", "cut what tp leaves whole along the sequence",
       TESSERA_READ(q.sequence_parallel = truth(text)));
  flag("slice-hops", "false", "between stages a rank sends 1/tp, gathered again, as Megatron does",
       TESSERA_READ(q.slice_hops = truth(text)));
  add("schedule", "NAME", "1f1b", "of the pipeline", TESSERA_READ(q.schedule = std::string(text)),
      schedule::names());
  add("split", "HOW", "even", "layers of the stages: even, work, or as 3,3,2",
      TESSERA_READ(q.split = std::string(text)));
  add("chunks", "INT", "1", "of the model on each pipeline rank (interleaved: 2)",
      TESSERA_READ(q.chunks = small_number(text)));
  add("zero", "STAGE", "0", "ZeRO: 0 nothing sharded, 1 optimizer, 2 + gradients, 3 + parameters",
      TESSERA_READ({
        if (text.size() != 1 || text[0] < '0' || text[0] > '3') {
          throw UsageError(str("got ", quote(text), ", wanted 0, 1, 2 or 3"));
        }
        q.zero = text[0] - '0';
      }),
      {"0", "1", "2", "3"});
  add("grad-reduce", "WHEN", "last; stages 2 and 3: each",
      "reduce gradients after each micro-batch, or once after the last",
      TESSERA_READ(q.grad_reduce = text == "each" ? ReducePolicy::each : ReducePolicy::last),
      {"each", "last"});
  flag("keep-params", "false", "stage 3: parameters stay gathered between forward and backward",
       TESSERA_READ(q.keep_params = truth(text)));
  flag("overlap-grad-reduce", "true", "reduce gradients while backward goes on",
       TESSERA_READ(q.overlap_grad_reduce = truth(text)));
  flag("overlap-param-gather", "true", "gather parameters while forward goes on",
       TESSERA_READ(q.overlap_param_gather = truth(text)));
  add("bucket-size", "SIZE", "by the model", "bytes of gradient that travel together",
      TESSERA_READ(q.bucket_bytes = static_cast<double>(parse_bytes(text))));

  group = "Batch";
  add("micro-batch", "INT", "1", "sequences a rank computes at once",
      TESSERA_READ(q.micro_batch = whole_number(text)));
  add("grad-accum", "INT", "1", "micro-batches of a step",
      TESSERA_READ(q.grad_accum = whole_number(text)));
  add("global-batch", "INT", "micro-batch · grad-accum · dp", "sequences of a step",
      TESSERA_READ(q.global_batch = whole_number(text)));

  group = "Memory";
  add("layout", "NAME|p,g,o", "bf16",
      "bytes of a parameter: bf16, bf16-fp32grad, bf16-nomaster, fp32, or such as 2,6,12",
      TESSERA_READ(q.layout = parse_state_layout(text)));
  add("checkpoint-activations", "WHAT", "none", "what backward recomputes",
      TESSERA_READ(q.recompute = parse_recompute(text)), {"none", "selective", "full"});
  add("software", "WHOSE", "cpu: tessera, else megatron",
      "whose layers they are: what Tessera's keep for backward, or Megatron-LM's",
      TESSERA_READ(q.software = text == "tessera" ? Software::tessera : Software::megatron),
      {"megatron", "tessera"});
  add("gather", "HOW", "cpu: alias, else copy",
      "stage 3 of tessera: parameters shared by the ranks of a host, or copied",
      TESSERA_READ(q.gather = text == "alias" ? Gather::alias : Gather::copy), {"alias", "copy"});
  flag("prefetch", "true", "stage 3 of tessera: gather one unit ahead",
       TESSERA_READ(q.prefetch = truth(text)));
  add("attention", "KIND", "fused", "unfused keeps the matrix of scores",
      TESSERA_READ(q.attention = text == "fused" ? Attention::fused : Attention::unfused),
      {"fused", "unfused"});

  group = "Hardware";
  add("hardware", "NAME", kDefaultHardware, "one of --list-hardware",
      TESSERA_READ(q.hardware = catalogue.find(text)));
  add("nodes", "INT", "as many as needed", "hosts", TESSERA_READ(q.nodes = small_number(text)));
  add("gpus-per-node", "INT", "the hardware's", "devices of a host",
      TESSERA_READ(q.per_node = small_number(text)));
  add("price-per-hour", "NUMBER", "the hardware's", "of one device, for the cost of a step",
      TESSERA_READ(q.hardware.price_per_hour = amount(text)));
  add("watts", "NUMBER", "the hardware's", "of one device, for the energy of a step",
      TESSERA_READ(q.hardware.watts = amount(text)));
  return all;
}
#undef TESSERA_READ

std::size_t field_index(std::string_view key) {
  static const auto index = [] {
    std::unordered_map<std::string, std::size_t> map;
    for (std::size_t i = 0; i < fields().size(); ++i) map[fields()[i].name] = i;
    return map;
  }();
  std::string name(key);
  std::replace(name.begin(), name.end(), '_', '-');
  const auto found = index.find(name);
  if (found != index.end()) return found->second;
  std::vector<std::string> names;
  for (const Field& each : fields()) names.push_back(each.name);
  throw UsageError(str(quote(key), " is no setting of a plan", did_you_mean(name, names)));
}

void apply_field(Question& q, const Catalogue& catalogue, const Field& field,
                 std::string_view text) {
  try {
    if (!field.choices.empty() &&
        std::find(field.choices.begin(), field.choices.end(), text) == field.choices.end()) {
      throw UsageError(str("got ", quote(text), ", wanted ", join(field.choices, ", "),
                           did_you_mean(text, field.choices)));
    }
    field.apply(q, catalogue, text);
  } catch (const UsageError& error) {
    const std::string why = error.what();  // some name the flag themselves
    throw UsageError(why.rfind("--", 0) == 0 ? why : str("--", field.name, ": ", why));
  }
}

}  // namespace

const std::vector<Field>& fields() {
  static const std::vector<Field> all = make_fields();
  return all;
}

void Settings::set(std::string_view key, std::string value) {
  values_.resize(fields().size());
  values_[field_index(key)] = std::move(value);
}

bool Settings::has(std::string_view key) const {
  const std::size_t at = field_index(key);
  return at < values_.size() && values_[at].has_value();
}

Question Settings::question(const Catalogue& catalogue) const {
  Question q;
  const bool sized = has("params");
  bool shaped = false;
  for (const char* key : {"layers", "hidden", "heads"}) shaped = shaped || has(key);
  if (!sized && !shaped) q.model = find_model_shape(kDefaultModel);
  q.hardware = catalogue.find(kDefaultHardware);
  if (sized && (shaped || has("model"))) {
    throw UsageError("--params: a model known by its size alone has no --model and no sizes");
  }
  if (shaped && !has("model")) {
    q.model.vocab = 50257;
    q.model.positions = 1;  // grows with the sequence
    if (!has("seq")) q.seq = 1024;
  }
  for (std::size_t i = 0; i < values_.size(); ++i) {
    if (values_[i]) apply_field(q, catalogue, fields()[i], *values_[i]);
  }
  if (sized) q.model = {};
  return q;
}

}  // namespace tessera::planner
