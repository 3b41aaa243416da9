#include <algorithm>
#include <cmath>

#include "tessera/core/most_ranks.h"
#include "tessera/core/text.h"
#include "tessera/planner/field_rows.h"

namespace tessera::planner {
namespace {

using S = RunConfig;

const char* axis_purpose(Axis axis) {
  switch (axis) {
    case Axis::tp: return "tensor parallelism: number of ranks that shard each matrix";
    case Axis::cp:
      return "context parallelism: number of ranks that shard the tokens of each sequence";
    case Axis::ep:
      return "expert parallelism: number of ranks that shard the experts of a layer; it divides "
             "the ranks that shard state";
    case Axis::dp_shard:
      return "data parallelism: number of ranks that train on different data; if omitted, the "
             "number of ranks divided by the other axes";
    case Axis::dp_replicate:
      return "hybrid sharding: number of groups of the --dp ranks; --zero shards inside a group, "
             "and gradients are averaged over the groups";
    case Axis::pp: return "pipeline parallelism: number of ranks that divide the layers";
  }
  return "";
}

void add_model(Table& t) {
  t.group("Model");
  t.add("model", &S::model_name,
        "gpt-tiny, llama-tiny, gpt2-124m … gpt2-xl, another name that tessera plan --list-models "
        "prints, or a Hugging Face folder with a config.json")
      .type("NAME")
      .plan("gpt2-xl");
  t.add("init-from", &S::init_from,
        "folder whose parameters training starts from: a Hugging Face folder, a checkpoint or a "
        "run; it also determines --model")
      .type("DIR")
      .train();
  t.add("layers", &S::layers,
        "number of blocks; this and the following sizes replace those of --model")
      .range(0, 1e5);
  t.add("hidden", &S::hidden, "width of the residual stream; if omitted, that of the model")
      .range(0, 1e6);
  t.add("heads", &S::heads, "number of attention heads; if omitted, that of the model")
      .range(0, 1e5);
  t.add("kv-heads", &S::kv_heads,
        "number of key and value heads, for grouped-query attention; if omitted, that of the model")
      .range(0, 1e5)
      .plan("heads");
  t.add("ffn", &S::ffn, "inner width of the MLP; if omitted, that of the model")
      .range(0, 1e7)
      .plan("4·hidden");
  t.add("vocab", &S::vocab, "size of the vocabulary; if omitted, that of the model")
      .range(0, 1e8)
      .plan("50257");
  t.add("positions", &S::positions, "longest sequence; if omitted, that of the model")
      .range(0, 1e7)
      .train();
  t.add("pad-vocab", &S::vocab_multiple,
        "round the vocabulary rows of each rank up to a multiple of this, as Megatron-LM does with "
        "128; if omitted, 128 on a GPU, 1 on the CPU and for Megatron-LM's layers")
      .range(0, 1e6)
      .plan("128 for Tessera on a GPU, otherwise 1");
  t.add("params", &S::params,
        "number of parameters of a model without a known shape, such as 13B: predicts memory of "
        "state, but no times")
      .type("COUNT")
      .plan_only();
}

void add_experts(Table& t) {
  t.group("Experts");
  t.add("experts", &S::experts,
        "number of experts of a layer; a router selects some of them for each token; if omitted, "
        "that of the model")
      .range(0, 1e5);
  t.add("experts-per-token", &S::experts_per_token,
        "number of experts selected for each token; if omitted, that of the model, or 2")
      .range(0, 1e5);
  t.add("expert-ffn", &S::expert_ffn,
        "inner width of one expert; if omitted, that of the model, or of its MLP")
      .range(0, 8e6);
  t.add("shared-expert-ffn", &S::shared_expert_ffn,
        "inner width of the shared expert, which processes every token; if omitted, that of the "
        "model")
      .range(0, 8e6);
  t.add("dense-layers", &S::dense_layers,
        "number of first layers that have an ordinary MLP instead of experts; -1: as in the model")
      .range(-1, 1e5)
      .bounded_in_plans();
  t.add("router-scores", &S::router_scores,
        "scores of the experts: softmax over all of them, or the sigmoid of each logit; auto: as "
        "in the model")
      .or_auto();
  t.add("balance-loss", &S::balance_loss,
        "factor of the loss that balances the load of the experts; auto: as in the model, or 0.01")
      .range(0, 1e6)
      .automatic();
  t.add("z-loss", &S::z_loss,
        "factor of the loss that keeps the router's logits small, such as 0.001; auto: as in the "
        "model, or 0")
      .range(0, 1e6)
      .automatic();
  t.add("balance-bias-rate", &S::balance_bias_rate,
        "change per step of the selection bias, which makes experts with few tokens more likely to "
        "be selected, such as 0.001; auto: as in the model, or 0 for no bias")
      .range(0, 1e6)
      .automatic();
  t.add("router-jitter", &S::router_jitter,
        "in training, the router's input is multiplied by random numbers between 1 - this and 1 + "
        "this; auto: as in the model, or 0")
      .range(0, 0.99)
      .automatic();
  t.add("expert-capacity", &S::expert_capacity,
        "tokens that an expert accepts, as a multiple of the mean; the rest are dropped. 0: no "
        "limit; auto: as in the model, or 0")
      .range(0, 1e6)
      .automatic();
  t.add("expert-imbalance", &S::expert_imbalance,
        "tokens received by the experts of the busiest rank, as a multiple of the mean: 1.1 to 1.3 "
        "with a balance loss, 2 or more early in training or without one")
      .range(1, 1e5)
      .plan_only("1");
}

void add_adapters(Table& t) {
  t.group("Adapters");
  t.add("lora-rank", &S::lora_rank,
        "rank of LoRA adapters; the model itself is frozen. 0: no adapters, train the model")
      .range(0, 65536)
      .bounded_in_plans();
  t.add("lora-alpha", &S::lora_alpha,
        "scale of the adapters: their output is multiplied by this, divided by the rank")
      .range(kAboveZero, 1e9)
      .train();
  t.add("lora-targets", &S::lora_targets,
        "linears that get an adapter: q, k, v, o, gate, up, down (GPT: qkv, o, fc, down) separated "
        "by commas, PEFT's names for them, all, or auto (q and v; GPT: qkv)")
      .type("NAMES");
  t.add("lora-dropout", &S::lora_dropout,
        "dropout rate of the adapters' inputs in training; -1: that of --lora-from, or 0")
      .range(-1, 0.99)
      .train();
  t.add("lora-from", &S::lora_from,
        "folder in the format of PEFT whose adapters training starts from; it also determines "
        "rank, alpha, targets and dropout")
      .type("DIR")
      .train();
}

void add_batch(Table& t) {
  t.group("Data");
  t.add(
       "data", &S::data,
       "synthetic (sorting digits), a text file (UTF-8, one token per byte), a folder that tessera "
       "data prepare wrote, a .bin of tokens, or several of them with weights: a=0.7,b=0.3")
      .train();
  t.add("val-data", &S::val_data, "validation data, in the same forms as --data").train();
  t.add("val-fraction", &S::val_fraction,
        "fraction of --data, at its end and in whole documents, that is used for validation and "
        "not for training")
      .range(0, 0.5)
      .train();
  t.add("order", &S::sample_order,
        "order of the samples: shuffled in every epoch, sequential, or windows at random "
        "positions; auto: random for a text file without --epochs, otherwise shuffled")
      .train();
  t.add("documents", &S::documents,
        "documents in one row: joined, or separate, so that no document attends to another")
      .train();
  t.add("pack", &S::pack,
        "packing of documents into rows: one after another until the row is full, or none: one "
        "document per row, padded or truncated")
      .train();
  t.add("epochs", &S::epochs, "number of epochs over --data; --steps limits it")
      .range(0, 1e9)
      .train();
  t.add(
       "last-batch", &S::last_batch,
       "incomplete last batch of the last epoch: drop it, or pad it with samples that have no loss")
      .train();
  t.add("data-ahead", &S::data_ahead, "number of steps whose data is prepared in advance")
      .range(0, 1000)
      .train();
  t.add("seed", &S::seed, "seed of initial values, order of the data and dropout")
      .range(0, kMany)
      .train();
  t.group("Batch");
  t.add("steps", &S::steps, "number of optimizer steps; if omitted, determined by --epochs, or 240")
      .range(0, kMany)
      .train();
  t.add("micro-batch", &S::micro_batch, "sequences that a rank processes at once")
      .range(1, 1e9)
      .plan("1");
  t.add("grad-accum", &S::grad_accum,
        "micro-batches per step on each rank; if omitted, determined by --global-batch, or 1")
      .range(0, 1e6)
      .plan("1");
  t.add("global-batch", &S::global_batch,
        "sequences per step on all ranks; if omitted, determined by --grad-accum")
      .range(0, 1e12)
      .plan("micro-batch · grad-accum · dp");
  t.add(
       "seq", &S::seq,
       "tokens per sequence; if omitted, the longest sequence of the model, in training at most 64")
      .range(0, 1e7)
      .plan("the model's");
  t.add("recompute", &S::recompute, "activations that backward recomputes instead of storing them")
      .formerly("checkpoint-activations")
      .plan("none");
  t.add("dropout", &S::dropout,
        "dropout rate of the embeddings and of the outputs that layers add to the residual stream")
      .range(0, 0.99)
      .train();
  t.add("attention-dropout", &S::attention_dropout, "dropout rate of the attention probabilities")
      .range(0, 0.99)
      .train();
  t.add("software", &S::software,
        "software of the run, which determines the stored activations and the speed")
      .plan_only("tessera for cpu and h200, otherwise megatron");
  t.add("attention", &S::attention, "kind of attention; unfused stores the matrix of scores")
      .plan_only("fused, if the hardware has it");
}

void add_parallelism(Table& t) {
  t.group("Parallelism");
  t.add("ranks", &S::ranks,
        "ranks to start on this machine; not with a launcher. If omitted, dp · cp · tp · pp, or 2")
      .range(0, kMaxRanks)
      .because(kMaxRanksWhy)
      .train();
  t.add("gpus", &S::gpus, "total number of devices; determines --dp")
      .plan_only("dp · cp · tp · pp");
  for (const Axis axis : kPrintedAxes) {
    const bool open = axis == Axis::dp_shard;
    t.add_axis(axis, axis_purpose(axis))
        .range(open ? 0 : 1, kMaxRanks)
        .because(kMaxRanksWhy)
        .plan(open ? "gpus / (cp · tp · pp)" : "1");
  }
  t.add("sequence-parallel", &S::sequence_parallel,
        "with --tp: also shard the sequence in the operations between matrix products")
      .plan("false");
  t.add("cp-kind", &S::cp_kind,
        "attention with --cp: ring passes keys and values from rank to rank, ulysses exchanges "
        "heads for tokens; auto: ulysses if --cp divides the heads, otherwise ring");
  t.add("overlap-tp", &S::overlap_tp,
        "with --tp: overlap matrix products with the communication along that axis")
      .train();
  t.add("axis-order", &S::order,
        "order of the axes on the devices, innermost first: the ranks of the first axis are "
        "adjacent")
      .type("AXES")
      .formerly("order")
      .plan_only(kUsualOrder.data());
  t.add("slice-hops", &S::slice_hops,
        "pipeline ranks send 1/tp of the activations, which the receiver gathers, as Megatron-LM "
        "does")
      .plan_only("chosen by --software");
  t.add("schedule", &S::schedule, "pipeline schedule").plan("1f1b");
  t.add("split", &S::split,
        "layers per pipeline stage: even, work (balances computation), or a list such as 3,3,2")
      .type("HOW")
      .plan("even");
  t.add("chunks", &S::chunks, "stages per pipeline rank with --schedule interleaved; if omitted, 2")
      .range(0, 1024)
      .plan("1; interleaved: 2");
}

std::vector<std::string> layout_names() {
  std::vector<std::string> names;
  for (const StateLayout& layout : state_layouts()) names.push_back(layout.name);
  return names;
}

// The rest of the group: data parallelism.
void add_sharding(Table& t) {
  t.add("zero", &S::zero,
        "ZeRO stage: 0 shards nothing (DDP), 1 the optimizer state, 2 also the gradients, 3 also "
        "the parameters")
      .range(0, 3)
      .bounded_in_plans()
      .type("STAGE")
      .plan("0");
  t.add("layout", &S::layout,
        "types of parameters, gradients and optimizer state: bf16, bf16-fp32grad, bf16-nomaster, "
        "fp16 (GPUs), fp32; a plan also accepts bytes per parameter such as 2,6,12")
      .words(layout_names())
      .type("NAME")
      .free_in_plans()
      .plan("bf16, or fp16 if the hardware has no bf16");
  t.add(
       "optimizer-state", &S::optimizer_state,
       "format of AdamW's moments: fp32; bf16, rounded stochastically; int8, the same in blocks of "
       "16 with one exponent")
      .plan("fp32");
  t.add("offload", &S::offload,
        "state in files instead of memory, on the CPU: optimizer, its master copies and moments")
      .type("KINDS")
      .plan("none");
  t.add("offload-dir", &S::offload_dir, "folder for those files, on a fast local disk")
      .type("DIR")
      .train();
  t.add("grad-reduce", &S::grad_reduce,
        "reduce gradients after each micro-batch, or after the last one of a step; auto: last for "
        "stages 0 and 1")
      .or_auto()
      .plan("auto");
  t.add("grad-compression", &S::grad_compression,
        "type in which fp32 gradients are sent: unchanged, or rounded to bf16 or fp16")
      .plan("none");
  t.add("bucket-size", &S::bucket_bytes,
        "bytes of gradients that one collective reduces, such as 25MB; 0: chosen by the size of "
        "the model")
      .size()
      .plan("chosen by the size of the model");
  t.add_text(
       "bucket-mb",
       [](S& s, const Field& field, std::string_view text) {
         double megabytes = 0;
         parse_value(field, text, Command::train, megabytes);
         // Files of earlier versions have both names, and 0 for the one that was not given.
         if (megabytes == 0) return;
         s.bucket_bytes = std::max<std::int64_t>(1, std::llround(megabytes * 1e6));
       },
       [](const S& s) { return number_text(static_cast<double>(s.bucket_bytes) / 1e6); },
       "same as --bucket-size, in 10^6 bytes")
      .range(0, 1e5)
      .alias_of_previous()
      .plan("chosen by the size of the model");
  t.add("overlap-grad-reduce", &S::overlap_grad_reduce, "reduce gradients during backward")
      .plan("true");
  t.add("overlap-param-gather", &S::overlap_param_gather,
        "stages 1 and 2: gather parameters during the next forward")
      .plan("true");
  t.add("prefetch", &S::prefetch, "stage 3: gather one unit ahead").plan("true");
  t.add("keep-params", &S::keep_params, "stage 3: keep parameters between forward and backward")
      .plan("false");
  t.add("gather", &S::gather,
        "stage 3: ranks of a host share gathered parameters in memory (alias), or copy them")
      .or_auto()
      .plan("alias on a CPU, otherwise copy");
}

std::vector<Field> fields_of(Command command) {
  Table t;
  add_model(t);
  add_experts(t);
  add_adapters(t);
  add_batch(t);
  add_parallelism(t);
  add_sharding(t);
  add_run_fields(t);
  return t.take(command);
}

}  // namespace

const std::vector<Field>& fields(Command command) {
  static const std::vector<Field> train = fields_of(Command::train);
  static const std::vector<Field> plan = fields_of(Command::plan);
  return command == Command::train ? train : plan;
}

}  // namespace tessera::planner
