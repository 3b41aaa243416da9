#include "tessera/planner/run_config.h"

#include <algorithm>
#include <cmath>

#include "tessera/core/errors.h"
#include "tessera/core/lora.h"
#include "tessera/core/text.h"
#include "tessera/planner/context_costs.h"
#include "tessera/planner/expert_settings.h"
#include "tessera/planner/parameters.h"
#include "tessera/planner/places.h"
#include "tessera/planner/software.h"

namespace tessera::planner {
namespace {

// Within these no product of sizes leaves 64 bits.
constexpr std::int64_t kMaxDevices = 10'000'000, kMaxSamples = 1'000'000'000, kMaxSeq = 100'000'000,
                       kMaxMicros = 65'536;
constexpr int kGpuVocabMultiple = 128;

// Calls `body` and makes its errors about this flag.
template <typename Body>
auto about(const char* flag, const Body& body) {
  try {
    return body();
  } catch (const UsageError& error) {
    const std::string why = error.what();  // some name the flag themselves
    throw why.starts_with("--") ? UsageError(why, flag) : UsageError(Flag(flag), why);
  }
}

void in_range(std::string_view flag, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value < least || value > most) {
    throw UsageError(Flag(flag), str("got ", value, "; must be ", least, " to ", most));
  }
}

// Sizes as flags name them.
void check_sizes(const ModelShape& model) {
  try {
    check(model);
  } catch (const UsageError& error) {
    throw UsageError(str("--", error.what()), error.field());
  }
  check_lora(model);
}

void resolve_model(RunConfig& q) {
  if (q.state_only()) {
    if (!(q.params >= 1 && q.params <= 1e18)) {
      throw UsageError(Flag("params"), str("got ", q.params, "; must be 1 to 1e18"));
    }
    if (q.model.layers != 0) {
      throw UsageError(Flag("params"),
                       "a model known by its size alone has no --model and no sizes");
    }
    in_range("seq", q.seq, 0, kMaxSeq);  // 0: not known either
    return;
  }
  if (q.model.layers == 0 || q.model.hidden == 0 || q.model.heads == 0) {
    const std::string missing(q.model.layers == 0   ? "layers"
                              : q.model.hidden == 0 ? "hidden"
                                                    : "heads");
    throw UsageError(str("--", missing,
                         " is missing. Give --layers, --hidden and --heads together, or a --model "
                         "that has those left out."),
                     missing);
  }
  check_sizes(q.model);
  q.seq = sequence_of(q);
  in_range("seq", q.seq, 1, kMaxSeq);
  in_range("positions", q.model.positions, 0, kMaxSeq);
  if (q.model.rotary() && q.model.longest() > 0 && q.seq > q.model.longest()) {
    throw UsageError(Flag("seq"), str("got ", q.seq, ", but ", longest_reason(q.model),
                                      "; must be at most ", q.model.longest()));
  }
  // A learned table of positions has a row for each of the sequence's.
  if (q.model.positions > 0) q.model.positions = std::max(q.model.positions, q.seq);
  in_range("pad-vocab", q.vocab_multiple, 0, 1'000'000);
  if (q.vocab_multiple == 0) {
    q.vocab_multiple = q.software == Software::tessera && *q.gpu ? kGpuVocabMultiple : 1;
  }
  if (q.vocab_multiple > 1) {
    q.model.vocab = padded_vocab(q.model.vocab, std::int64_t{q.vocab_multiple} * q.tp());
  }
}

// Returns "tp 2 · pp 4": the sizes of all axes but the data-parallel ones.
std::string words_without_dp(const Axes& axes) {
  std::vector<std::string> sizes;
  for (const Axis axis : kTableAxes) {
    if (kDataAxes.contains(axis) || !multiplies_ranks(axis)) continue;
    if (axis == Axis::cp && axes.size(axis) == 1) continue;
    sizes.push_back(str(axis_name(axis), " ", axes.given(axis)));
  }
  return join(sizes, " · ");
}

void resolve_mesh(RunConfig& q) {
  for (const Axis axis : kPrintedAxes) {
    const bool dp = axis == Axis::dp_shard;  // the only axis that may be left open
    in_range(axis_flag(axis).substr(2), q.axes.given(axis), dp ? 0 : 1, dp ? kMaxDevices : 65'536);
  }
  in_range("gpus", q.gpus, 0, kMaxDevices);
  in_range("nodes", q.nodes, 0, kMaxDevices);
  in_range("gpus-per-node", q.per_node, 0, 65'536);
  if (q.per_node == 0) q.per_node = std::max(1, q.hardware.per_node);
  const std::int64_t cut = q.axes.model_ranks();
  if (q.dp() == 0) {
    // Derived from the number of devices, if it is given.
    const std::int64_t all = q.gpus > 0 ? q.gpus : std::int64_t{q.nodes} * q.per_node;
    const char* const flag = q.gpus > 0 ? "gpus" : "nodes";
    if (all > 0 && all % cut != 0) {
      throw UsageError(Flag(flag), str(words_without_dp(q.axes), " = ", cut, " does not divide ",
                                       all, " GPUs; change one of them, or give --dp"));
    }
    in_range("gpus", all, 0, kMaxDevices);
    q.axes.set_dp(all > 0 ? static_cast<int>(all / cut) : q.replicas());
  }
  q.axes.check_replicas();
  check_replicas_at(q.zero, q.axes);
  const std::int64_t world = q.axes.world();
  if (world < 1 || world > kMaxDevices) {
    throw UsageError(Flag("dp"), str(axis_product(), " = ", world, "; must be 1 to ", kMaxDevices));
  }
  if (q.gpus > 0 && q.gpus != world) {
    throw UsageError(Flag("gpus"), str("got ", q.gpus, ", but ", q.axes.words(" · "), " = ", world,
                                       "; omit one of them"));
  }
  q.gpus = static_cast<int>(world);
  const std::int64_t filled = (world + q.per_node - 1) / q.per_node;
  if (q.nodes == 0) q.nodes = static_cast<int>(filled);
  if (q.nodes > filled && world % q.nodes != 0) {
    throw UsageError(Flag("nodes"),
                     str("got ", q.nodes, ", which does not divide the ", world,
                         " GPUs. Use a divisor of them, or omit it: they fill ", filled,
                         filled == 1 ? " node of " : " nodes of ", q.per_node));
  }
  if (std::int64_t{q.nodes} * q.per_node < world) {
    throw UsageError(Flag("nodes"),
                     str(q.nodes, q.nodes == 1 ? " node of " : " nodes of ", q.per_node,
                         " GPUs are fewer than ", q.axes.words(" · "), " = ", world));
  }
}

void resolve_order(RunConfig& q) {
  try {
    axis_order(q);
  } catch (const UsageError& error) {
    throw UsageError(Flag("axis-order"), error.what());
  }
}

void resolve_batch(RunConfig& q) {
  in_range("micro-batch", q.micro_batch, 0, kMaxSamples);
  in_range("grad-accum", q.grad_accum, 0, kMaxSamples);
  in_range("global-batch", q.global_batch, 0, kMaxSamples);
  if (q.micro_batch == 0) {
    const std::int64_t parts = q.dp() * q.grad_accum;
    const bool both = parts > 0 && q.global_batch > 0 && q.global_batch % parts == 0;
    q.micro_batch = both ? q.global_batch / parts : 1;
  }
  const std::int64_t at_once = q.micro_batch * q.dp();
  if (q.global_batch == 0) {
    q.grad_accum = std::max<std::int64_t>(1, q.grad_accum);
    if (at_once > kMaxSamples / q.grad_accum) {
      throw UsageError(Flag("global-batch"),
                       str("micro-batch ", q.micro_batch, " · dp ", q.dp(), " · grad-accum ",
                           q.grad_accum, " is more than ", kMaxSamples));
    }
    q.global_batch = at_once * q.grad_accum;
  }
  if (q.global_batch % at_once != 0) {
    throw UsageError(Flag("global-batch"),
                     str("got ", q.global_batch, ", which micro-batch ", q.micro_batch, " · dp ",
                         q.dp(), " = ", at_once, " does not divide; the nearest that it does are ",
                         std::max<std::int64_t>(1, q.global_batch / at_once) * at_once, " and ",
                         (q.global_batch / at_once + 1) * at_once));
  }
  const std::int64_t micros = q.global_batch / at_once;
  if (q.grad_accum != 0 && q.grad_accum != micros) {
    throw UsageError(
        Flag("grad-accum"),
        str("got ", q.grad_accum, ", but global-batch ", q.global_batch, " = micro-batch ",
            q.micro_batch, " · dp ", q.dp(), " · ", micros, "; omit one of them"));
  }
  q.grad_accum = micros;
}

void resolve_schedule(RunConfig& q) {
  in_range("chunks", q.chunks, 0, 1024);
  // 1F1B with several chunks on a rank is what "interleaved" means.
  if (q.schedule == ScheduleChoice::one_f_one_b && q.chunks > 1)
    q.schedule = ScheduleChoice::interleaved;
  if (q.chunks == 0)
    q.chunks =
        q.schedule == ScheduleChoice::interleaved || q.schedule == ScheduleChoice::zb_v ? 2 : 1;
  if (q.schedule == ScheduleChoice::zb_v && q.chunks != 2) {
    throw UsageError(Flag("chunks"), str("got ", q.chunks, ", but zb-v has 2 on every rank"));
  }
  if ((q.schedule == ScheduleChoice::gpipe || q.schedule == ScheduleChoice::zb_h1) &&
      q.chunks != 1) {
    throw UsageError(Flag("chunks"),
                     str("got ", q.chunks, ", but ", name(q.schedule),
                         " has one on every rank; --schedule interleaved takes more"));
  }
  if (!q.pipelined()) return;
  in_range("grad-accum", q.micros(), 1, kMaxMicros);
  if (q.schedule == ScheduleChoice::interleaved && q.micros() < q.pp()) {
    throw UsageError(
        Flag("schedule"),
        str("interleaved needs as many micro-batches as pp, and has ", q.micros(), " for pp ",
            q.pp(), "; raise --global-batch, lower --micro-batch, or use 1f1b"));
  }
}

void resolve_cuts(RunConfig& q) {
  if (q.state_only()) return;
  // Names the model in messages, because it may be the default one.
  const auto whose = [&] { return q.model.name.empty() ? "" : str(" of --model ", q.model.name); };
  if (q.model.heads % q.tp() != 0) {
    throw UsageError(Flag("tp"), str("got ", q.tp(), ", which does not divide ", q.model.heads,
                                     " heads", whose(), "; must be a divisor of them"));
  }
  if (q.model.kv_heads % q.tp() != 0 && q.tp() % q.model.kv_heads != 0) {
    throw UsageError(Flag("tp"), str("got ", q.tp(), ", which ", q.model.kv_heads, " kv-heads",
                                     whose(), " neither divide nor are divided by"));
  }
  if (q.cp() > 1 && q.seq < 2 * std::int64_t{q.cp()}) {
    throw UsageError(Flag("cp"), str("got ", q.cp(), ", but sequences have ", q.seq,
                                     " tokens, and each rank holds two chunks of them; must be at "
                                     "most half of --seq"));
  }
  q.cp_kind = context_kind(q, q.cp_kind, q.axes);
  const int stages = q.stages();
  if (q.model.layers < stages) {
    throw UsageError(Flag("layers"), str("got ", q.model.layers, " for pp ", q.pp(), " · chunks ",
                                         q.chunks, " = ", stages, " stages", whose(),
                                         "; each needs a layer: lower --pp or --chunks"));
  }
  layers_of_stages(q.model, stages, q.split);
}

void resolve_software(RunConfig& q) {
  const bool cpu = q.hardware.cpu;
  if (!q.gpu) q.gpu = !cpu;
  const Software whose = software_of(q);
  if (!q.state_only()) q.software = whose;
  q.hardware.run_by(name(whose));
  if (!q.slice_hops) q.slice_hops = whose == Software::megatron;
  const bool shares = cpu && q.nodes == 1 && q.shards() > 1;
  if (q.gather == Gather::alias && !shares && q.shards() > 1 && q.zero == 3) {
    throw UsageError(
        Flag("gather"),
        str("got alias, which needs ranks of one host that share memory; ", q.hardware.name, " on ",
            q.nodes, q.nodes == 1 ? " node" : " nodes", " has none; must be copy"));
  }
  if (!q.gather || !shares) q.gather = shares ? Gather::alias : Gather::copy;
}

// Tessera's own runs are counted to the byte, in 64 bits; none comes near.
void check_countable(const RunConfig& q) {
  if (q.software != Software::tessera || q.state_only()) return;
  in_range("pp", q.pp(), 1, 4096);
  const auto real = [](std::int64_t value) { return static_cast<double>(value); };
  const ModelShape& m = q.model;
  const Experts& experts = m.experts;
  const double routed = real(experts.per_token) * (4 * real(experts.width) + 4 * real(m.hidden)) +
                        4 * real(experts.shared_width) + 4 * real(experts.count);
  const double widest =
      16 * real(m.hidden) + 4 * real(m.ffn) + real(m.vocab) + routed * q.expert_imbalance;
  const double activations = real(q.micro_batch) * real(q.rank_tokens()) * widest *
                             real(m.layers + 2) * real(q.micros()) * q.chunks * 8;
  const double padding = 16.0 * q.shards() * (16 + 4 * real(experts.count)) * real(m.layers + 2);
  const double state = (real(m.params()) + padding) * (q.layout.total() + 8) * 4;
  if (activations > 4e18 || state > 4e18) {
    throw UsageError(
        Flag("software"),
        str("got tessera for ", activations > 4e18 ? "activations" : "a model",
            " beyond what it counts (4e18 bytes); use a smaller one, or --software megatron"));
  }
}

}  // namespace

std::string_view title(Software software) {
  switch (software) {
    case Software::tessera: return "Tessera";
    case Software::pytorch: return "PyTorch";
    default: return "Megatron-LM";
  }
}

Software software_of(const RunConfig& q) {
  if (q.software) return *q.software;
  if (q.hardware.cpu) return Software::tessera;
  if (q.hardware.software.empty()) return Software::megatron;
  if (const auto software = find_named<Software>(q.hardware.software)) return *software;
  throw UsageError(str("hardware ", q.hardware.name, ": software ", quote(q.hardware.software),
                       " is unknown; must be megatron, pytorch or tessera"));
}

Attention attention_of(const RunConfig& q) {
  const bool has = q.hardware.fused_attention;
  if (q.attention == Attention::fused && !has) {
    throw UsageError(Flag("attention"),
                     str("got fused, which ", q.hardware.name,
                         " does not have; must be unfused. Omit it to choose by the hardware."));
  }
  return q.attention.value_or(has ? Attention::fused : Attention::unfused);
}

void check_replicas_at(int stage, const Axes& axes) {
  const int replicas = axes.size(Axis::dp_replicate);
  if (stage > 0 || replicas <= 1) return;
  throw UsageError(str(axis_flag(Axis::dp_replicate), " ", replicas,
                       ": needs --zero 1, 2 or 3, which shard state; at stage 0 every rank holds "
                       "all of it"),
                   std::string(axis_flag(Axis::dp_replicate).substr(2)));
}

double default_lr(std::int64_t params) {
  constexpr double kSmallest = 1e6;
  return 3e-3 * std::cbrt(kSmallest / std::max(kSmallest, static_cast<double>(params)));
}

bool has_sizes(const RunConfig& s) {
  const std::int64_t largest =
      std::max({s.layers, s.hidden, s.heads, s.kv_heads, s.ffn, s.vocab, s.positions, s.experts});
  return largest > 0 || !given_for_experts(s).empty();
}

void apply_sizes(ModelShape& m, const RunConfig& s) {
  const bool grouped = m.kv_heads != m.heads;
  const std::int64_t hidden = m.hidden, heads = m.heads;
  const auto real = [](std::int64_t value) { return static_cast<double>(value); };
  if (s.layers > 0) m.layers = s.layers, m.window_from = std::min(m.window_from, s.layers);
  if (s.hidden > 0) {
    const auto scaled = [&](std::int64_t width) {
      return static_cast<std::int64_t>(std::min(1e18, real(width) * real(s.hidden) / real(hidden)));
    };
    m.ffn = hidden > 0 && m.swiglu ? scaled(m.ffn)
                                   : 4 * std::min<std::int64_t>(s.hidden, 1'000'000'000);
    if (hidden > 0 && m.experts.any()) {
      m.experts.width = scaled(m.experts.width);
      m.experts.shared_width = scaled(m.experts.shared_width);
    }
    m.hidden = s.hidden;
  }
  if (s.hidden > 0 || s.heads > 0) m.head_width = 0;
  if (s.heads > 0) {
    // Fewer key and value heads stay as they are if they divide the new heads.
    if (!grouped) m.kv_heads = s.heads;
    if (grouped && s.heads % m.kv_heads != 0) {
      m.kv_heads =
          std::max<std::int64_t>(1, s.heads / std::max<std::int64_t>(1, heads / m.kv_heads));
    }
    m.heads = s.heads;
  }
  if (s.kv_heads > 0) m.kv_heads = s.kv_heads;
  if (s.ffn > 0) m.ffn = s.ffn;
  if (s.vocab > 0) m.vocab = s.vocab;
  apply_experts(m, s);
  const bool changed = std::max({s.layers, s.hidden, s.heads, s.kv_heads, s.ffn, s.vocab}) > 0;
  if (changed || resizes_experts(s)) m.name.clear();
}

void check_compression(const RunConfig& q) {
  if (q.grad_compression == GradCompression::none || q.layout.grad >= 4) return;
  throw UsageError(Flag("grad-compression"),
                   str("got ", name(q.grad_compression), " with --layout ", q.layout.name,
                       ", whose gradients have 16 bits already; must be none, or a layout with "
                       "fp32 gradients: fp32 or bf16-fp32grad"));
}

// Moments of a plan are those of AdamW.
static void resolve_optimizer_state(RunConfig& q) {
  if (q.optimizer_state == OptimizerState::fp32) return;
  const auto& known = state_layouts();
  if (std::none_of(known.begin(), known.end(),
                   [&](const StateLayout& layout) { return layout.name == q.layout.name; })) {
    throw UsageError(Flag("optimizer-state"),
                     str("got ", name(q.optimizer_state), " with --layout ", q.layout.name,
                         ", whose bytes include the moments. Omit one of them."));
  }
  q.layout.moments = 2 * bytes_per_moment(q.optimizer_state);
}

RunConfig look_up(RunConfig q, const Catalog& catalog) {
  // A program may also assign to the members.
  static const RunConfig usual = RunConfig::for_plan();
  const bool named = q.has("model") || q.model_name != usual.model_name;
  const bool laid_out = q.has("layout") || q.layout != usual.layout;
  const bool shaped = std::max({q.layers, q.hidden, q.heads}) > 0;
  if (q.params > 0 && (shaped || named)) {
    throw UsageError(Flag("params"), "cannot be combined with --model or sizes of a model");
  }
  q.hardware = about("hardware", [&] { return catalog.find(q.hardware_name); });
  if (q.price_per_hour >= 0) q.hardware.price_per_hour = q.price_per_hour;
  if (q.watts >= 0) q.hardware.watts = q.watts;
  if (q.between_bandwidth > 0) q.hardware.between.bandwidth = q.between_bandwidth;
  if (!q.hardware.bf16 && !laid_out) q.layout = parse_state_layout("fp16");
  check_compression(q);
  if (q.params > 0 && q.lora_rank > 0) {
    throw UsageError(Flag("lora-rank"),
                     "cannot be combined with --params; needs a --model, whose "
                     "linears are known");
  }
  if (q.params > 0) return q;
  if (shaped && !named) {
    q.model.vocab = 50257;
    q.model.positions = 1;  // grows with the sequence
    if (q.seq == 0) q.seq = 1024;
  } else {
    q.model = about("model", [&] { return catalog.model(q.model_name); });
  }
  apply_sizes(q.model, q);
  if (q.lora_rank > 0 && !q.software) q.software = Software::tessera;
  if (q.lora_rank > 0 && q.software != Software::tessera) {
    throw UsageError(Flag("lora-rank"), str("got --software ", name(*q.software),
                                            "; must be tessera, whose adapters are known"));
  }
  q.model.lora = {q.lora_rank, q.lora_alpha, q.lora_targets};
  return q;
}

std::int64_t sequence_of(const RunConfig& q) {
  if (q.seq != 0) return q.seq;
  constexpr std::int64_t kUsual = 4096;
  const std::int64_t most = q.model.context > 0 ? std::min(kUsual, q.model.context) : kUsual;
  return q.model.positions > 0 ? q.model.positions : most;
}

RunConfig resolve(RunConfig q) {
  resolve_in_place(q);
  return q;
}

void resolve_in_place(RunConfig& q) {
  resolve_optimizer_state(q);
  // A plan needs no folder.
  parse_offload(q.offload, q.offloads_optimizer() ? "-" : "");
  q.attention = attention_of(q);
  if (!q.hardware.bf16 && q.layout.name.starts_with("bf16")) {
    throw UsageError(Flag("layout"),
                     str("got ", q.layout.name, ", but ", q.hardware.name,
                         " has no bf16; must be fp16, fp32 or bytes such as 2,2,12"));
  }
  // Runs without --hardware have no rates.
  if (q.hardware.peak_fp32 > 0) {
    const bool fp32 = q.layout.param >= 4;
    q.hardware = with_precision(std::move(q.hardware),
                                fp32 ? q.matmul_precision : MatmulPrecision::highest, q.precision);
  }
  resolve_mesh(q);
  resolve_order(q);
  resolve_software(q);
  check_precision(q);
  resolve_model(q);
  resolve_experts(q);
  sharding_of_stage(q.zero);
  in_range("bucket-size", q.bucket_bytes, 0, 1'000'000'000'000'000);
  resolve_batch(q);
  resolve_schedule(q);
  resolve_cuts(q);
  check_countable(q);
}

int stage_of(const RunConfig& q, int rank, int chunk) {
  // A V goes down the ranks and comes back up; otherwise stages go round.
  if (q.schedule == ScheduleChoice::zb_v && chunk == 1) return 2 * q.pp() - 1 - rank;
  return chunk * q.pp() + rank;
}

std::vector<std::vector<StageLayers>> chunk_layers(const RunConfig& q) {
  const std::vector<int> layers = layers_of_stages(q.model, q.stages(), q.split);
  std::vector<std::vector<StageLayers>> shares(static_cast<std::size_t>(q.pp()));
  std::vector<std::int64_t> first = {0};  // layer of each stage
  for (const int count : layers) first.push_back(first.back() + count);
  for (int r = 0; r < q.pp(); ++r) {
    for (int c = 0; c < q.chunks; ++c) {
      const auto stage = static_cast<std::size_t>(stage_of(q, r, c));
      shares[static_cast<std::size_t>(r)].push_back(stage_layers(
          q.model, first[stage], layers[stage], stage == 0, stage + 1 == layers.size()));
    }
  }
  return shares;
}

StageLayers stage_layers(const ModelShape& model, std::int64_t first, std::int64_t layers,
                         bool embedding, bool head) {
  StageLayers stage{layers, embedding, head};
  if (!model.experts.any()) return stage;
  stage.dense = std::clamp<std::int64_t>(model.experts.dense_layers - first, 0, layers);
  return stage;
}

}  // namespace tessera::planner
