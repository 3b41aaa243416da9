#include "tessera/train/parallelize.h"

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/memory/allocator.h"
#include "tessera/pipeline/tied.h"
#include "tessera/planner/parameters.h"

namespace tessera::train {
namespace {

using Clock = std::chrono::steady_clock;

using Want = ParallelModel::Want;

at::Tensor run_part(models::LanguageModel& part, const at::Tensor& x, const at::Tensor& targets,
                    Want want) {
  switch (want) {
    case Want::hidden: return part.forward_part(x);
    case Want::loss: return part.loss(x, targets);
    case Want::logits: return part.forward(x);
  }
  return {};
}

// One chunk of a pipeline as a unit of its own: what is no block (embedding, final norm, head) is
// gathered when this chunk runs, and not when another does.
struct ChunkImpl : torch::nn::Module {
  explicit ChunkImpl(std::shared_ptr<models::LanguageModel> part)
      : model(register_module("part", std::move(part))) {}
  at::Tensor forward(const at::Tensor& x, const at::Tensor& targets, Want want) {
    return run_part(*model, x, targets, want);
  }
  std::shared_ptr<models::LanguageModel> model;
};

// "chunk1.part.blocks.3.qkv.weight"
struct ChunkName {
  int chunk = 0;
  std::string name;
};
ChunkName parse_chunk_name(const std::string& raw) {
  const std::size_t dot = raw.find('.');
  return {std::stoi(raw.substr(5, dot - 5)), raw.substr(dot + 6)};
}

schedule::Schedule make_schedule(const ParallelOptions& options) {
  if (options.pp == 1) return {};
  return schedule::make(options.schedule, options.pp, options.micro_batches, options.chunks);
}

bool splits_backward(const schedule::Schedule& schedule) {
  for (const auto& actions : schedule.actions) {
    for (const schedule::Action& action : actions) {
      if (action.kind == schedule::Kind::backward_weight) return true;
    }
  }
  return false;
}

}  // namespace

void check(const planner::ModelShape& shape, const ParallelOptions& options, int ranks) {
  const auto refuse = [](const std::string& problem) { throw UsageError(problem); };
  const int parts = options.tp * options.pp;
  if (ranks % parts != 0) {
    refuse(str("--tp ", options.tp, " × --pp ", options.pp, " = ", parts, " does not divide the ",
               ranks, " ranks; wanted ranks = dp · tp · pp"));
  }
  if (options.sequence_parallel && options.tp == 1) {
    refuse("--sequence-parallel needs --tp 2 or more: the ranks of that axis share the sequence");
  }
  if (options.overlap_tp && options.tp == 1) {
    refuse("--overlap-tp needs --tp 2 or more: it hides what the ranks of that axis send");
  }
  try {
    models::check_tp(shape, options.tp);
  } catch (const UsageError& error) {
    refuse(str("--tp ", options.tp, ": ", error.what()));
  }
  if (options.pp == 1) {
    planner::layers_of_stages(shape, 1, options.split);
    return;
  }
  const schedule::Schedule schedule = make_schedule(options);
  if (shape.layers < schedule.stage_count()) {
    refuse(str("--layers: got ", shape.layers, ", fewer than the ", schedule.stage_count(),
               " stages of --pp ", options.pp, " with ", schedule.chunks,
               " chunks; wanted a layer "
               "for each"));
  }
  planner::layers_of_stages(shape, schedule.stage_count(), options.split);
  if (options.engine.stage == 3 && splits_backward(schedule)) {
    refuse(str("--schedule ", options.schedule,
               " puts off weight gradients, and --zero 3 frees a block when it has its gradients; "
               "wanted another stage, or --schedule 1f1b"));
  }
  if (options.engine.stage == 3 && options.engine.keep_params) {
    refuse(
        "--keep-params with --pp: several micro-batches are under way, so that parameters would "
        "be kept almost always; wanted --zero 2, or no --keep-params");
  }
  const schedule::Schedule::Home first = schedule.home(0);
  if (shape.tied && schedule.home(schedule.stage_count() - 1).rank == first.rank) {
    refuse(str("--schedule ", options.schedule,
               " has the first and the last stage on one rank, where an embedding that is also the "
               "head would be trained twice; wanted a model with a head of its own, or another "
               "schedule"));
  }
}

// [Note: order of composition] Tensor parallelism shapes the layers, recomputation wraps the
// blocks, the pipeline cuts the list of blocks, and ZeRO takes whatever parameters a rank then has.
ParallelModel::ParallelModel(const planner::ModelShape& shape, const ParallelOptions& options,
                             const comm::Group& world)
    : shape_(shape),
      options_((check(shape, options, world.size()), options)),
      mesh_(world, Axes::of(world.size() / (options.tp * options.pp), options.tp, options.pp)),
      schedule_(make_schedule(options)) {
  const int chunks = options.pp == 1 ? 1 : schedule_.chunks;
  const int stages = options.pp == 1 ? 1 : schedule_.stage_count();
  const std::vector<int> layers_of_stages =
      planner::layers_of_stages(shape, stages, options.pp == 1 ? "even" : options.split);
  auto holder = std::make_shared<torch::nn::Module>();
  for (int c = 0; c < chunks; ++c) {
    const int stage = options.pp == 1 ? 0 : schedule_.stage(mesh_.place().pp(), c);
    const planner::ModelPart layers = planner::part_of_stage(layers_of_stages, stage);
    models::Part part;
    part.tp = mesh_.tp();
    part.sequence_parallel = options.sequence_parallel;
    part.overlap_tp = options.overlap_tp;
    part.first_layer = layers.first_layer;
    part.last_layer = layers.last_layer;
    part.embedding = layers.embedding;
    part.head = layers.head;
    parts_.push_back(models::make_model(shape, part, options.seed));
    if (!options.device.is_cpu()) parts_.back()->to(options.device);
    if (options.recompute != nn::Recompute::none) {
      nn::set_recompute(*parts_.back(), options.recompute);
    }
    const std::vector<ParamSpec> specs = parts_.back()->specs();
    specs_.insert(specs_.end(), specs.begin(), specs.end());
    if (options.pp > 1) holder->register_module(str("chunk", c), nn::Unit<ChunkImpl>(parts_[c]));
  }
  module_ = options.pp == 1 ? std::shared_ptr<torch::nn::Module>(parts_.front()) : holder;

  zero::Options engine = options.engine;
  engine.axes = axes();
  engine.micro_batches = options.micro_batches;
  engine_ = std::make_unique<zero::Engine>(module_, mesh_.dp(), engine);
  if (options.pp == 1) return;

  std::vector<pipeline::Chunk> list;
  for (int c = 0; c < chunks; ++c) {
    list.push_back({[this, c](const at::Tensor& x, int micro) { return forward(c, x, micro); }});
  }
  pipeline::Options pipe;
  pipe.device = options.device;
  const bool deferred = splits_backward(schedule_);
  pipe.backward = [this, deferred](const at::Tensor& root, const pipeline::Pass& pass) {
    engine_->backward(root, {},
                      {.model_chunk = pass.chunk, .deferred = deferred, .of_one_forward = true});
  };
  pipe.backward_weight = [this](const std::function<void()>& add, const pipeline::Pass& pass) {
    add();
    engine_->finish_pass(pass.chunk);
  };
  pipe.on_span = [this](const pipeline::Span& span) {
    if (on_span_) on_span_(span);
  };
  executor_ = std::make_unique<pipeline::Executor>(schedule_, mesh_.pp(), std::move(list), pipe);
}

zero::ModelAxes ParallelModel::axes() {
  zero::ModelAxes axes;
  const Place& at = mesh_.place();
  // The head's copy of a tied embedding is counted where the embedding is.
  const bool copy = options_.pp > 1 && shape_.tied && !parts_.front()->part().embedding;
  for (const ParamSpec& spec : specs_) {
    counted_[spec.name] = copy && spec.name == "tok.weight"
                              ? std::vector<Run>()
                              : counted_runs(spec, at.tp(), mesh_.axes().tp());
  }
  if (mesh_.axes().with("dp", 1).world() == 1) return axes;
  model_ = mesh_.world().split(at.dp(), at.pp() * mesh_.axes().tp() + at.tp(), "model");
  axes.group = model_;
  axes.counts_loss = at.tp() == 0;
  axes.counted = [this](const std::string& name) { return counted_.at(name); };
  if (options_.pp == 1) return axes;
  axes.model_chunk = [](const std::string& raw) { return parse_chunk_name(raw).chunk; };
  axes.name = [](const std::string& raw) { return parse_chunk_name(raw).name; };
  if (shape_.tied) {
    tied_ = pipeline::tied_group(mesh_.pp(), schedule_);
    if (tied_.size() > 1) axes.ties.push_back({"tok.weight", tied_});
  }
  return axes;
}

at::Tensor ParallelModel::run_chunk(int chunk, const at::Tensor& x, const at::Tensor& targets,
                                    Want want) {
  return nn::observed(
      engine_->root(),
      [&](const at::Tensor& in) {
        if (options_.pp == 1) return run_part(*parts_.front(), in, targets, want);
        const auto child = module_->children()[static_cast<std::size_t>(chunk)];
        return std::dynamic_pointer_cast<nn::UnitImpl<ChunkImpl>>(child)->forward(in, targets,
                                                                                  want);
      },
      x);
}

at::Tensor ParallelModel::forward(int chunk, const at::Tensor& input, int micro) {
  const memory::CategoryScope category(MemoryCategory::activations);
  const models::Part& part = parts_[static_cast<std::size_t>(chunk)]->part();
  const data::Batch& batch = batches_[static_cast<std::size_t>(micro)];
  return run_chunk(chunk, part.embedding ? batch.ids : input, batch.targets,
                   part.head ? Want::loss : Want::hidden);
}

void ParallelModel::run(const std::vector<data::Batch>& batches) {
  batches_.clear();
  for (const data::Batch& batch : batches) {
    batches_.push_back({batch.ids.to(options_.device), batch.targets.to(options_.device)});
  }
  struct Forget {
    std::vector<data::Batch>& list;
    ~Forget() { list.clear(); }
  } forget{batches_};
  if (executor_) {
    executor_->run();
    return;
  }
  for (int micro = 0; micro < static_cast<int>(batches_.size()); ++micro) {
    const Clock::time_point began = Clock::now();
    const at::Tensor loss = forward(0, {}, micro);
    const Clock::time_point middle = Clock::now();
    if (on_span_) on_span_({schedule::Kind::forward, micro, 0, began, middle});
    engine_->backward(loss);
    if (on_span_) on_span_({schedule::Kind::backward, micro, 0, middle, Clock::now()});
  }
}

// Stage after stage, each rank telling the others of its pipeline: slow, and simple.
std::int64_t ParallelModel::next_token(const at::Tensor& ids) {
  const at::NoGradGuard no_gradients;
  // Ranks that share the sequence need equal parts of it. What stands behind the last token does
  // not matter to it.
  const std::int64_t tp = options_.sequence_parallel ? mesh_.axes().tp() : 1;
  const std::int64_t tokens = (ids.size(1) + tp - 1) / tp * tp;
  at::Tensor x = at::constant_pad_nd(ids, {0, tokens - ids.size(1)}).to(options_.device);
  at::Tensor logits;
  const int stages = options_.pp == 1 ? 1 : schedule_.stage_count();
  for (int stage = 0; stage < stages; ++stage) {
    const schedule::Schedule::Home home =
        options_.pp == 1 ? schedule::Schedule::Home{} : schedule_.home(stage);
    const bool mine = home.rank == mesh_.place().pp();
    const bool head = stage + 1 == stages;
    at::Tensor out;
    if (mine) out = run_chunk(home.chunk, x, {}, head ? Want::logits : Want::hidden);
    if (options_.pp > 1) {
      const std::int64_t length = head ? tokens : tokens / tp;
      const at::ScalarType type = options_.engine.layout.param == 2 ? at::kBFloat16 : at::kFloat;
      out = mine ? out.contiguous()
                 : at::empty({1, length, head ? shape_.vocab : shape_.hidden},
                             at::device(options_.device).dtype(type));
      comm::Call call;
      call.traffic = comm::Traffic::control;
      call.label = "answer";
      mesh_.pp().broadcast(out, home.rank, call).wait();
    }
    (head ? logits : x) = out;
  }
  return logits.select(0, 0).select(0, ids.size(1) - 1).argmax().item<std::int64_t>();
}

std::vector<std::pair<const char*, comm::Group>> ParallelModel::groups() const {
  // The world first: where it is also an axis, it is better known as that.
  return {{"all", mesh_.world()}, {"dp", mesh_.dp()}, {"tp", mesh_.tp()},
          {"pp", mesh_.pp()},     {"model", model_},  {"tied", tied_}};
}

ParallelModel::Sent ParallelModel::sent() const {
  Sent sent{mesh_.dp().traffic(), mesh_.tp().traffic(), mesh_.pp().traffic()};
  sent.pp = sent.pp + tied_.traffic();
  return sent;
}

std::uint64_t ParallelModel::params_hash() {
  const std::uint64_t mine = engine_->params_hash();
  if (model_.size() == 1) return mine;
  const at::Tensor own = at::empty({1}, at::kLong);
  const at::Tensor all = at::empty({model_.size()}, at::kLong);
  std::memcpy(own.mutable_data_ptr(), &mine, sizeof mine);
  comm::Call call;
  call.traffic = comm::Traffic::control;
  call.label = "hash of the parts";
  model_.all_gather(all, own, call).wait();
  std::uint64_t hash = 0;
  for (int r = 0; r < model_.size(); ++r) {
    const auto part = static_cast<std::uint64_t>(all.const_data_ptr<std::int64_t>()[r]);
    hash = (hash ^ part) * 0x9e3779b97f4a7c15ull;
    hash ^= hash >> 29;
  }
  return hash;
}

std::string ParallelModel::describe() const {
  std::string text = engine_->describe();
  if (mesh_.axes().with("dp", 1).world() == 1) return text;
  text = str(mesh_.axes().words(" × "), options_.sequence_parallel ? ", sequence-parallel" : "",
             options_.overlap_tp ? ", overlapped" : "", "; ", text);
  if (executor_) text += str("; ", executor_->describe());
  return text;
}

}  // namespace tessera::train
