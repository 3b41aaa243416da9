#include <algorithm>
#include <cmath>

#include "tessera/core/errors.h"
#include "tessera/core/most_ranks.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/planner/field_rows.h"

namespace tessera::planner {
namespace {

using S = RunConfig;
constexpr double kMany = 1e15;  // exact in a double and beyond any use
// As fp32 sees them: of 1 an average never forgets, and by 0 a step would be divided.
constexpr double kBelowOne = 0.9999999, kAboveZero = 1e-30;

const char* axis_purpose(Axis axis) {
  switch (axis) {
    case Axis::tp: return "tensor parallelism: ranks that share every matrix";
    case Axis::cp: return "context parallelism: ranks that share each sequence, for long ones";
    case Axis::ep:
      return "expert parallelism: ranks, of those that shard state, that share the experts of a "
             "layer";
    case Axis::dp_shard:
      return "data-parallel ranks, which train on other data; left out: what the other axes leave";
    case Axis::dp_replicate:
      return "hybrid sharding: --zero shards inside each of this many groups of the --dp ranks, "
             "and gradients are averaged between them";
    case Axis::pp: return "pipeline parallelism: ranks that share the layers";
  }
  return "";
}

std::vector<std::string> layout_names() {
  std::vector<std::string> names;
  for (const StateLayout& layout : state_layouts()) names.push_back(layout.name);
  return names;
}

void add_model(Table& t) {
  t.group("Model");
  t.add("model", &S::model_name,
        "gpt-tiny, llama-tiny, gpt2-124m … gpt2-xl, another of tessera plan --list-models, or a "
        "folder with a config.json of Hugging Face's")
      .type("NAME")
      .plan("gpt2-xl");
  t.add("init-from", &S::init_from,
        "start with the parameters of this folder: Hugging Face's, a checkpoint's, or a run's; "
        "--model is then the one that is there")
      .type("DIR")
      .train();
  t.add("layers", &S::layers, "blocks; this and the next ones replace what --model has")
      .range(0, 1e5);
  t.add("hidden", &S::hidden, "width between the layers; left out: as the model has").range(0, 1e6);
  t.add("heads", &S::heads, "of attention; left out: as the model has").range(0, 1e5);
  t.add("kv-heads", &S::kv_heads,
        "heads of keys and values, if fewer: grouped-query attention; left out: as the model has")
      .range(0, 1e5)
      .plan("heads");
  t.add("ffn", &S::ffn, "width inside the MLP; left out: as the model has")
      .range(0, 1e7)
      .plan("4·hidden");
  t.add("vocab", &S::vocab, "tokens of the vocabulary; left out: as the model has")
      .range(0, 1e8)
      .plan("50257");
  t.add("positions", &S::positions, "longest sequence; left out: as the model has")
      .range(0, 1e7)
      .train();
  t.add("pad-vocab", &S::vocab_multiple,
        "round each rank's rows of the vocabulary up to a multiple of this, as Megatron does with "
        "128; left out: 128 on a GPU, 1 on the CPU and for Megatron's layers")
      .range(0, 1e6)
      .plan("128 for Tessera on a GPU, else 1");
  t.add("params", &S::params, "a model known by its size alone, as 13B: memory of state, no time")
      .type("COUNT")
      .plan_only();
}

void add_experts(Table& t) {
  t.group("Experts");
  t.add("experts", &S::experts,
        "MLPs of a layer, of which a router selects some for each token; left out: as the model "
        "has")
      .range(0, 1e5);
  t.add("experts-per-token", &S::experts_per_token,
        "experts that a token passes; left out: as the model has, or 2")
      .range(0, 1e5);
  t.add("expert-ffn", &S::expert_ffn,
        "width inside one expert; left out: as the model has, or that of its MLP")
      .range(0, 8e6);
  t.add("shared-expert-ffn", &S::shared_expert_ffn,
        "width of an MLP beside the experts that every token passes; left out: as the model has")
      .range(0, 8e6);
  t.add("dense-layers", &S::dense_layers,
        "first layers with an ordinary MLP instead of experts; -1: as the model has")
      .range(-1, 1e5)
      .bounded_in_plans();
  t.add("router-scores", &S::router_scores,
        "softmax over all experts, or the sigmoid of each logit; auto: as the model has")
      .or_auto();
  t.add("balance-loss", &S::balance_loss,
        "factor of the loss that spreads tokens over the experts; auto: as the model has, or 0.01")
      .range(0, 1e6)
      .automatic();
  t.add("z-loss", &S::z_loss,
        "factor of the loss that keeps the router's logits small, such as 0.001; auto: as the "
        "model has, or 0")
      .range(0, 1e6)
      .automatic();
  t.add("balance-bias-rate", &S::balance_bias_rate,
        "change, each step, of a bias that selects experts with few tokens more often, such as "
        "0.001; auto: as the model has, or 0 for none")
      .range(0, 1e6)
      .automatic();
  t.add("router-jitter", &S::router_jitter,
        "in training, the router's input is multiplied by random numbers this far from 1; auto: "
        "as the model has, or 0")
      .range(0, 0.99)
      .automatic();
  t.add("expert-capacity", &S::expert_capacity,
        "tokens that an expert accepts, as a multiple of the mean; the others skip it. 0: all; "
        "auto: as the model has, or 0")
      .range(0, 1e6)
      .automatic();
  t.add("expert-imbalance", &S::expert_imbalance,
        "tokens that the busiest rank's experts receive, as a multiple of the mean: 1.1 to 1.3 "
        "with a balance loss, 2 or more early in training or without one")
      .range(1, 1e5)
      .plan_only("1");
}

void add_adapters(Table& t) {
  t.group("Adapters");
  t.add("lora-rank", &S::lora_rank,
        "freeze the model, and train low-rank adapters beside its linears; 0: train the model")
      .range(0, 65536)
      .bounded_in_plans();
  t.add("lora-alpha", &S::lora_alpha, "what adapters add is multiplied by this over the rank")
      .range(kAboveZero, 1e9)
      .train();
  t.add("lora-targets", &S::lora_targets,
        "linears that have one: q, k, v, o, gate, up, down (GPT: qkv, o, fc, down) with commas "
        "between, PEFT's names for them, all, or auto (q and v; GPT: qkv)")
      .type("NAMES");
  t.add("lora-dropout", &S::lora_dropout,
        "share of a linear's input that its adapter does not see, in training; -1: what "
        "--lora-from says, else 0")
      .range(-1, 0.99)
      .train();
  t.add("lora-from", &S::lora_from,
        "adapters to start with, a folder as PEFT writes it; says rank, alpha, targets and "
        "dropout too")
      .type("DIR")
      .train();
}

void add_batch(Table& t) {
  t.group("Data");
  t.add("data", &S::data,
        "synthetic (sorting digits), a text file (UTF-8, read by bytes), what tessera data prepare "
        "wrote, a .bin of tokens, or several with their weights: a=0.7,b=0.3")
      .train();
  t.add("val-data", &S::val_data, "data to validate on; likewise").train();
  t.add("val-fraction", &S::val_fraction,
        "share at the end of --data, by whole documents, that is validated on and not trained")
      .range(0, 0.5)
      .train();
  t.add("order", &S::sample_order,
        "of the samples: shuffled anew every epoch, sequential, or windows at random places; auto: "
        "random for a text file without --epochs, else shuffled")
      .train();
  t.add("documents", &S::documents,
        "in one row: joined, or separate, so that none attends to another")
      .train();
  t.add("pack", &S::pack,
        "rows full of documents one behind the other, or none: one document a row, padded or cut")
      .train();
  t.add("epochs", &S::epochs, "how often to take all of --data; --steps bounds it")
      .range(0, 1e9)
      .train();
  t.add("last-batch", &S::last_batch,
        "of the last epoch, if samples are missing: dropped, or padded with what is not learnt")
      .train();
  t.add("data-ahead", &S::data_ahead, "steps whose data is prepared while others are computed")
      .range(0, 1000)
      .train();
  t.add("seed", &S::seed, "of parameters and data").range(0, kMany).train();
  t.group("Batch");
  t.add("steps", &S::steps, "optimizer steps; left out: what --epochs takes, or else 240")
      .range(0, kMany)
      .train();
  t.add("micro-batch", &S::micro_batch, "sequences a rank computes at once")
      .range(1, 1e9)
      .plan("1");
  t.add("grad-accum", &S::grad_accum,
        "micro-batches of a step; left out: from --global-batch, or 1")
      .range(0, 1e6)
      .plan("1");
  t.add("global-batch", &S::global_batch,
        "sequences of a step over all ranks; left out: from --grad-accum")
      .range(0, 1e12)
      .plan("micro-batch · grad-accum · dp");
  t.add("seq", &S::seq, "tokens in a sequence; left out: as the model has, a run at most 64")
      .range(0, 1e7)
      .plan("the model's");
  t.add("recompute", &S::recompute, "what backward recomputes")
      .formerly("checkpoint-activations")
      .plan("none");
  t.add("dropout", &S::dropout,
        "share of embeddings, and of what layers add to the residual stream, that is dropped")
      .range(0, 0.99)
      .train();
  t.add("attention-dropout", &S::attention_dropout, "share of attention's probabilities dropped")
      .range(0, 0.99)
      .train();
  t.add("software", &S::software,
        "whose run it is: what its layers keep for backward, and how fast it is on that hardware")
      .plan_only("cpu, h200: tessera, else megatron");
  t.add("attention", &S::attention, "unfused keeps the matrix of scores")
      .plan_only("fused, where the hardware has it");
}

void add_parallelism(Table& t) {
  t.group("Parallelism");
  t.add("ranks", &S::ranks,
        "ranks to start on this machine, unless a launcher did; left out: dp · cp · tp · pp, or 2")
      .range(0, kMaxRanks)
      .because(kMaxRanksWhy)
      .train();
  t.add("gpus", &S::gpus, "all of them; --dp follows").plan_only("dp · cp · tp · pp");
  for (const Axis axis : kPrintedAxes) {
    const bool open = axis == Axis::dp_shard;
    t.add_axis(axis, axis_purpose(axis))
        .range(open ? 0 : 1, kMaxRanks)
        .because(kMaxRanksWhy)
        .plan(open ? "gpus / (cp · tp · pp)" : "1");
  }
  t.add("sequence-parallel", &S::sequence_parallel,
        "with --tp: share the sequence between the matrices too")
      .plan("false");
  t.add("cp-kind", &S::cp_kind,
        "attention with --cp: ring passes keys and values on, ulysses exchanges heads for tokens; "
        "auto: ulysses if --cp divides the heads, else ring");
  t.add("overlap-tp", &S::overlap_tp,
        "with --tp: multiply while what the ranks of that axis exchange is on its way")
      .train();
  t.add("axis-order", &S::order,
        "of the axes on the devices, innermost first: the ranks of the first fill a node")
      .type("AXES")
      .formerly("order")
      .plan_only(kUsualOrder.data());
  t.add("slice-hops", &S::slice_hops,
        "between stages a rank sends 1/tp, gathered again, as Megatron does")
      .plan_only("by the software");
  t.add("schedule", &S::schedule, "order of a pipeline's passes").plan("1f1b");
  t.add("split", &S::split, "layers of a pipeline's stages: even, work, or as 3,3,2")
      .type("HOW")
      .plan("even");
  t.add("chunks", &S::chunks, "interleaved: stages of each pipeline rank; left out: 2")
      .range(0, 1024)
      .plan("1; interleaved: 2");
}

// The rest of the group: data parallelism.
void add_sharding(Table& t) {
  t.add("zero", &S::zero,
        "ZeRO stage: 0 shards nothing (DDP), 1 optimizer state, 2 and gradients, 3 and parameters")
      .range(0, 3)
      .bounded_in_plans()
      .type("STAGE")
      .plan("0");
  t.add("layout", &S::layout,
        "types of parameters, gradients, optimizer state: bf16, bf16-fp32grad, bf16-nomaster, "
        "fp16 (GPUs), fp32; a plan counts bytes such as 2,6,12 too")
      .words(layout_names())
      .type("NAME")
      .free_in_plans()
      .plan("bf16, or fp16 where the hardware has no bf16");
  t.add("grad-reduce", &S::grad_reduce,
        "reduce each micro-batch or the last; auto: last for stages 0, 1")
      .or_auto()
      .plan("auto");
  t.add("grad-compression", &S::grad_compression,
        "how fp32 gradients travel: as they are, or rounded to bf16 or fp16")
      .plan("none");
  t.add("bucket-size", &S::bucket_bytes,
        "bytes of gradient that travel together, such as 25MB; 0: by the model")
      .size()
      .plan("by the model");
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
       "--bucket-size in 10^6 bytes")
      .range(0, 1e5)
      .alias_of_previous()
      .plan("by the model");
  t.add("overlap-grad-reduce", &S::overlap_grad_reduce, "reduce gradients while backward goes on")
      .plan("true");
  t.add("overlap-param-gather", &S::overlap_param_gather,
        "stages 1, 2: gather parameters while the next forward goes on")
      .plan("true");
  t.add("prefetch", &S::prefetch, "stage 3: gather one unit ahead").plan("true");
  t.add("keep-params", &S::keep_params, "stage 3: keep parameters between forward and backward")
      .plan("false");
  t.add("gather", &S::gather, "stage 3: parameters shared by the ranks of a host, or copied")
      .or_auto()
      .plan("cpu: alias, else copy");
}

void add_optimizer(Table& t) {
  t.group("Optimizer");
  t.add("optimizer", &S::optimizer, "rule of the update").train();
  t.add("lr", &S::lr,
        "highest learning rate; auto: 0.003 up to 1M parameters, above times the cube root of 1M "
        "over their number")
      .range(0, 1e3)
      .automatic()
      .train();
  t.add("lr-scaling", &S::lr_scaling,
        "for another batch than --lr-reference-batch: the rate times their ratio, or its root")
      .train();
  t.add("lr-reference-batch", &S::lr_reference_batch, "sequences of the global batch --lr is for")
      .range(0, 1e12)
      .train();
  t.add("lr-schedule", &S::lr_schedule, "how it falls after the warm-up").train();
  t.add("warmup", &S::warmup, "steps of rising learning rate; -1: 20, at most a fifth of all")
      .range(-1, kMany)
      .train();
  t.add("min-lr-ratio", &S::min_lr_ratio, "learning rate at the end, as a share")
      .range(0, 1)
      .train();
  t.add("decay-share", &S::decay_share, "wsd: share of the steps that decay").range(0, 1).train();
  t.add("weight-decay", &S::weight_decay, "of matrices; norms and biases have none")
      .range(0, 1e3)
      .train();
  t.add("beta1", &S::beta1, "AdamW, Lion").range(0, kBelowOne).train();
  t.add("beta2", &S::beta2, "AdamW, Lion").range(0, kBelowOne).train();
  t.add("eps", &S::eps, "AdamW").range(kAboveZero, 1).train();
  t.add("momentum", &S::momentum, "SGD, Muon").range(0, kBelowOne).train();
  t.add("clip", &S::clip, "largest norm of the whole gradient; 0 does not clip")
      .range(0, 1e9)
      .train();
  t.add("on-nan", &S::on_nan,
        "gradients that are not finite: stop, skip the step, or go back to the last checkpoint")
      .train();
}

void add_run(Table& t) {
  t.group("Run");
  t.add("device", &S::device, "where to compute").train();
  t.add("backend", &S::backend,
        "of the collectives; auto: shm, with --device cuda nccl where every rank has a GPU")
      .train();
  t.add("dry-rank", &S::dry_rank,
        "with --backend dry: the rank to play, as tp=1,pp=3; axes that are not named are 0")
      .type("COORDINATE")
      .train();
  t.add("link-bandwidth", &S::link_bandwidth,
        "for experiments over shm: ranks send no faster than this, as 1GB/s; empty: as they can")
      .type("RATE")
      .train();
  t.add("link-latency", &S::link_latency,
        "likewise: every step of a collective takes at least this, as 20us")
      .type("TIME")
      .train();
  t.add("cuda-graph", &S::cuda_graph,
        "a step as one CUDA graph: auto where it can be, on or an error that says why not, off")
      .train();
  t.add("matmul-precision", &S::matmul_precision,
        "of products of fp32 tensors on GPUs; high: inputs may be rounded to TF32, which is faster")
      .plan("highest");
  t.add("comm", &S::comm, "off: ranks do not synchronize, for measuring only").train();
  t.add("threads", &S::threads, "of each rank; 0: its share of the cores").range(0, 4096).train();
  t.add("memory-limit", &S::memory_limit,
        "bytes a rank may hold, as 2GiB, on the GPU with --device cuda; 0: no limit")
      .range(0, kMany)
      .size()
      .train();
  t.add("force", &S::force, "start even if the plan says that memory does not suffice").train();
  t.group("Saving");
  t.add("save", &S::save, "folder for checkpoints").train();
  t.add("save-every", &S::save_every,
        "steps between checkpoints; 0: by --save-minutes, and at the end")
      .range(0, kMany)
      .train();
  t.add("save-minutes", &S::save_minutes, "the same in minutes; 0: only at the end")
      .range(0, 1e6)
      .train();
  t.add("resume", &S::resume,
        "auto: from the newest good checkpoint in --save, if any; or a checkpoint, or a run's "
        "folder")
      .train();
  t.add("keep-last", &S::keep_last, "newest checkpoints to keep; 0: all").range(0, 1e6).train();
  t.add("keep-every", &S::keep_every, "keep those of every so many steps too; 0: none")
      .range(0, kMany)
      .train();
  t.add("async-save", &S::async_save, "write checkpoints while training goes on").train();
  t.add("save-retries", &S::save_retries,
        "how often a save that the disk refused is tried again, after 1 s, 2 s, 4 s, …")
      .range(0, 20)
      .train();
  t.add("on-save-error", &S::on_save_error,
        "when that did not help: stop, or warn and train on (status 3 if the last save failed)")
      .train();
  t.add("max-restarts", &S::max_restarts, "restarts from the last checkpoint after failures")
      .range(0, 1e6)
      .train();
  t.add("elastic", &S::elastic,
        "FEWEST:MOST ranks: a restart goes on with those that are left; empty: as many as before")
      .train();
  t.add("recover", &S::recover, "lost ranks to replace while a replica is whole")
      .range(0, 1e6)
      .train();
  t.add("spares", &S::spares, "started ranks that wait for such a loss").range(0, 1e4).train();
  t.add("peer-timeout", &S::peer_timeout, "seconds until an awaited rank is lost")
      .range(1, 1e6)
      .train();
}

void add_hardware(Table& t) {
  t.group("Hardware");
  t.add("hardware", &S::hardware_name,
        "one of tessera plan --list-hardware; a run predicts the time of a step by it")
      .type("NAME")
      .plan("h100");
  t.add("hardware-file", &S::hardware_file, "entries of your own, such as tessera calibrate writes")
      .train();
  t.add("nodes", &S::nodes, "hosts").plan_only("as many as needed");
  t.add("gpus-per-node", &S::per_node, "devices of a host").plan_only("the hardware's");
  t.add_text(
       "between-bandwidth",
       [](S& s, const Field& field, std::string_view text) {
         try {
           s.between_bandwidth = parse_rate(text);
         } catch (const UsageError& error) {
           throw UsageError(Flag(field.name), error.what());
         }
         if (s.between_bandwidth > 0) return;
         throw UsageError(Flag(field.name), str("got ", quote(text), "; must be above 0"));
       },
       [](const S& s) { return str(number_text(s.between_bandwidth), "B/s"); },
       "of a host's network adapter, as 25GB/s")
      .type("RATE")
      .plan_only("the hardware's");
  t.add("price-per-hour", &S::price_per_hour, "of one device, for the cost of a step")
      .range(0, kMany)
      .plan_only("the hardware's");
  t.add("watts", &S::watts, "of one device, for the energy of a step")
      .range(0, kMany)
      .plan_only("the hardware's");
  t.group("Evaluation");
  t.add("eval-every", &S::eval_every,
        "steps between evaluations on the validation data; 0: only at the end")
      .range(0, kMany)
      .train();
  t.add("eval-batches", &S::eval_batches,
        "global batches of each; 0: all of the data, or 16 where it never ends")
      .range(0, kMany)
      .train();
  t.group("Output");
  t.add("metrics", &S::metrics, "write a JSON line per step to this file").train();
  t.add("tensorboard", &S::tensorboard, "write event files for TensorBoard into this folder")
      .type("DIR")
      .train();
  t.add("trace", &S::trace, "write spans of the first steps to this file, for Perfetto").train();
  t.add("trace-steps", &S::trace_steps, "how many steps that file has").range(1, 1e6).train();
  t.add("samples", &S::samples, "answers of the trained model to show").range(0, 1000).train();
}

std::vector<Field> fields_of(Command command) {
  Table t;
  add_model(t);
  add_experts(t);
  add_adapters(t);
  add_batch(t);
  add_parallelism(t);
  add_sharding(t);
  add_optimizer(t);
  add_run(t);
  add_hardware(t);
  return t.take(command);
}

}  // namespace

const std::vector<Field>& fields(Command command) {
  static const std::vector<Field> train = fields_of(Command::train);
  static const std::vector<Field> plan = fields_of(Command::plan);
  return command == Command::train ? train : plan;
}

}  // namespace tessera::planner
