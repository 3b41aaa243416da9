#pragma once

#include <bitset>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/core/axes.h"
#include "tessera/core/learning_rate.h"
#include "tessera/core/model_shape.h"
#include "tessera/core/run_options.h"
#include "tessera/core/state_layout.h"
#include "tessera/planner/hardware.h"

namespace tessera {

// Implementation of attention. unfused stores the matrix of scores.
enum class Attention : std::uint8_t { fused, unfused };
// Names on the command line.
template <>
struct EnumNames<Attention> {
  static constexpr std::array<std::string_view, 2> kNames{"fused", "unfused"};
};

// [Note: whose run] Program that runs the job. Programs keep different activations for backward:
// Megatron-LM's layers keep those that Korthikanti et al. (2022) count, masks of dropout among
// them; Tessera's keep those that planner/layer_program.h lists, and its state is padded:
// [Note: shards of a parameter]. Plain PyTorch keeps about the same as Megatron-LM, but has its own
// speed: hardware.h.
enum class Software : std::uint8_t { megatron, pytorch, tessera };
// Names on the command line.
template <>
struct EnumNames<Software> {
  static constexpr std::array<std::string_view, 3> kNames{"megatron", "pytorch", "tessera"};
};

// Names on the command line.
template <>
struct EnumNames<RouterScores> {
  static constexpr std::array<std::string_view, 2> kNames{"softmax", "sigmoid"};
};

// Gathering of parameters at stage 3 of Tessera: `alias` if the ranks share memory.
enum class Gather : std::uint8_t { alias, copy };
// Names on the command line.
template <>
struct EnumNames<Gather> {
  static constexpr std::array<std::string_view, 2> kNames{"alias", "copy"};
};

}  // namespace tessera

namespace tessera::planner {

using tessera::Attention;
using tessera::Gather;
using tessera::name;
using tessera::Recompute;
using tessera::Software;

// Returns the name as written in a sentence: "Megatron-LM".
std::string_view title(Software software);

// Commands that take a setting: `tessera train`, or those that ask the planner (plan, simulate,
// explain).
enum class Command : std::uint8_t { train = 1, plan = 2 };

// [Note: order of axes] Ranks are numbered along the axes of `order`, innermost first, and fill the
// nodes in turn. "tp,cp,dp,pp" places tensor-parallel neighbors closest together.
inline constexpr std::string_view kUsualOrder = "tp,cp,dp,pp";

// The number that stands for "auto" where Field::automatic allows it.
inline constexpr double kAutomatic = -1;

// [Note: run config] Description of one training run, whether it is trained, planned or simulated.
// Flags, TOML files, lines of --questions, rows of --score and requests of the page are parsed into
// it by the table of fields.h. 0 (-1 where 0 has a meaning), nullopt and "" mean "choose".
// look_up() fills in `model` and `hardware`, resolve() the rest, and rejects what is impossible.
// The defaults are those of `tessera train`; RunConfig::for_plan() has those of a plan.
struct RunConfig {
  Command command = Command::train;

  std::string model_name = "gpt-tiny";
  // Replace those of the named model.
  std::int64_t layers = 0, hidden = 0, heads = 0, kv_heads = 0, ffn = 0, vocab = 0, positions = 0;
  // [Note: experts] in core/experts.h. 0, -1, nullopt or kAutomatic: as the model has.
  std::int64_t experts = 0, experts_per_token = 0, expert_ffn = 0, shared_expert_ffn = 0;
  std::int64_t dense_layers = -1;
  std::optional<RouterScores> router_scores;
  double balance_loss = kAutomatic, z_loss = kAutomatic, balance_bias_rate = kAutomatic;
  double router_jitter = kAutomatic, expert_capacity = kAutomatic;
  // Tokens that the busiest rank's experts receive, as a multiple of the mean over the ranks. ep is
  // the most possible: one rank receives every token.
  double expert_imbalance = 1;
  std::string init_from;
  // Number of parameters of a model of which nothing else is known: only its state can be planned.
  std::int64_t params = 0;
  // The vocabulary is padded to a multiple of this · tp. Resolved: 128 for Tessera on a GPU, whose
  // products need aligned widths, otherwise 1.
  int vocab_multiple = 0;
  std::int64_t lora_rank = 0;
  double lora_alpha = 16, lora_dropout = -1;  // -1: that of lora_from, otherwise 0
  std::string lora_targets = "auto";
  std::string lora_from;
  ModelShape model;  // looked up

  std::string data = "synthetic";
  std::string val_data;
  double val_fraction = 0;
  SampleOrder sample_order = SampleOrder::automatic;
  Documents documents = Documents::join;
  Packing pack = Packing::documents;
  std::int64_t epochs = 0;
  LastBatch last_batch = LastBatch::drop;
  std::int64_t data_ahead = 2;
  std::int64_t seed = 0;

  std::int64_t steps = 0;
  std::int64_t micro_batch = 16;
  std::int64_t grad_accum = 0;
  std::int64_t global_batch = 0;
  std::int64_t seq = 0;
  Recompute recompute = Recompute::none;
  double dropout = 0, attention_dropout = 0;  // with the latter, attention on a GPU is not fused
  std::optional<Attention> attention;         // resolved: fused if the hardware has it
  // Resolved: tessera on a CPU, otherwise that of the hardware. Stays open if only `params` is
  // known.
  std::optional<Software> software;

  std::int64_t ranks = 0;                        // to start on this machine, by `tessera train`
  int gpus = 0;                                  // of the whole job, in a plan
  Axes axes{{Axis::dp_shard, 0}};                // dp 0: what gpus or nodes leave, otherwise 1
  std::string order = std::string(kUsualOrder);  // innermost first: [Note: order of axes]
  bool sequence_parallel = false;
  // [Note: slices] Ranks along tp have the same result of a stage. Each of Tessera's ranks sends
  // all of it; Megatron-LM's send a slice each, which those of the next stage gather along tp.
  std::optional<bool> slice_hops;  // resolved: true for Megatron-LM
  bool overlap_tp = false;
  ContextKind cp_kind = ContextKind::automatic;  // resolved: ring or ulysses
  ScheduleChoice schedule = ScheduleChoice::one_f_one_b;
  int chunks = 0;
  std::string split = "even";  // of the layers into stages: see layers_of_stages
  int zero = 0;
  StateLayout layout = parse_state_layout("fp32");
  std::optional<ReducePolicy> grad_reduce;
  OptimizerState optimizer_state = OptimizerState::fp32;
  std::string offload = "none", offload_dir;  // read by parse_offload()
  GradCompression grad_compression = GradCompression::none;
  std::int64_t bucket_bytes = 0;  // 0: by the model, [Note: bucket size]
  bool overlap_grad_reduce = true;
  bool overlap_param_gather = true;
  bool prefetch = true;  // stage 3: the next unit is gathered while one is in use
  bool keep_params = false;
  std::optional<Gather> gather;  // resolved: alias on a CPU's ranks of one host, otherwise copy

  OptimizerChoice optimizer = OptimizerChoice::adamw;
  double lr = kAutomatic;  // by the size of the model: default_lr()
  LrScaling lr_scaling = LrScaling::none;
  std::int64_t lr_reference_batch = 0;
  LrSchedule::Kind lr_schedule = LrSchedule::Kind::cosine;
  std::int64_t warmup = -1;
  double min_lr_ratio = 0.1;
  double decay_share = 0.2;
  double weight_decay = 0.01;
  double beta1 = 0.9, beta2 = 0.99, eps = 1e-8;
  double momentum = 0.9;
  double clip = 1.0;
  OnNan on_nan = OnNan::stop;

  Device device = Device::cpu;
  std::optional<bool> gpu;  // resolved: by the hardware
  BackendName backend = BackendName::automatic;
  std::string dry_rank;
  std::string link_bandwidth, link_latency;
  CudaGraph cuda_graph = CudaGraph::automatic;
  MatmulPrecision matmul_precision = MatmulPrecision::highest;
  Precision precision = Precision::layout;
  Comm comm = Comm::on;
  std::int64_t threads = 0;
  std::int64_t memory_limit = 0;
  bool force = false;

  std::string save;
  std::int64_t save_every = 0;
  double save_minutes = 30;
  std::string resume = "none";
  std::int64_t keep_last = 3;
  std::int64_t keep_every = 0;
  bool async_save = true;
  bool convert_optimizer_state = false;
  std::int64_t save_retries = 3;
  OnSaveError on_save_error = OnSaveError::stop;
  std::int64_t max_restarts = 0;
  std::string elastic;
  std::int64_t recover = 0;
  std::int64_t spares = 0;
  double peer_timeout = 300;

  std::string hardware_name;
  std::string hardware_file;
  Hardware hardware;  // looked up
  int nodes = 0;
  int per_node = 0;
  double between_bandwidth = 0;            // bytes/s of a network adapter; 0: that of the hardware
  double price_per_hour = -1, watts = -1;  // -1: those of the hardware
  std::int64_t eval_every = 0, eval_batches = 0;
  std::string metrics;
  std::string tensorboard;
  std::string trace;
  std::int64_t trace_steps = 20;
  std::int64_t samples = 4;

  // Defaults of a plan.
  static RunConfig for_plan();

  // Reads the text of a flag or a file. "micro_batch" is "micro-batch". Throws UsageError for a key
  // that is not a field, with the nearest one, or for an invalid value.
  void set(std::string_view key, std::string_view text);
  // Returns true if set() was called for this field.
  bool has(std::string_view key) const;

  // Only the number of parameters is known.
  bool state_only() const { return params != 0; }

  // After resolve(): the number of micro-batches of a step, and of devices.
  std::int64_t micros() const { return grad_accum; }
  int world() const { return static_cast<int>(axes.world()); }
  int dp() const { return axes.dp(); }
  // Ranks that shard state, and the number of groups of them: [Note: replicas] in core/axes.h.
  int shards() const { return axes.shards(); }
  int replicas() const { return axes.size(Axis::dp_replicate); }
  int tp() const { return axes.tp(); }
  int pp() const { return axes.pp(); }
  bool pipelined() const { return pp() > 1; }
  // Number of pipeline stages of the model, and of forward passes of a replica in a step.
  int stages() const { return pp() * chunks; }
  std::int64_t passes() const { return stages() * micros(); }
  // Number of ranks that hold the same parameters, whose gradients are averaged.
  int copies() const { return static_cast<int>(axes.ranks(kTokenAxes)); }
  bool averages_gradients() const { return copies() > 1; }
  // Returns true if master copies and moments are in files.
  bool offloads_optimizer() const { return offload != "none"; }
  // Number of ranks over which sequence parallelism shards each sequence.
  int sequence_ranks() const { return sequence_parallel ? axes.tp() : 1; }
  int cp() const { return axes.size(Axis::cp); }
  int ep() const { return axes.size(Axis::ep); }
  // Number of ranks that shard the state of one expert, and of those that train it.
  int expert_shards() const { return shards() / ep(); }
  // Rows that the busiest rank receives, and those that its experts accept, relative to the mean
  // without a capacity.
  double expert_received() const {
    return expert_imbalance < ep() ? expert_imbalance : static_cast<double>(ep());
  }
  double expert_load() const {
    const double capacity = model.experts.capacity, received = expert_received();
    return capacity > 0 && capacity < received ? capacity : received;
  }
  int expert_copies() const { return copies() / ep(); }
  // Number of tokens of a sequence that a rank computes: all without context parallelism, otherwise
  // its part of the padded sequence.
  std::int64_t rank_tokens() const;
  // Returns a copy at another ZeRO stage: at stage 0 without replicas, which shard nothing there.
  RunConfig at_stage(int stage) const {
    RunConfig other = *this;
    other.set_stage(stage);
    return other;
  }
  // Sets the ZeRO stage, and at stage 0 removes the replicas.
  void set_stage(int stage) {
    zero = stage;
    if (stage == 0) axes.set_given(Axis::dp_replicate, 1);
  }
  ReducePolicy policy() const { return grad_reduce.value_or(default_reduce_policy(zero)); }
  // Bytes of a gradient element when it is sent.
  int travel() const {
    return averages_gradients() ? traveling_grad(layout.grad, grad_compression) : layout.grad;
  }
  // Returns true if the host launches kernels one by one: [Note: host and device].
  bool launches() const {
    return !fused_activations() || cuda_graph == CudaGraph::off || pipelined();
  }
  // Returns true if Tessera's fused operations of a GPU run: [Note: fused operations].
  bool fused_activations() const { return software == Software::tessera && gpu.value_or(false); }

 private:
  friend void set(RunConfig&, const struct Field&, std::string_view);
  std::bitset<192> given_;  // by Field::index
};

// Returns the peak learning rate of a run without --lr: 0.003 up to a million parameters, and
// 0.003 · (1,000,000 / parameters)^(1/3) above, which is 0.0006 at 125 million and 0.0003 at a
// billion, close to GPT-3's table (Brown et al., 2020).
double default_lr(std::int64_t params);

// Defaults of a run.
inline constexpr std::int64_t kRunSeq = 64;  // or the model's positions, if they are fewer
inline constexpr std::int64_t kRunRanks = 2;

// Throws UsageError if gradients cannot be compressed as requested: bf16 and fp16 need fp32
// gradients.
void check_compression(const RunConfig& config);
// Fills in the model and the hardware by their names. Throws UsageError if the catalog lacks one.
RunConfig look_up(RunConfig config, const Catalog& catalog);
// Returns true if a size of the model, or a setting of its experts, is given.
bool has_sizes(const RunConfig& config);
// Applies the given sizes to a model; sizes that follow from others follow again. Throws UsageError
// if a setting of experts is given and the model has none.
void apply_sizes(ModelShape& model, const RunConfig& config);

// Returns the requested software, or that of the hardware.
Software software_of(const RunConfig& config);
// Returns the requested attention, or that of the hardware. Throws UsageError if it lacks it.
Attention attention_of(const RunConfig& config);

// Throws UsageError if there are replicas of shards and the ZeRO stage shards nothing.
void check_replicas_at(int stage, const Axes& axes);

// Least number of tokens of a sequence on a rank with which searches and advice propose context
// parallelism. With fewer, attention is too short to hide the messages of a ring.
inline constexpr std::int64_t kLeastContextTokens = 4096;

// Returns --seq, or the model's usual number of tokens if it is 0.
std::int64_t sequence_of(const RunConfig& config);

// Fills in what was left open (accumulation and global batch from each other, nodes, sequence
// length). Throws UsageError for impossible settings; accepts unusual ones.
RunConfig resolve(RunConfig config);
// As resolve(), in place.
void resolve_in_place(RunConfig& config);

// Layers of one pipeline stage; the first stage also has the embedding, the last one the head.
struct StageLayers {
  std::int64_t layers = 0;
  bool embedding = false;
  bool head = false;
  std::int64_t dense = 0;  // number of the first of them without experts, if the model has experts
};
// Returns the layers of a stage that begins with layer `first` of the model.
StageLayers stage_layers(const ModelShape& model, std::int64_t first, std::int64_t layers,
                         bool embedding, bool head);
// Returns the stage of the model (0 is first) that the schedule assigns to a chunk of a rank.
int stage_of(const RunConfig& resolved, int rank, int chunk);
// Returns the layers of every chunk: [rank][chunk].
std::vector<std::vector<StageLayers>> chunk_layers(const RunConfig& resolved);

}  // namespace tessera::planner
