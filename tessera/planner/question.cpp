#include "tessera/planner/question.h"

#include <algorithm>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/planner/parameters.h"
#include "tessera/planner/places.h"
#include "tessera/schedule/schedule.h"

namespace tessera::planner {
namespace {

// Within these no product of sizes leaves 64 bits.
constexpr std::int64_t kMostDevices = 10'000'000, kMostSamples = 1'000'000'000,
                       kMostSeq = 100'000'000, kMostMicros = 65'536;
constexpr int kGpuVocabMultiple = 128;

void in_range(std::string_view flag, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value < least || value > most) {
    throw UsageError(str("--", flag, ": got ", value, ", wanted ", least, " to ", most));
  }
}

// Sizes as flags name them.
void check_sizes(const ModelShape& model) {
  try {
    check(model);
  } catch (const UsageError& error) {
    throw UsageError(str("--", error.what()));
  }
  check_lora(model);
}

void settle_model(Question& q) {
  if (q.state_only()) {
    if (!(q.params >= 1 && q.params <= 1e18)) {
      throw UsageError(str("--params: got ", q.params, ", wanted 1 to 1e18"));
    }
    if (q.model.layers != 0) {
      throw UsageError("--params: a model known by its size alone has no --model and no sizes");
    }
    in_range("seq", q.seq, 0, kMostSeq);  // 0: not known either
    return;
  }
  if (q.model.layers == 0 || q.model.hidden == 0 || q.model.heads == 0) {
    throw UsageError(str("--",
                         q.model.layers == 0   ? "layers"
                         : q.model.hidden == 0 ? "hidden"
                                               : "heads",
                         " is not given; wanted --layers, --hidden and --heads together, or a "
                         "--model that has what is left out"));
  }
  check_sizes(q.model);
  if (q.seq == 0) {
    constexpr std::int64_t kUsual = 4096;
    const std::int64_t most = q.model.context > 0 ? std::min(kUsual, q.model.context) : kUsual;
    q.seq = q.model.positions > 0 ? q.model.positions : most;
  }
  in_range("seq", q.seq, 1, kMostSeq);
  in_range("positions", q.model.positions, 0, kMostSeq);
  if (q.model.rotary() && q.model.longest() > 0 && q.seq > q.model.longest()) {
    throw UsageError(str("--seq: got ", q.seq, ", but ", longest_reason(q.model),
                         "; wanted at most ", q.model.longest()));
  }
  // A learned table of positions has a row for each of the sequence's.
  if (q.model.positions > 0) q.model.positions = std::max(q.model.positions, q.seq);
  in_range("vocab-multiple", q.vocab_multiple, 0, 1'000'000);
  if (q.vocab_multiple == 0) {
    q.vocab_multiple = q.software == Software::tessera && *q.gpu ? kGpuVocabMultiple : 1;
  }
  if (q.vocab_multiple > 1) {
    q.model.vocab = padded_vocab(q.model.vocab, std::int64_t{q.vocab_multiple} * q.tp());
  }
}

void settle_mesh(Question& q) {
  for (const Axis axis : kPrintedAxes) {
    const bool dp = axis == Axis::dp_shard;  // the only axis that may be left open
    in_range(axis_flag(axis).substr(2), q.axes.given(axis), dp ? 0 : 1, dp ? kMostDevices : 65'536);
  }
  in_range("gpus", q.gpus, 0, kMostDevices);
  in_range("nodes", q.nodes, 0, kMostDevices);
  in_range("gpus-per-node", q.per_node, 0, 65'536);
  if (q.per_node == 0) q.per_node = std::max(1, q.hardware.per_node);
  const std::int64_t cut = q.axes.model_ranks();
  if (q.dp() == 0) {
    // From the devices there are, if anything says how many.
    const std::int64_t all = q.gpus > 0 ? q.gpus : std::int64_t{q.nodes} * q.per_node;
    const char* const flag = q.gpus > 0 ? "gpus" : "nodes";
    if (all > 0 && all % cut != 0) {
      throw UsageError(str("--", flag, ": tp ", q.tp(), " · pp ", q.pp(), " = ", cut,
                           " does not divide ", all, " GPUs; change one of them, or give --dp"));
    }
    in_range("gpus", all, 0, kMostDevices);
    q.axes.set_dp(all > 0 ? static_cast<int>(all / cut) : q.replicas());
  }
  q.axes.check_replicas();
  check_replicas_at(q.zero, q.axes);
  const std::int64_t world = q.axes.world();
  in_range("dp · tp · pp", world, 1, kMostDevices);
  if (q.gpus > 0 && q.gpus != world) {
    throw UsageError(str("--gpus: got ", q.gpus, ", but ", q.axes.words(" · "), " = ", world,
                         "; leave one of them out"));
  }
  q.gpus = static_cast<int>(world);
  const std::int64_t filled = (world + q.per_node - 1) / q.per_node;
  if (q.nodes == 0) q.nodes = static_cast<int>(filled);
  if (q.nodes > filled && world % q.nodes != 0) {
    throw UsageError(str(
        "--nodes: got ", q.nodes, ", over which ", world,
        " GPUs do not divide; wanted a number that divides them, or leave it out: ", "they fill ",
        filled, filled == 1 ? " node of " : " nodes of ", q.per_node));
  }
  if (std::int64_t{q.nodes} * q.per_node < world) {
    throw UsageError(str("--nodes: ", q.nodes, " nodes of ", q.per_node, " GPUs are fewer than ",
                         q.axes.words(" · "), " = ", world));
  }
}

void settle_order(Question& q) {
  try {
    axis_order(q);
  } catch (const UsageError& error) {
    throw UsageError(str("--order: ", error.what()));
  }
}

void settle_batch(Question& q) {
  in_range("micro-batch", q.micro_batch, 0, kMostSamples);
  in_range("grad-accum", q.grad_accum, 0, kMostSamples);
  in_range("global-batch", q.global_batch, 0, kMostSamples);
  if (q.micro_batch == 0) {
    const std::int64_t parts = q.dp() * q.grad_accum;
    const bool both = parts > 0 && q.global_batch > 0 && q.global_batch % parts == 0;
    q.micro_batch = both ? q.global_batch / parts : 1;
  }
  const std::int64_t at_once = q.micro_batch * q.dp();
  if (q.global_batch == 0) {
    q.grad_accum = std::max<std::int64_t>(1, q.grad_accum);
    if (at_once > kMostSamples / q.grad_accum) {
      throw UsageError(str("--global-batch: micro-batch ", q.micro_batch, " · dp ", q.dp(),
                           " · grad-accum ", q.grad_accum, " is more than ", kMostSamples));
    }
    q.global_batch = at_once * q.grad_accum;
  }
  if (q.global_batch % at_once != 0) {
    throw UsageError(str("--global-batch: got ", q.global_batch, ", which micro-batch ",
                         q.micro_batch, " · dp ", q.dp(), " = ", at_once,
                         " does not divide; the nearest that it does are ",
                         std::max<std::int64_t>(1, q.global_batch / at_once) * at_once, " and ",
                         (q.global_batch / at_once + 1) * at_once));
  }
  const std::int64_t micros = q.global_batch / at_once;
  if (q.grad_accum != 0 && q.grad_accum != micros) {
    throw UsageError(str("--grad-accum: got ", q.grad_accum, ", but global-batch ", q.global_batch,
                         " = micro-batch ", q.micro_batch, " · dp ", q.dp(), " · ", micros,
                         "; leave one of them out"));
  }
  q.grad_accum = micros;
}

void settle_schedule(Question& q) {
  const std::vector<std::string>& known = schedule::names();
  if (std::find(known.begin(), known.end(), q.schedule) == known.end()) {
    throw UsageError(str("--schedule: got ", quote(q.schedule), ", wanted ", join(known, ", "),
                         did_you_mean(q.schedule, known)));
  }
  in_range("chunks", q.chunks, 0, 1024);
  // 1F1B with several chunks on a rank is what "interleaved" means.
  if (q.schedule == "1f1b" && q.chunks > 1) q.schedule = "interleaved";
  if (q.chunks == 0) q.chunks = q.schedule == "interleaved" || q.schedule == "zb-v" ? 2 : 1;
  if (q.schedule == "zb-v" && q.chunks != 2) {
    throw UsageError(str("--chunks: got ", q.chunks, ", but zb-v has 2 on every rank"));
  }
  if ((q.schedule == "gpipe" || q.schedule == "zb-h1") && q.chunks != 1) {
    throw UsageError(str("--chunks: got ", q.chunks, ", but ", q.schedule,
                         " has one on every rank; --schedule interleaved takes more"));
  }
  if (q.pp() == 1) return;
  in_range("grad-accum", q.micros(), 1, kMostMicros);
  if (q.schedule == "interleaved" && q.micros() < q.pp()) {
    throw UsageError(str("--schedule: interleaved needs as many micro-batches as pp, and has ",
                         q.micros(), " for pp ", q.pp(),
                         "; raise --global-batch, lower --micro-batch, or take 1f1b"));
  }
}

void check_cuts(const Question& q) {
  if (q.state_only()) return;
  // Whose sizes they are: the model may be one that nobody asked for.
  const std::string whose = q.model.name.empty() ? "" : str(" of --model ", q.model.name);
  if (q.model.heads % q.tp() != 0) {
    throw UsageError(str("--tp: got ", q.tp(), ", which does not divide ", q.model.heads, " heads",
                         whose, "; wanted a divisor of them"));
  }
  if (q.model.kv_heads % q.tp() != 0 && q.tp() % q.model.kv_heads != 0) {
    throw UsageError(str("--tp: got ", q.tp(), ", which ", q.model.kv_heads, " kv-heads", whose,
                         " neither divide nor are divided by"));
  }
  const std::int64_t stages = std::int64_t{q.pp()} * q.chunks;
  if (q.model.layers < stages) {
    throw UsageError(str("--layers: got ", q.model.layers, " for pp ", q.pp(), " · chunks ",
                         q.chunks, " = ", stages, " stages", whose,
                         "; each needs a layer: lower --pp or --chunks"));
  }
  layers_of_stages(q.model, static_cast<int>(stages), q.split);
}

void settle_software(Question& q) {
  const bool cpu = q.hardware.cpu;
  if (!q.gpu) q.gpu = !cpu;
  const Software whose = software_of(q);
  if (!q.state_only()) q.software = whose;
  q.hardware.run_by(name(whose));
  if (!q.slice_hops) q.slice_hops = whose == Software::megatron;
  const bool shares = cpu && q.nodes == 1 && q.shards() > 1;
  if (q.gather == Gather::alias && !shares && q.shards() > 1 && q.zero == 3) {
    throw UsageError(str("--gather: got alias, which needs ranks of one host that share memory; ",
                         q.hardware.name, " on ", q.nodes, q.nodes == 1 ? " node" : " nodes",
                         " has none: wanted copy"));
  }
  if (!q.gather || !shares) q.gather = shares ? Gather::alias : Gather::copy;
}

// Tessera's own runs are counted to the byte, in 64 bits; none comes near.
void check_countable(const Question& q) {
  if (q.software != Software::tessera || q.state_only()) return;
  in_range("pp", q.pp(), 1, 4096);
  const auto real = [](std::int64_t value) { return static_cast<double>(value); };
  const ModelShape& m = q.model;
  const double widest = 16 * real(m.hidden) + 4 * real(m.ffn) + real(m.vocab);
  const double activations = real(q.micro_batch) * real(q.seq) * widest * real(m.layers + 2) *
                             real(q.micros()) * q.chunks * 8;
  const double padding = 16.0 * q.shards() * 16 * real(m.layers + 2);
  const double state = (real(m.params()) + padding) * (q.layout.total() + 8) * 4;
  if (activations > 4e18 || state > 4e18) {
    throw UsageError(str("--software: got tessera for ",
                         activations > 4e18 ? "activations" : "a model",
                         " beyond what it counts (4e18 bytes); wanted a smaller one, or megatron"));
  }
}

}  // namespace

std::string_view name(Software software) {
  switch (software) {
    case Software::tessera: return "tessera";
    case Software::pytorch: return "pytorch";
    default: return "megatron";
  }
}

std::string_view title(Software software) {
  switch (software) {
    case Software::tessera: return "Tessera";
    case Software::pytorch: return "PyTorch";
    default: return "Megatron-LM";
  }
}

Software parse_software(std::string_view text) {
  for (const Software each : {Software::megatron, Software::tessera, Software::pytorch}) {
    if (text == name(each)) return each;
  }
  throw UsageError(str("--software: got ", quote(text), ", wanted megatron, pytorch or tessera",
                       did_you_mean(text, {"megatron", "pytorch", "tessera"})));
}

Software software_of(const Question& q) {
  if (q.software) return *q.software;
  if (q.hardware.cpu) return Software::tessera;
  return parse_software(q.hardware.software.empty() ? "megatron" : q.hardware.software);
}

Attention attention_of(const Question& q) {
  const bool has = q.hardware.fused_attention;
  if (q.attention == Attention::fused && !has) {
    throw UsageError(str("--attention: got fused, which ", q.hardware.name,
                         " does not have; wanted unfused, or leave it out"));
  }
  return q.attention.value_or(has ? Attention::fused : Attention::unfused);
}

void check_replicas_at(int stage, const Axes& axes) {
  const int replicas = axes.size(Axis::dp_replicate);
  if (stage > 0 || replicas <= 1) return;
  throw UsageError(str(axis_flag(Axis::dp_replicate), " ", replicas,
                       ": needs --zero 1, 2 or 3, which shard state; at stage 0 every rank holds "
                       "all of it"));
}

Question settle(Question q) {
  q.attention = attention_of(q);
  if (!q.hardware.bf16 && q.layout.name.starts_with("bf16")) {
    throw UsageError(str("--layout: got ", q.layout.name, ", but ", q.hardware.name,
                         " has no bf16; wanted fp16, fp32 or bytes such as 2,2,12"));
  }
  settle_mesh(q);
  settle_order(q);
  settle_software(q);
  settle_model(q);
  sharding_of_stage(q.zero);
  if (!(q.bucket_bytes >= 0 && q.bucket_bytes < 1e15)) {
    throw UsageError(str("--bucket-size: got ", q.bucket_bytes,
                         " bytes, wanted some, or 0 for what suits the model"));
  }
  settle_batch(q);
  settle_schedule(q);
  check_cuts(q);
  check_countable(q);
  return q;
}

int stage_of(const Question& q, int rank, int chunk) {
  // A V goes down the ranks and comes back up; otherwise stages go round.
  if (q.schedule == "zb-v" && chunk == 1) return 2 * q.pp() - 1 - rank;
  return chunk * q.pp() + rank;
}

std::vector<std::vector<StageShare>> stage_shares(const Question& q) {
  const std::vector<int> layers = layers_of_stages(q.model, q.pp() * q.chunks, q.split);
  std::vector<std::vector<StageShare>> shares(static_cast<std::size_t>(q.pp()));
  for (int r = 0; r < q.pp(); ++r) {
    for (int c = 0; c < q.chunks; ++c) {
      const auto stage = static_cast<std::size_t>(stage_of(q, r, c));
      shares[static_cast<std::size_t>(r)].push_back(
          {layers[stage], stage == 0, stage + 1 == layers.size()});
    }
  }
  return shares;
}

}  // namespace tessera::planner
