#include "tessera/train/from_config.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <utility>

#include "tessera/comm/gpus.h"
#include "tessera/core/errors.h"
#include "tessera/models/init.h"
#include "tessera/train/adapters.h"
#include "tessera/train/init_from.h"
#include "tessera/train/mesh_check.h"

namespace tessera::train {
namespace {

zero::Options engine_options(const TrainConfig& config, const Resolved& resolved,
                             std::shared_ptr<memory::Ledger> ledger) {
  zero::Options options;
  options.stage = static_cast<int>(config.zero);
  options.layout = parse_state_layout(config.layout);
  options.optimizer = std::visit([](const auto& rule) { return zero::Optimizer(rule); },
                                 rules::named(config.optimizer, config));
  options.policy = [](const std::string& name, const at::Tensor& param) {
    zero::ParamPolicy policy = zero::default_policy(name, param);
    policy.elementwise = !name.starts_with("blocks.");  // embeddings and the head
    return policy;
  };
  options.reduce = resolved.policy;
  options.grad_compression = parse_grad_compression(config.grad_compression);
  options.power_sgd.rank = static_cast<int>(config.powersgd_rank);
  options.power_sgd.warm_up_steps = config.powersgd_warmup;
  options.clip_norm = config.clip;
  // The trainer stops the run itself, with a message that names --on-nan.
  options.on_non_finite = zero::OnNonFinite::skip;
  if (const std::int64_t bytes = planner::bucket_bytes_of(config); bytes > 0) {
    options.bucket_bytes = bytes;
  }
  options.overlap_grad_reduce = config.overlap_grad_reduce;
  options.overlap_param_gather = config.overlap_param_gather;
  options.prefetch = config.prefetch;
  options.keep_params = config.keep_params;
  options.gather = config.gather == "alias"  ? zero::Gather::alias
                   : config.gather == "copy" ? zero::Gather::copy
                                             : zero::Gather::automatic;
  options.seed = static_cast<std::uint64_t>(config.seed);
  options.ledger = std::move(ledger);
  return options;
}

}  // namespace

std::unique_ptr<data::Source> make_source(const TrainConfig& config, const Resolved& resolved) {
  auto source = data::training_source(data_options(config, resolved));
  // Samples after the last epoch pad its last batch.
  const auto end = static_cast<std::uint64_t>(resolved.total_samples);
  return end > 0 ? data::part_of(std::move(source), 0, end) : std::move(source);
}

std::unique_ptr<data::Source> make_validation_source(const TrainConfig& config,
                                                     const Resolved& resolved) {
  return data::validation_source(data_options(config, resolved));
}

ParallelOptions parallel_options(const TrainConfig& config, const Resolved& resolved,
                                 c10::Device device, std::shared_ptr<memory::Ledger> ledger) {
  ParallelOptions options;
  options.sequence_parallel = config.sequence_parallel;
  options.overlap_tp = config.overlap_tp;
  options.schedule = config.schedule;
  options.model_chunks = static_cast<int>(config.chunks);
  options.split = layers_of_stages(config, resolved);
  options.micro_batches = static_cast<int>(resolved.grad_accum);
  options.recompute = nn::parse_recompute(config.recompute);
  options.dropout = config.dropout;
  options.attention_dropout = config.attention_dropout;
  options.adapter_dropout = resolved.model.lora.dropout;
  options.seed = static_cast<std::uint64_t>(config.seed);
  options.initial = models::initial_values(resolved.model);
  options.stored = with_adapters(stored_start(config), config, resolved.model);
  options.device = device;
  options.dry_boundary = at::empty(
      {config.micro_batch, resolved.seq / (config.sequence_parallel ? resolved.axes.tp() : 1),
       resolved.model.hidden},
      at::device(at::kMeta).dtype(resolved.layout.param == 4 ? at::kFloat
                                  : resolved.layout.fp16()   ? at::kHalf
                                                             : at::kBFloat16));
  options.graphs = config.cuda_graph == "on"    ? Graphs::always
                   : config.cuda_graph == "off" ? Graphs::never
                                                : Graphs::automatic;
  options.engine = engine_options(config, resolved, std::move(ledger));
  return options;
}

c10::Device device_of(const TrainConfig& config, int rank, int ranks) {
  if (config.device == "cpu") return c10::Device(c10::kCPU);
  const int gpus = comm::gpu_count();
  if (gpus == 0) {
    throw UsageError("--device: got cuda, but LibTorch finds no CUDA device; must be cpu");
  }
  return {c10::kCUDA,
          static_cast<c10::DeviceIndex>(comm::gpu_of(comm::local_rank_of(rank, ranks), gpus))};
}

// Tensor cores are slow on matrices of odd sizes.
std::int64_t vocab_multiple(const TrainConfig& config) {
  if (config.pad_vocab > 0) return config.pad_vocab;
  return config.device == "cuda" ? 128 : 1;
}

comm::Mesh mesh_of(const TrainConfig& config, const Resolved& resolved, const comm::Group& world) {
  check_mesh(config, resolved, world.size());
  const auto parts = static_cast<int>(config.axes.model_ranks());
  return {world, resolved.axes.with_dp(world.size() / parts)};
}

void apply_threads(const TrainConfig& config) {
  if (config.threads > 0) at::set_num_threads(static_cast<int>(config.threads));
}

}  // namespace tessera::train
