#include "tessera/parallel/parallelize.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "tessera/core/errors.h"
#include "tessera/core/philox.h"
#include "tessera/core/text.h"
#include "tessera/memory/allocator.h"
#include "tessera/nn/pass.h"
#include "tessera/parallel/consistency.h"
#include "tessera/parallel/cut.h"
#include "tessera/parallel/graphed_steps.h"
#include "tessera/parallel/model_experts.h"
#include "tessera/parallel/rank_tokens.h"
#include "tessera/parallel/start.h"
#include "tessera/pipeline/executor.h"
#include "tessera/zero/engine_of_part.h"

namespace tessera {

using parallel::LayerValue;
using parallel::ModelChunkImpl;

struct ParallelModel::Impl {
  Impl(std::vector<Layer> layers, comm::Mesh mesh, ParallelOptions options);

  void make_chunks(const std::vector<Layer>& layers);
  zero::ModelAxes model_axes();
  pipeline::Options pipe_options();
  LayerValue run_chunk(int chunk, const LayerValue& x, const at::Tensor& targets,
                       const FinishList* finish);
  pipeline::Value forward(int chunk, const pipeline::Value& input, int micro);
  std::vector<at::Tensor> evaluate(const std::vector<MicroBatch>& batches,
                                   const FinishList* finish);
  bool pipelined() const { return mesh.axes().pp() > 1; }
  // Returns each group once, by its unique name: tied parameters of the same ranks share a group.
  std::map<std::string, comm::Group> tied_groups() const {
    std::map<std::string, comm::Group> groups;
    for (const parallel::TieGroup& tie : ties) groups.emplace(tie.group.name(), tie.group);
    return groups;
  }
  bool drops() const {
    return options.dropout > 0 || options.attention_dropout > 0 || options.adapter_dropout > 0 ||
           own_dropout || experts.has_jitter();
  }
  void check_replicas(const std::vector<MicroBatch>& batches);
  void run_passes(int micro_batches);
  void check_count(const std::vector<MicroBatch>& batches) const;
  void start_passes(const std::vector<MicroBatch>& batches, std::uint64_t step);
  std::shared_ptr<const nn::Pass> pass_of(const MicroBatch& batch, std::size_t micro,
                                          std::size_t micros, std::uint64_t step);
  std::shared_ptr<nn::Pass> plain_pass(const MicroBatch& batch) const {
    return parallel::pass_for(batch, tokens_here, options.device);
  }
  MicroBatch here_of(const MicroBatch& batch) const {
    return parallel::tokens_of(parallel::on_device(batch, options.device), tokens_here);
  }
  zero::PendingStep step_now(const std::vector<MicroBatch>& batches, const StepNumbers& numbers);

  comm::Mesh mesh;
  ParallelOptions options;
  parallel::PipelineSplit cut;
  std::vector<std::shared_ptr<ModelChunkImpl>> chunks;
  std::vector<nn::Unit<ModelChunkImpl>> units;  // the same chunks as units, in a pipeline
  std::shared_ptr<torch::nn::Module> module;
  parallel::Start start;
  bool own_dropout = false;  // a layer here has its own dropout rate above 0
  std::int64_t checked = 0;  // number of started steps, for check_replicas()
  comm::Group model;         // the ranks that together hold one copy of the model
  comm::Group sharing;       // those that work on the same samples: also along cp
  comm::Group context;       // the ranks along cp, for attention
  parallel::RankTokens tokens_here;
  parallel::ModelExperts experts;
  std::vector<parallel::TieGroup> ties;
  std::optional<zero::Engine> engine;
  std::unique_ptr<pipeline::Executor> executor;
  std::vector<MicroBatch> batches;                      // of the current step, on the device
  std::vector<std::shared_ptr<const nn::Pass>> passes;  // by micro-batch
  std::unique_ptr<parallel::GraphedSteps> graphs;       // on a GPU, unless disabled
  std::function<void(const pipeline::Span&)> on_span;
};

namespace {

zero::StepOptions options_of(const ParallelModel::StepNumbers& numbers) {
  return {numbers.lr, numbers.clip_norm, numbers.weight_decay, numbers.lr_scale};
}

LayerValue input_of(const MicroBatch& batch) {
  return {parallel::inputs_of(batch), !batch.inputs.empty()};
}

}  // namespace

// [Note: order of composition] The pipeline splits the list of layers, tensor parallelism shapes
// each layer that this rank makes, recomputation wraps it, and ZeRO then takes over the resulting
// parameters and initializes them shard by shard.
ParallelModel::Impl::Impl(std::vector<Layer> layers, comm::Mesh m, ParallelOptions o)
    : mesh(std::move(m)),
      options(std::move(o)),
      cut(layers, mesh.axes().pp(), options),
      start(mesh, options, layers) {
  tokens_here = {{mesh.coordinate()[Axis::cp], mesh.axes().size(Axis::cp)},
                 options.sequence_parallel ? mesh.axes().tp() : 1};
  // A group of its own, so that the engine's collectives do not delay those of attention.
  if (mesh.axes().size(Axis::cp) > 1) {
    context =
        mesh.world().partition(mesh.axes().ranks_along(Axis::cp, mesh.coordinate()), "context");
  }
  std::string problem;
  try {
    make_chunks(layers);
  } catch (const UsageError& error) {
    problem = error.what();
  }
  parallel::expect_same_layers(mesh, problem, start);
  model = parallel::replica_group(mesh);
  sharing = mesh.axes().size(Axis::cp) == 1 ? model : mesh.group(AxisSet::all().without(kDataAxes));
  ties = parallel::tie_groups(layers, cut, mesh.pp());
  start.share_kept(*module, ties);
  zero::Options engine_options = options.engine;
  engine_options.initial = start.source();
  engine_options.micro_batches = options.micro_batches;
  engine = zero::Engine::of_part(module, zero::DataGroups(mesh), engine_options, model_axes());
  experts.read_biases(options.stored);
  if (options.device.is_cuda() && options.graphs != Graphs::never) {
    // All groups without a pipeline; the world may be one of them.
    std::vector<comm::Group> groups = {mesh.tp(), context, model};
    for (const auto& [name, group] : parallel::data_groups(mesh)) groups.push_back(group);
    graphs = std::make_unique<parallel::GraphedSteps>(
        options.device, pipelined(), *engine, std::move(groups),
        parallel::graph_problem(mesh.axes(), drops(), experts.wait_for_counts()));
    if (const std::string problem = graphs->problem();
        options.graphs == Graphs::always && !problem.empty()) {
      throw UsageError(str("Steps cannot run as a CUDA graph: ", problem));
    }
  }
  if (!pipelined()) return;

  std::vector<pipeline::Chunk> list;
  for (int c = 0; c < cut.schedule().chunks; ++c) {
    list.emplace_back().forward_value = [this, c](const pipeline::Value& x, int micro) {
      return forward(c, x, micro);
    };
  }
  executor = std::make_unique<pipeline::Executor>(cut.schedule(), mesh.pp(), std::move(list),
                                                  pipe_options());
}

void ParallelModel::Impl::make_chunks(const std::vector<Layer>& layers) {
  const parallel::LayerAxes axes(
      tensor_parallel::Axis{mesh.tp(), options.sequence_parallel, options.overlap_tp},
      context_parallel::Axis{context, options.context}, mesh.group(Axis::ep));
  ModelChunkImpl::Made made;
  const auto on_made = [&](const Layer& layer, parallel::LayerUnit& unit) {
    parallel::reject_torch_dropout(layer, unit.module(), mesh.axes().tp());
    parallel::reject_token_mixing(layer, unit.module(), mesh.axes().size(Axis::cp));
    own_dropout = own_dropout || parallel::has_own_dropout(unit.module());
    experts.take(static_cast<std::size_t>(&layer - layers.data()), layer.name, unit.module());
    start.take(layer, unit);
  };
  auto holder = std::make_shared<torch::nn::Module>();
  for (int c = 0; c < cut.schedule().chunks; ++c) {
    const int stage = cut.schedule().stage(mesh.coordinate().pp(), c);
    const parallel::StageLayers own = cut.layers_of(stage);
    if (pipelined()) {
      units.emplace_back(layers, own.first, own.last, axes, &made, on_made);
      chunks.push_back(units.back().ptr());
      holder->register_module(parallel::chunk_name(c), units.back().ptr());
    } else {
      chunks.push_back(
          std::make_shared<ModelChunkImpl>(layers, own.first, own.last, axes, &made, on_made));
    }
    chunks.back()->set_recompute(options.recompute);
  }
  module = pipelined() ? holder : std::static_pointer_cast<torch::nn::Module>(chunks.front());
}

zero::ModelAxes ParallelModel::Impl::model_axes() {
  zero::ModelAxes axes;
  axes.name = [this](const std::string& raw) { return start.name_of(raw); };
  if (mesh.axes().size(Axis::ep) > 1) {
    axes.expert_groups = std::make_shared<zero::DataGroups>(zero::DataGroups::of_experts(mesh));
    axes.of_expert = [this](const std::string& name) { return start.of_expert(name); };
  }
  if (model.size() == 1) return axes;
  axes.group = model;
  axes.counts_loss = mesh.coordinate().tp() == 0;
  axes.counted = [this](const std::string& name) { return start.counted(name); };
  axes.cut = [this](const std::string& name) { return start.is_cut(name); };
  if (pipelined()) {
    axes.model_chunk = [](const std::string& raw) { return parallel::chunk_of(raw); };
    axes.model_chunks = cut.schedule().chunks;
  }
  for (const auto& tie : ties) axes.ties.push_back({tie.param, tie.group});
  return axes;
}

pipeline::Options ParallelModel::Impl::pipe_options() {
  pipeline::Options pipe;
  pipe.device = options.device;
  pipe.dry_boundary = options.dry_boundary;
  const bool deferred = schedule::splits_backward(cut.schedule());
  pipe.backward = [this, deferred](const at::Tensor& root, const pipeline::Pass& pass) {
    engine->pipeline().backward(
        root, {}, {.model_chunk = pass.chunk, .deferred = deferred, .of_one_forward = true});
  };
  pipe.backward_weight = [this](const std::function<void()>& add, const pipeline::Pass& pass) {
    add();
    engine->pipeline().finish_pass(pass.chunk);
  };
  pipe.on_span = [this](const pipeline::Span& span) {
    if (on_span) on_span(span);
  };
  return pipe;
}

LayerValue ParallelModel::Impl::run_chunk(int chunk, const LayerValue& x, const at::Tensor& targets,
                                          const FinishList* finish) {
  const auto index = static_cast<std::size_t>(chunk);
  return nn::observed(
      engine->root(),
      [&](const LayerValue& in) {
        return pipelined() ? units[index]->forward(in, targets, finish)
                           : chunks[index]->forward(in, targets, finish);
      },
      x);
}

pipeline::Value ParallelModel::Impl::forward(int chunk, const pipeline::Value& input, int micro) {
  const memory::CategoryScope category(MemoryCategory::activations);
  const MicroBatch& batch = batches[static_cast<std::size_t>(micro)];
  const bool first = chunks[static_cast<std::size_t>(chunk)]->has_first();
  const nn::PassScope pass(passes[static_cast<std::size_t>(micro)]);
  auto [tensors, is_list] =
      run_chunk(chunk, first ? input_of(batch) : LayerValue(input.tensors, input.list),
                batch.targets, nullptr);
  return {std::move(tensors), is_list};
}

ParallelModel::ParallelModel(std::vector<Layer> layers, comm::Mesh mesh, ParallelOptions options) {
  parallel::expect_same_list(layers, mesh, options);
  impl_ = std::make_unique<Impl>(std::move(layers), std::move(mesh), std::move(options));
}
ParallelModel::ParallelModel(ParallelModel&&) noexcept = default;
ParallelModel& ParallelModel::operator=(ParallelModel&&) noexcept = default;
ParallelModel::~ParallelModel() = default;

zero::StepInfo ParallelModel::step(const std::vector<MicroBatch>& batches,
                                   const zero::StepOptions& options) {
  StepNumbers numbers;
  numbers.lr = options.lr;
  numbers.clip_norm = options.clip_norm;
  numbers.weight_decay = options.weight_decay;
  numbers.lr_scale = options.lr_scale;
  if (impl_->drops()) numbers.step = static_cast<std::uint64_t>(impl_->engine->steps());
  return start_step(batches, numbers).get();
}

// Runs the passes of a step, whose `batches` are on the device.
void ParallelModel::Impl::run_passes(int micro_batches) {
  if (executor) return executor->run();
  using Clock = std::chrono::steady_clock;
  for (int micro = 0; micro < micro_batches; ++micro) {
    const Clock::time_point began = Clock::now();
    const at::Tensor loss = forward(0, {}, micro).tensors[0];
    const Clock::time_point middle = Clock::now();
    if (on_span) on_span({schedule::Kind::forward, micro, 0, began, middle});
    engine->backward(loss);
    if (on_span) on_span({schedule::Kind::backward, micro, 0, middle, Clock::now()});
  }
}

std::shared_ptr<const nn::Pass> ParallelModel::Impl::pass_of(const MicroBatch& batch,
                                                             std::size_t micro, std::size_t micros,
                                                             std::uint64_t step) {
  std::shared_ptr<nn::Pass> pass = plain_pass(batch);
  if (!pass && (drops() || experts.has_losses())) pass = std::make_shared<nn::Pass>();
  if (experts.has_losses()) {
    pass->row_weight = parallel::row_weight(batch, micros, mesh.axes());
    pass->loss_scale = engine->pipeline().loss_scale();
  }
  if (!drops()) return pass;
  if (options.attention_dropout > 0) parallel::expect_numbered_rows(*pass);
  pass->dropout = options.dropout;
  pass->attention_dropout = options.attention_dropout;
  pass->adapter_dropout = options.adapter_dropout;
  // Each step uses words 0 and 1 of its own block.
  const PhiloxBlock words = Philox(options.seed, stream_of("dropout")).block(step);
  pass->seed = std::uint64_t{words[1]} << 32 | words[0];
  // Rows of a micro-batch are numbered from a multiple of 2^32, so no stage needs the batch size.
  pass->first_sample = batch.first_sample.value_or(
      (static_cast<std::uint64_t>(mesh.dp().rank()) * micros + micro) << 32);
  return pass;
}

void ParallelModel::Impl::check_count(const std::vector<MicroBatch>& given) const {
  if (!pipelined() || static_cast<int>(given.size()) == options.micro_batches) return;
  throw UsageError(str("got ", given.size(), " micro-batches, but the pipeline schedule requires ",
                       "ParallelOptions::micro_batches = ", options.micro_batches));
}

void ParallelModel::Impl::start_passes(const std::vector<MicroBatch>& given, std::uint64_t step) {
  check_count(given);
  struct Forget {
    Impl& impl;
    ~Forget() {
      impl.batches.clear();
      impl.passes.clear();
    }
  } forget{*this};
  batches.clear();
  passes.clear();
  for (const MicroBatch& batch : given) {
    passes.push_back(pass_of(batch, batches.size(), given.size(), step));
    batches.push_back(here_of(batch));
  }
  run_passes(static_cast<int>(given.size()));
}

// Called between two steps, so that no graph includes it.
void ParallelModel::Impl::check_replicas(const std::vector<MicroBatch>& given) {
  if (mesh.axes().ranks(kLockstepAxes) == 1 || options.check_replicas == 0) return;
  const std::int64_t step = checked++;
  int every = options.check_replicas;
  if (every < 0) every = options.device.is_cpu() ? 100 : 0;
  if (step > 1 && (every == 0 || step % every != 0)) return;
  parallel::Replicated own{.inputs = {}, .params = {}, .device = options.device, .steps = step};
  const int own_stage = mesh.coordinate().pp();
  const auto here = [&](int stage) { return cut.schedule().home(stage).rank == own_stage; };
  const bool first = here(0), last = here(cut.schedule().stage_count() - 1);
  for (std::size_t k = 0; k < given.size(); ++k) {
    const std::string of = str(" of micro-batch ", k);
    const auto add = [&](const char* what, const at::Tensor& values) {
      own.inputs.emplace_back(what + of, values);
    };
    for (const at::Tensor& input : parallel::inputs_of(given[k])) {
      if (first) add("input", input);
    }
    if (last) add("targets", given[k].targets);
    add("document_starts", given[k].document_starts);
  }
  own.params = parallel::replicated_params(start, *engine);
  parallel::expect_replicated(mesh, model, sharing, own);
}

zero::PendingStep ParallelModel::Impl::step_now(const std::vector<MicroBatch>& given,
                                                const StepNumbers& numbers) {
  check_count(given);
  engine->begin({.micro_batches = static_cast<int>(given.size()),
                 .tokens = parallel::counted_tokens(numbers.tokens, tokens_here)});
  start_passes(given, numbers.step);
  return engine->start_step(options_of(numbers));
}

zero::PendingStep ParallelModel::start_step(const std::vector<MicroBatch>& batches,
                                            const StepNumbers& numbers) {
  Impl& impl = *impl_;
  const bool documents = std::any_of(batches.begin(), batches.end(), [](const auto& batch) {
    return batch.document_starts.defined();
  });
  if (documents && impl.options.graphs == Graphs::always) {
    throw UsageError(
        "Steps cannot run as a CUDA graph: rows hold several documents, whose number changes from "
        "step to step. Let documents attend to each other, or do not require graphs");
  }
  impl.check_replicas(batches);
  const auto run = [&](const auto& now) { return impl.step_now(now, numbers); };
  const zero::Begin begin{.micro_batches = static_cast<int>(batches.size()),
                          .tokens = parallel::counted_tokens(numbers.tokens, impl.tokens_here)};
  zero::PendingStep pending = impl.graphs && !documents
                                  ? impl.graphs->step(begin, options_of(numbers), batches, run)
                                  : run(batches);
  end_step();
  return pending;
}

bool ParallelModel::graphed() const { return impl_->graphs && impl_->graphs->recorded(); }
std::string ParallelModel::graph_problem() const {
  return impl_->graphs                     ? impl_->graphs->problem()
         : impl_->options.device.is_cuda() ? "graphs are disabled"
                                           : "the model is not on a GPU";
}

std::vector<at::Tensor> ParallelModel::Impl::evaluate(const std::vector<MicroBatch>& given,
                                                      const FinishList* finish) {
  const at::NoGradGuard no_gradients;
  const parallel::Evaluating evaluating(chunks);
  const auto run = [&](int chunk, const pipeline::Value& input, int micro) -> pipeline::Value {
    const MicroBatch& batch = given[static_cast<std::size_t>(micro)];
    const nn::PassScope scope(parallel::evaluation_pass(batch, tokens_here, options.device));
    const MicroBatch here = here_of(batch);
    const bool first = chunks[static_cast<std::size_t>(chunk)]->has_first();
    auto [tensors, is_list] =
        run_chunk(chunk, first ? input_of(here) : LayerValue(input.tensors, input.list),
                  here.targets, finish);
    return {std::move(tensors), is_list};
  };
  std::vector<at::Tensor> outputs;
  const auto micros = static_cast<int>(given.size());
  if (!pipelined()) {
    for (int micro = 0; micro < micros; ++micro) outputs.push_back(run(0, {}, micro).tensors[0]);
    return outputs;
  }
  std::vector<pipeline::Chunk> list;
  for (int c = 0; c < cut.schedule().chunks; ++c) {
    list.emplace_back().forward_value = [&run, c](const pipeline::Value& x, int micro) {
      return run(c, x, micro);
    };
  }
  const std::vector<pipeline::Value> last =
      pipeline::run_forward(cut.schedule(), mesh.pp(), list, micros, options.device);
  for (const pipeline::Value& value : last) outputs.push_back(value.tensors[0]);
  const int owner = cut.schedule().home(cut.schedule().stage_count() - 1).rank;
  return parallel::broadcast_tensors(mesh.pp(), owner, outputs, given.size(), options.device);
}

std::vector<at::Tensor> ParallelModel::evaluate(const std::vector<MicroBatch>& batches) {
  return impl_->evaluate(batches, nullptr);
}
std::vector<at::Tensor> ParallelModel::evaluate(const std::vector<MicroBatch>& batches,
                                                const FinishList& finish) {
  return impl_->evaluate(batches, &finish);
}
std::vector<at::Tensor> ParallelModel::evaluate(const std::vector<MicroBatch>& batches,
                                                const Finish& finish) {
  const FinishList of_one = [&](torch::nn::Module& last, const std::vector<at::Tensor>& input) {
    if (input.size() == 1) return finish(last, input[0]);
    throw UsageError(str("The last layer takes ", input.size(), " tensors, but finish takes one. ",
                         "Use a finish that takes const std::vector<at::Tensor>&."));
  };
  return impl_->evaluate(batches, &of_one);
}

at::Tensor ParallelModel::predict(const at::Tensor& input, const Finish& finish) {
  return evaluate({MicroBatch{input, {}}}, finish).front();
}

void ParallelModel::run(const std::vector<MicroBatch>& batches, std::uint64_t step) {
  impl_->start_passes(batches, step);
}
zero::Engine& ParallelModel::engine() { return *impl_->engine; }
const zero::Engine& ParallelModel::engine() const { return *impl_->engine; }
const comm::Mesh& ParallelModel::mesh() const { return impl_->mesh; }
const ParallelOptions& ParallelModel::options() const { return impl_->options; }
const std::vector<ParamSpec>& ParallelModel::specs() const { return impl_->start.specs(); }
const std::vector<Run>& ParallelModel::counted(const std::string& param) const {
  return impl_->start.counted(param);
}
std::uint64_t ParallelModel::params_hash() {
  return parallel::hash_of_replica(parallel::whole_model(impl_->mesh, impl_->model),
                                   impl_->engine->params_hash());
}
void ParallelModel::end_step() { impl_->experts.end_step(impl_->mesh); }
std::vector<ExpertLoad> ParallelModel::take_expert_loads() {
  return impl_->experts.take_loads(impl_->mesh);
}

std::vector<std::pair<const char*, comm::Group>> ParallelModel::groups() const {
  // The world first: if it is also the group of an axis, that name is preferred.
  std::vector<std::pair<const char*, comm::Group>> groups = {{"all", impl_->mesh.world()}};
  for (auto& named : parallel::data_groups(impl_->mesh)) groups.push_back(std::move(named));
  groups.insert(groups.end(), {{"tp", impl_->mesh.tp()},
                               {"cp", impl_->context},
                               {"ep", impl_->mesh.group(Axis::ep)},
                               {"pp", impl_->mesh.pp()},
                               {"model", impl_->model}});
  for (const auto& [name, group] : impl_->tied_groups()) groups.emplace_back("tied", group);
  return groups;
}

ParallelModel::Sent ParallelModel::sent() const {
  Sent sent = parallel::axis_traffic(impl_->mesh);
  sent[Axis::cp] = sent[Axis::cp] + impl_->context.traffic();
  for (const auto& [name, group] : impl_->tied_groups())
    sent[Axis::pp] = sent[Axis::pp] + group.traffic();
  return sent;
}

void ParallelModel::watch(std::function<void(const pipeline::Span& span)> on_span) {
  impl_->on_span = std::move(on_span);
}

std::string ParallelModel::describe() const {
  const Impl& impl = *impl_;
  std::string text = impl.engine->describe();
  if (impl.mesh.axes().model_ranks() == 1) return text;
  text = str(impl.mesh.axes().words(" × "),
             impl.options.sequence_parallel ? ", sequence-parallel" : "",
             impl.options.overlap_tp ? ", overlapped" : "", "; ", text);
  if (impl.executor) text += str("; ", impl.executor->describe());
  return text;
}

}  // namespace tessera
