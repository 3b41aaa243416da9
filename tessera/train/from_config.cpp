#include "tessera/train/from_config.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <utility>

#include "tessera/comm/gpus.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/models/init.h"
#include "tessera/models/language_model.h"
#include "tessera/planner/parameters.h"
#include "tessera/train/adapters.h"
#include "tessera/train/init_from.h"

namespace tessera::train {
namespace {

// Throws UsageError for settings that --cp-kind ring does not support on a GPU.
void check_ring_on_gpu(const RunConfig& config, const Resolved& resolved) {
  const auto refuse = [](const std::string& setting, const char* other) {
    throw UsageError(Flag("cp-kind"), str("ring on a GPU does not support ", setting,
                                          ". Use --cp-kind ulysses, ", other, " or --device cpu"));
  };
  if (config.attention_dropout > 0) {
    refuse(str("--attention-dropout ", config.attention_dropout), "--attention-dropout 0");
  }
  const std::int64_t window = resolved.model.window;
  if (resolved.layout.param == 4 && window > 0 && window < resolved.seq) {
    refuse(str("the window of ", window, " tokens of this model in fp32"), "--layout bf16");
  }
}

}  // namespace

void check_mesh(const RunConfig& config, const Resolved& resolved) {
  const auto refuse = [](const std::string& problem) { throw UsageError(problem); };
  const auto tp = config.axes.tp(), pp = config.axes.pp();
  if (config.sequence_parallel && tp == 1) {
    refuse("--sequence-parallel needs --tp 2 or more: the ranks of that axis split the sequence");
  }
  if (config.overlap_tp && tp == 1) {
    refuse("--overlap-tp needs --tp 2 or more: it hides the communication along that axis");
  }
  const ContextKind kind =
      context_kind_for(resolved.model, config.cp_kind, config.axes, config.device != Device::cpu);
  if (kind == ContextKind::ring && config.axes.size(Axis::cp) > 1 && config.device != Device::cpu) {
    check_ring_on_gpu(config, resolved);
  }
  try {
    models::check_tp(resolved.model, tp);
  } catch (const UsageError& error) {
    refuse(str("--tp ", tp, ": ", error.what()));
  }
  const schedule::Schedule schedule = schedule_of(config, resolved);
  if (pp > 1 && resolved.model.layers < schedule.stage_count()) {
    refuse(str("--layers: got ", resolved.model.layers, ", fewer than the ", schedule.stage_count(),
               " stages of --pp ", pp, " with ", plural(schedule.chunks, "chunk"),
               "; must be at least one layer for each"));
  }
  if (pp > 1 && config.chunks > 1 && config.chunks != schedule.chunks) {
    refuse(str("--chunks: got ", config.chunks, ", but --schedule ", config.schedule, " has ",
               plural(schedule.chunks, "stage"), " on every rank. Use --schedule interleaved."));
  }
  planner::layers_of_stages(resolved.model, schedule.stage_count(), config.split);
  if (pp == 1) return;
  if (config.zero == 3 && schedule::splits_backward(schedule)) {
    refuse(str("--schedule ", config.schedule,
               " defers weight gradients, but --zero 3 frees a block once it has its gradients. "
               "Use another stage, or --schedule 1f1b."));
  }
  if (config.zero == 3 && config.keep_params) {
    refuse(
        "--keep-params is not supported with --pp: several micro-batches are in flight, so "
        "parameters would be kept almost always. Use --zero 2, or omit --keep-params.");
  }
  if (resolved.model.tied &&
      schedule.home(schedule.stage_count() - 1).rank == schedule.home(0).rank) {
    refuse(str("--schedule ", config.schedule,
               " has the first and the last stage on one rank, where an embedding that is tied to "
               "the head would be trained twice. Use a model with a separate head, or another "
               "schedule."));
  }
}

std::vector<int> layers_of_stages(const RunConfig& config, const Resolved& resolved) {
  std::vector<int> layers =
      planner::layers_of_stages(resolved.model, schedule_of(config, resolved).stage_count(),
                                !config.pipelined() ? "even" : config.split);
  ++layers.front();  // the embedding
  ++layers.back();   // the head
  return layers;
}

namespace {

// Every optimizer of kernels/rules.h can be chosen, in the same order.
template <std::size_t... i>
constexpr bool names_all_rules(std::index_sequence<i...>) {
  constexpr auto& names = EnumNames<OptimizerChoice>::kNames;
  return sizeof...(i) == names.size() &&
         ((std::variant_alternative_t<i, rules::Named>::name == names[i]) && ...);
}
static_assert(names_all_rules(std::make_index_sequence<std::variant_size_v<rules::Named>>{}));

}  // namespace
namespace {

zero::Options engine_options(const RunConfig& config, const Resolved& resolved,
                             std::shared_ptr<memory::Ledger> ledger) {
  zero::Options options;
  options.stage = config.zero;
  options.layout = config.layout;
  options.optimizer = std::visit([](const auto& rule) { return zero::Optimizer(rule); },
                                 rules::named(name(config.optimizer), config));
  options.optimizer_state = config.optimizer_state;
  options.offload = parse_offload(config.offload, config.offload_dir);
  options.policy = [](const std::string& name, const at::Tensor& param) {
    zero::ParamPolicy policy = zero::default_policy(name, param);
    policy.elementwise = !name.starts_with("blocks.");  // embeddings and the head
    return policy;
  };
  options.reduce = resolved.policy;
  options.grad_compression = config.grad_compression;
  options.clip_norm = config.clip;
  // The trainer stops the run itself, with a message that names --on-nan.
  options.on_non_finite = zero::OnNonFinite::skip;
  if (config.bucket_bytes > 0) options.bucket_bytes = config.bucket_bytes;
  options.overlap_grad_reduce = config.overlap_grad_reduce;
  options.overlap_param_gather = config.overlap_param_gather;
  options.prefetch = config.prefetch;
  options.keep_params = config.keep_params;
  options.gather = config.gather == Gather::alias  ? zero::Gather::alias
                   : config.gather == Gather::copy ? zero::Gather::copy
                                                   : zero::Gather::automatic;
  options.seed = static_cast<std::uint64_t>(config.seed);
  options.ledger = std::move(ledger);
  return options;
}

}  // namespace

std::unique_ptr<data::Source> make_source(const RunConfig& config, const Resolved& resolved) {
  auto source = data::training_source(data_options(config, resolved));
  // Samples after the last epoch pad its last batch.
  const auto end = static_cast<std::uint64_t>(resolved.total_samples);
  return end > 0 ? data::part_of(std::move(source), 0, end) : std::move(source);
}

std::unique_ptr<data::Source> make_validation_source(const RunConfig& config,
                                                     const Resolved& resolved) {
  return data::validation_source(data_options(config, resolved));
}

ParallelOptions parallel_options(const RunConfig& config, const Resolved& resolved,
                                 c10::Device device, std::shared_ptr<memory::Ledger> ledger) {
  ParallelOptions options;
  const int parts = resolved.axes.size(Axis::cp), shards = config.sequence_ranks();
  options.context =
      context_kind_for(resolved.model, config.cp_kind, resolved.axes, !device.is_cpu());
  options.sequence_parallel = config.sequence_parallel;
  options.overlap_tp = config.overlap_tp;
  options.schedule = std::string(name(config.schedule));
  options.model_chunks = static_cast<int>(config.chunks);
  options.split = layers_of_stages(config, resolved);
  options.micro_batches = static_cast<int>(resolved.grad_accum);
  options.recompute = config.recompute;
  options.dropout = config.dropout;
  options.attention_dropout = config.attention_dropout;
  options.adapter_dropout = resolved.model.lora.dropout;
  options.seed = static_cast<std::uint64_t>(config.seed);
  options.initial = models::initial_values(resolved.model);
  options.stored = with_adapters(stored_start(config), config, resolved.model);
  options.device = device;
  options.dry_boundary =
      at::empty({config.micro_batch, padded_tokens(resolved.seq, parts, shards) / parts / shards,
                 resolved.model.hidden},
                at::device(at::kMeta).dtype(resolved.layout.param == 4 ? at::kFloat
                                            : resolved.layout.fp16()   ? at::kHalf
                                                                       : at::kBFloat16));
  options.graphs = config.cuda_graph == CudaGraph::on    ? Graphs::always
                   : config.cuda_graph == CudaGraph::off ? Graphs::never
                                                         : Graphs::automatic;
  options.engine = engine_options(config, resolved, std::move(ledger));
  return options;
}

c10::Device device_of(const RunConfig& config, int rank, int ranks) {
  if (config.device == Device::cpu) return c10::Device(c10::kCPU);
  const int gpus = comm::gpu_count();
  if (gpus == 0) {
    throw UsageError(Flag("device"), "got cuda, but LibTorch finds no CUDA device; must be cpu");
  }
  return {c10::kCUDA,
          static_cast<c10::DeviceIndex>(comm::gpu_of(comm::local_rank_of(rank, ranks), gpus))};
}

// Tensor cores are slow on matrices of odd sizes.
std::int64_t vocab_multiple(const RunConfig& config) {
  if (config.vocab_multiple > 0) return config.vocab_multiple;
  return config.device == Device::cuda ? 128 : 1;
}

comm::Mesh mesh_of(const RunConfig& config, const Resolved& resolved, const comm::Group& world) {
  check_mesh(config, resolved);
  const auto parts = static_cast<int>(config.axes.model_ranks());
  return {world, resolved.axes.with_dp(world.size() / parts)};
}

void apply_threads(const RunConfig& config) {
  if (config.threads > 0) at::set_num_threads(static_cast<int>(config.threads));
}

}  // namespace tessera::train
