// Imports flags of Megatron-LM. Notes that depend on one flag are in the table; settings, and notes
// that depend on several flags, are here. Megatron's defaults are written if Tessera's differ.

#include <algorithm>

#include "tessera/cli/import.h"
#include "tessera/cli/import_megatron_experts.h"
#include "tessera/cli/import_megatron_words.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::cli {
namespace {

class Megatron {
 public:
  Megatron(const std::vector<std::string>& words, int ranks) : words_(words, out_), ranks_(ranks) {}

  Imported import() {
    mesh();
    batch();
    model();
    zero();
    types();
    recompute();
    optimizer();
    rest();
    return std::move(out_);
  }

 private:
  void take(const char* flag, const char* setting) {
    if (words_.has(flag)) out_.set(setting, words_.word(flag), flag);
  }
  void take(const char* flag, const char* setting, const char* otherwise) {
    if (words_.has(flag)) return take(flag, setting);
    out_.set(setting, otherwise, str(flag, ", Megatron's default"));
  }

  void mesh() {
    const char* const tensor = "--tensor-model-parallel-size";
    const char* const pipeline = "--pipeline-model-parallel-size";
    const char* const context = "--context-parallel-size";
    tp_ = std::max<std::int64_t>(1, words_.size(tensor));
    pp_ = std::max<std::int64_t>(1, words_.size(pipeline));
    const std::int64_t cp = std::max<std::int64_t>(1, words_.size(context));
    take(tensor, "tp");
    take(pipeline, "pp");
    take(context, "cp");
    context_kind();
    const std::int64_t ep = expert_mesh();
    if (words_.has("--sequence-parallel")) {
      out_.set("sequence-parallel", "true", "--sequence-parallel");
    }
    if (words_.has("--tp-comm-overlap")) out_.set("overlap-tp", "true", "--tp-comm-overlap");
    const std::int64_t world = ranks_ > 0 ? ranks_ : words_.size("--world-size");
    if (world == 0) return;
    const std::string from = ranks_ > 0 ? "--ranks" : "--world-size";
    if (tp_ > world || pp_ > world || cp > world || world % (tp_ * pp_ * cp) != 0) {
      throw UsageError(str(from, ": got ", world, "; must be a multiple of ", tensor, " ", tp_,
                           " × ", pipeline, " ", pp_, cp > 1 ? str(" × ", context, " ", cp) : ""));
    }
    replicas_ = world / (tp_ * pp_ * cp);
    out_.set("dp", str(replicas_), from);
    if (replicas_ * cp % ep != 0) {
      throw UsageError(str("--expert-model-parallel-size: got ", ep, "; must divide the ",
                           replicas_ * cp, " ranks that ", tensor, " and ", pipeline, " leave of ",
                           from, " ", world));
    }
  }

  // Returns the number of expert-parallel ranks.
  std::int64_t expert_mesh() {
    take("--expert-model-parallel-size", "ep");
    const char* const tensor = "--expert-tensor-parallel-size";
    if (const std::int64_t own = words_.size(tensor); own > 0 && own != tp_) {
      out_.note(tensor, Fate::missing,
                str(own, ": experts are cut over --tp ", tp_, ", as the other layers"));
    }
    return std::max<std::int64_t>(1, words_.size("--expert-model-parallel-size"));
  }

  void context_kind() {
    const char* const flag = "--cp-comm-type";
    if (!words_.has(flag)) return;
    const std::string kind(words_.word(flag));
    if (kind != "p2p" && kind != "a2a") {
      throw UsageError(str(flag, ": got ", quote(kind), "; must be p2p (--cp-kind ring) or a2a ",
                           "(--cp-kind ulysses)"));
    }
    out_.set("cp-kind", kind == "p2p" ? "ring" : "ulysses", flag);
  }

  void chunks() {
    const char* const layers = "--num-layers-per-virtual-pipeline-stage";
    const char* const stages = "--num-virtual-stages-per-pipeline-rank";
    std::int64_t count = words_.size(stages);
    const char* from = stages;
    if (const std::int64_t of_chunk = words_.size(layers); of_chunk > 0) {
      const std::int64_t all = words_.size("--num-layers");
      if (all == 0 || all % pp_ != 0 || (all / pp_) % of_chunk != 0) {
        throw UsageError(str(layers, ": got ", of_chunk, "; must divide --num-layers ", all,
                             " over ", pp_, " pipeline ranks"));
      }
      count = all / pp_ / of_chunk;
      from = layers;
    }
    if (count <= 1) return;
    out_.set("schedule", "interleaved", from);
    out_.set("chunks", str(count), from);
  }

  void batch() {
    BatchSizes sizes;
    sizes.global_key = "--global-batch-size";
    sizes.micro_key = "--micro-batch-size";
    sizes.global = words_.size(sizes.global_key);
    sizes.micro = words_.size(sizes.micro_key);
    sizes.replicas = replicas_;
    set_batch(out_, sizes);
    take("--seq-length", "seq");
    take("--train-iters", "steps");
    if (const std::int64_t samples = words_.size("--train-samples"); samples > 0) {
      if (sizes.global == 0) {
        throw UsageError(Flag("train-samples"),
                         str("got ", samples,
                             " without --global-batch-size, so the number of steps is unknown"));
      }
      out_.set("steps", str(std::max<std::int64_t>(1, samples / sizes.global)), "--train-samples");
    }
  }

  // Returns the model that Megatron's flags describe.
  ModelShape shape() const {
    ModelShape shape;
    shape.layers = words_.size("--num-layers");
    shape.hidden = words_.size("--hidden-size");
    shape.heads = words_.size("--num-attention-heads");
    shape.kv_heads = shape.heads;
    if (words_.has("--group-query-attention")) {
      shape.kv_heads = std::max<std::int64_t>(1, words_.size("--num-query-groups"));
    }
    shape.swiglu = words_.has("--swiglu");
    shape.ffn = words_.size("--ffn-hidden-size");
    if (shape.ffn == 0) {  // as Megatron does
      shape.ffn = shape.swiglu ? 4 * shape.hidden * 2 / 3 / 64 * 64 : 4 * shape.hidden;
    }
    shape.head_width = words_.size("--kv-channels");
    if (shape.head_width * shape.heads == shape.hidden) shape.head_width = 0;
    shape.vocab = words_.size("--vocab-size");
    const bool rotary = words_.has("--use-rotary-position-embeddings") ||
                        words_.word("--position-embedding-type") == "rope";
    shape.positions = rotary ? 0 : words_.size("--max-position-embeddings");
    shape.context = rotary ? words_.size("--max-position-embeddings") : 0;
    shape.rotary_base = words_.real("--rotary-base", 1e4);
    shape.norm_eps = words_.real("--norm-epsilon", 1e-5);
    const bool linear = !words_.has("--disable-bias-linear");
    shape.biases = Biases(linear || words_.has("--add-qkv-bias"), linear, linear,
                          words_.word("--normalization") != "RMSNorm");
    shape.tied = !words_.has("--untie-embeddings-and-output-weights");
    shape.qk_norm = words_.has("--qk-layernorm") && !shape.biases.norm;
    shape.init_range = words_.real("--init-method-std", 0.02);
    return shape;
  }

  void model() {
    const char* const kinds = "--position-embedding-type";
    const std::string kind = words_.word(kinds);
    if (!kind.empty() && kind != "learned_absolute" && kind != "rope") {
      out_.note(kinds, Fate::missing, quote(kind) + ": must be learned_absolute or rope");
    }
    const std::string norm = words_.word("--normalization");
    if (!norm.empty() && norm != "LayerNorm" && norm != "RMSNorm") {
      throw UsageError(Flag("normalization"),
                       str("got ", quote(norm), "; must be LayerNorm or RMSNorm"));
    }
    if (words_.has("--qk-layernorm") && norm != "RMSNorm") {
      out_.note("--qk-layernorm", Fate::missing,
                "norms of queries and keys are RMSNorm (--normalization RMSNorm)");
    }
    take("--make-vocab-size-divisible-by", "pad-vocab", "128");
    take("--hidden-dropout", "dropout", "0.1");
    take("--attention-dropout", "attention-dropout", "0.1");
    chunks();
    ModelShape target = shape();
    target.experts = megatron_experts(words_, target.layers, target.ffn, out_);
    set_expert_training(words_, out_);
    if (target.layers == 0 && target.hidden == 0 && target.heads == 0) {
      if (target.experts.any()) set_expert_sizes(words_, target.experts, out_);
      out_.note("--num-layers, --hidden-size, --num-attention-heads", Fate::open,
                "not set: give --model");
      return;
    }
    if (target.layers == 0 || target.hidden == 0 || target.heads == 0) {
      throw UsageError(str("--num-layers ", target.layers, " --hidden-size ", target.hidden,
                           " --num-attention-heads ", target.heads,
                           ": give all three, or none of them and --model later"),
                       "num-layers");
    }
    if (target.hidden > 1'000'000 || target.heads > 100'000 || target.layers > 100'000) {
      throw UsageError(
          "--num-layers, --hidden-size, --num-attention-heads: must be at most 100000, 1000000 and "
          "100000");
    }
    if (take_name(target)) return;
    if (target.experts.any() && settings_describe(target.experts)) {
      // Other settings describe the model without them.
      set_expert_sizes(words_, target.experts, out_);
      target.experts = {};
      if (take_name(target)) return;
    }
    const bool plain = !target.rotary() && !target.swiglu && target.biases == Biases(true) &&
                       target.tied && target.kv_heads == target.heads && target.head_width == 0 &&
                       target.ffn == 4 * target.hidden && !target.experts.any();
    if (plain) return sizes();
    if (target.vocab == 0) {
      out_.note("--vocab-size", Fate::open, "left to the tokenizer; give it for --model-out");
      return;
    }
    out_.model = target;
  }

  // Sets --model if a known model has these sizes.
  bool take_name(const ModelShape& target) {
    if (!target.rotary()) return false;  // sizes() describes those
    for (const ModelShape& known : model_shapes()) {
      if (!same(known, target)) continue;
      out_.set("model", known.name, "the sizes of the model");
      return true;
    }
    return false;
  }

  static bool same(const ModelShape& known, const ModelShape& target) {
    Experts experts = known.experts;  // without settings of training
    experts.balance_loss = experts.z_loss = experts.jitter = experts.capacity = experts.bias_rate =
        0;
    return experts == target.experts && known.qk_norm == target.qk_norm &&
           known.layers == target.layers && known.hidden == target.hidden &&
           known.heads == target.heads && known.kv_heads == target.kv_heads &&
           known.ffn == target.ffn && known.swiglu == target.swiglu &&
           known.biases == target.biases && known.tied == target.tied &&
           known.rotary() == target.rotary() && known.rotary_base == target.rotary_base &&
           known.rotary_scaling.kind == RotaryScaling::Kind::none &&
           known.norm_eps == target.norm_eps && known.window == 0 &&
           (target.vocab == 0 || known.vocab == target.vocab);
  }

  void sizes() {
    take("--num-layers", "layers");
    take("--hidden-size", "hidden");
    take("--num-attention-heads", "heads");
    take("--max-position-embeddings", "positions");
    if (words_.has("--vocab-size")) {
      take("--vocab-size", "vocab");
    } else if (words_.word("--tokenizer-type") == "GPT2BPETokenizer") {
      out_.set("vocab", "50257", "--tokenizer-type");
    } else {
      out_.note("--vocab-size", Fate::open, "left to the tokenizer: give --vocab");
    }
  }

  void zero() {
    const char* const strategy = "--data-parallel-sharding-strategy";
    const bool fsdp = words_.has("--use-megatron-fsdp") || words_.has("--use-custom-fsdp");
    if (words_.has("--use-torch-fsdp2")) {
      out_.set("zero", "3", "--use-torch-fsdp2");
    } else if (fsdp || words_.has(strategy)) {
      const std::vector<std::string> names = {"no_shard", "optim", "optim_grads",
                                              "optim_grads_params"};
      const std::string name = words_.has(strategy) ? words_.word(strategy) : names.front();
      const auto at = std::find(names.begin(), names.end(), name);
      if (at == names.end()) {
        throw UsageError(
            str(strategy, ": got ", quote(name), "; must be one of ", join(names, ", ")));
      }
      out_.set("zero", str(at - names.begin()), strategy);
    } else if (words_.has("--use-distributed-optimizer")) {
      out_.set("zero", "1", "--use-distributed-optimizer");
      out_.note("--use-distributed-optimizer", Fate::changed,
                "stage 1 in memory, though often called ZeRO-2: gradients are not sharded");
    } else {
      out_.set("zero", "0", "no --use-distributed-optimizer");
    }
    if (words_.size("--num-distributed-optimizer-instances") > 1) {
      take("--num-distributed-optimizer-instances", "dp-replicate");
    }
    for (const char* name : {"overlap-grad-reduce", "overlap-param-gather"}) {
      const std::string flag = str("--", name);
      out_.set(name, words_.has(flag) ? "true" : "false",
               words_.has(flag) ? flag : str(flag, " is off unless given"));
    }
  }

  void types() {
    const bool brain = words_.has("--bf16"), half = words_.has("--fp16");
    if (brain && half) throw UsageError("--bf16 and --fp16: got both; use only one");
    const bool narrow = words_.has("--grad-reduce-in-bf16");
    if (brain) {
      out_.set("layout", narrow ? "bf16" : "bf16-fp32grad",
               narrow ? "--grad-reduce-in-bf16" : "--bf16: Megatron keeps fp32 gradients");
    } else {
      out_.set("layout", half ? "fp16" : "fp32", half ? "--fp16" : "neither --bf16 nor --fp16");
      if (half && words_.has("--accumulate-allreduce-grads-in-fp32")) {
        out_.note("--accumulate-allreduce-grads-in-fp32", Fate::missing, "fp16 has fp16 gradients");
      }
    }
    if (words_.has("--fp8-format")) out_.set("precision", "fp8", "--fp8-format");
    if (const std::int64_t elements = words_.size("--ddp-bucket-size"); elements > 0) {
      const std::int64_t bytes = (brain && narrow) || half ? 2 : 4;
      out_.set("bucket-size", str(std::min(kLargestBucket, elements) * bytes), "--ddp-bucket-size");
    }
  }

  void recompute() {
    const char* const how = "--recompute-granularity";
    if (words_.has(how)) {
      take(how, "recompute");
    } else if (words_.has("--recompute-activations")) {
      out_.set("recompute", "selective", "--recompute-activations");
    } else if (words_.has("--checkpoint-activations")) {
      out_.set("recompute", "full", "--checkpoint-activations");
    }
  }

  void optimizer() {
    std::string rule = words_.has("--optimizer") ? words_.word("--optimizer") : "adam";
    if (rule == "adam") rule = "adamw";
    if (rule != "adamw" && rule != "sgd" && rule != "lion" && rule != "muon") {
      out_.note("--optimizer", Fate::missing,
                str(quote(rule), ": must be adam, sgd, lion or muon; adam is used"));
      rule = "adamw";
    }
    out_.set("optimizer", rule, "--optimizer");
    take("--adam-beta1", "beta1");
    take("--adam-beta2", "beta2", "0.999");
    take("--adam-eps", "eps");
    take("--sgd-momentum", "momentum");
    take("--weight-decay", "weight-decay");
    take("--clip-grad", "clip");
    schedule();
  }

  void schedule() {
    take("--lr", "lr");
    const double highest = words_.real("--lr", 0), least = words_.real("--min-lr", 0);
    if (words_.has("--lr")) {
      if (!(highest > 0 && least >= 0 && least <= highest)) {
        throw UsageError(str("--lr ", words_.word("--lr"), " --min-lr ", least,
                             ": must be 0 <= --min-lr <= --lr, and --lr greater than 0"),
                         "lr");
      }
      out_.set("min-lr-ratio", least / highest, "--min-lr over --lr");
    } else {
      out_.note("--lr", Fate::open, "not set: give --lr");
    }
    std::string style = words_.has("--lr-decay-style") ? words_.word("--lr-decay-style") : "linear";
    if (style == "WSD") style = "wsd";
    if (style != "constant" && style != "linear" && style != "cosine" && style != "wsd") {
      out_.note("--lr-decay-style", Fate::missing,
                str(quote(style), ": must be constant, linear, cosine or WSD; cosine is used"));
      style = "cosine";
    }
    out_.set("lr-schedule", style, "--lr-decay-style");
    const std::int64_t steps = out_.settings().steps;
    const std::int64_t decay = words_.size("--lr-decay-iters");
    if (decay > 0 && decay != steps) {
      out_.note("--lr-decay-iters", Fate::changed,
                str("the rate falls until the last step", steps > 0 ? str(", ", steps) : "",
                    ", not until ", decay));
    }
    if (words_.has("--lr-warmup-fraction") && steps > 0) {
      const double share = std::clamp(words_.real("--lr-warmup-fraction", 0), 0.0, 1.0);
      const auto all = static_cast<double>(decay > 0 ? decay : steps);
      out_.set("warmup", str(static_cast<std::int64_t>(share * all)), "--lr-warmup-fraction");
    } else {
      take("--lr-warmup-iters", "warmup", "0");
    }
    if (const std::int64_t last = words_.size("--lr-wsd-decay-iters"); last > 0 && steps > 0) {
      out_.set("decay-share", std::min(1.0, static_cast<double>(last) / static_cast<double>(steps)),
               "--lr-wsd-decay-iters");
    }
  }

  void rest() {
    take("--seed", "seed", "1234");
    take("--save", "save");
    take("--save-interval", "save-every");
    if (words_.has("--load")) {
      if (words_.word("--load") == words_.word("--save")) {
        out_.set("resume", "auto", "--load is --save");
      } else {
        out_.note("--load", Fate::missing,
                  "Megatron's checkpoints are not read; --init-from takes Hugging Face folders");
      }
    }
    if (words_.has("--async-save")) out_.set("async-save", "true", "--async-save");
    take("--eval-interval", "eval-every");
    take("--eval-iters", "eval-batches");
    take("--tensorboard-dir", "tensorboard");
    const bool apart = words_.has("--reset-attention-mask");
    if (apart) out_.set("documents", "separate", "--reset-attention-mask");
    if (words_.has("--reset-position-ids")) {
      out_.note("--reset-position-ids", apart ? Fate::not_needed : Fate::missing,
                apart ? "--documents separate" : "--documents separate also restricts attention");
    }
    if (const std::string backend = words_.word("--distributed-backend"); backend == "nccl") {
      out_.set("backend", "nccl", "--distributed-backend");
    } else if (!backend.empty()) {
      out_.note("--distributed-backend", Fate::changed, "--backend auto is used");
    }
  }

  Imported out_;
  MegatronWords words_;
  int ranks_;
  std::int64_t tp_ = 1, pp_ = 1, replicas_ = 0;
};

}  // namespace

Imported import_megatron(const std::vector<std::string>& words, int ranks) {
  return Megatron(words, ranks).import();
}

}  // namespace tessera::cli
