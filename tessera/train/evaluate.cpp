#include "tessera/train/evaluate.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <memory>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/models/language_model.h"
#include "tessera/nn/pass.h"
#include "tessera/parallel/rank_tokens.h"
#include "tessera/tensor_parallel/sharded.h"

namespace tessera::train {
namespace {

// Returns the layers of this rank, with their parameters loaded.
std::shared_ptr<models::LanguageModel> load_layers(ModelFiles& files, const comm::Mesh& mesh,
                                                   const EvaluateOptions& options) {
  ModelShape shape = files.shape();
  shape.lora = {};
  const comm::Group& stages = mesh.group(kLayerAxes);
  const int pp = stages.size(), stage = stages.rank();
  if (pp > shape.layers) {
    throw UsageError(Flag("pp"), str("got ", pp, " for a model of ", plural(shape.layers, "layer"),
                                     "; must be at most ", shape.layers));
  }
  models::Part part;
  part.tp = mesh.group(Axis::tp);
  part.cp = {mesh.group(Axis::cp), options.context};
  part.ep = mesh.group(Axis::ep);
  part.first_layer = shape.layers * stage / pp;
  part.last_layer = shape.layers * (stage + 1) / pp;
  part.embedding = stage == 0;
  part.head = stage == pp - 1;
  auto model = models::make_model(
      shape, part, 0,
      nn::ParamOptions::unallocated(at::device(options.device).dtype(options.type)));
  const std::vector<ParamSpec> specs = tensor_parallel::find_specs(*model);
  std::size_t next = 0;
  for (auto& item : model->named_parameters()) {
    const at::Tensor host = at::empty(item.value().sizes(), options.type);
    files.read(specs.at(next++), host, mesh.axes(), mesh.coordinate());
    item.value().set_data(host.to(options.device));
  }
  for (auto& item : model->named_buffers()) {
    const at::Tensor host = at::empty(item.value().sizes(), at::kFloat);
    files.read({item.key(), host.sizes().vec()}, host);
    item.value().copy_(host);
  }
  model->eval();  // routers draw random numbers in training
  return model;
}

Evaluation sum_over(const comm::Group& world, const Evaluation& own) {
  const at::Tensor mine = at::empty({2}, at::kDouble);
  mine.data_ptr<double>()[0] = own.loss_sum;
  mine.data_ptr<double>()[1] = static_cast<double>(own.tokens);
  const at::Tensor all = at::empty({2 * world.size()}, at::kDouble);
  comm::Call call;
  call.traffic = comm::Traffic::control;
  call.label = "evaluation";
  world.all_gather(all, mine, call).wait();
  Evaluation sum;
  for (int rank = 0; rank < world.size(); ++rank) {
    sum.loss_sum += all.data_ptr<double>()[2 * rank];
    sum.tokens += static_cast<std::int64_t>(all.data_ptr<double>()[2 * rank + 1]);
  }
  return sum;
}

}  // namespace

std::int64_t batches_of(const data::Source& source, std::int64_t batch, std::int64_t batches) {
  const auto samples = static_cast<std::int64_t>(source.samples_per_epoch());
  if (samples == 0) {
    if (batches > 0) return batches;
    throw UsageError(str(source.name(),
                         " is endless. Give the number of batches to evaluate (--batches, or "
                         "--eval-batches in training)."));
  }
  const std::int64_t all = (samples + batch - 1) / batch;
  return batches > 0 ? std::min(batches, all) : all;
}

Evaluation evaluate(ModelFiles& files, const data::Source& source, const comm::Mesh& mesh,
                    const EvaluateOptions& options,
                    const std::function<void(std::int64_t, std::int64_t)>& done) {
  const at::NoGradGuard no_gradients;
  const std::int64_t count = batches_of(source, options.batch, options.batches);
  const auto model = load_layers(files, mesh, options);
  const models::Part& part = model->part();
  const comm::Group& pp = mesh.group(kLayerAxes);
  const auto on_device = [&](const at::Tensor& t) {
    return t.defined() ? t.to(options.device) : t;
  };
  comm::Call call;
  call.label = "evaluation";
  const Coordinate& here = mesh.coordinate();
  const parallel::RankTokens tokens_here{{here[Axis::cp], mesh.axes().size(Axis::cp)}};
  const comm::Group& replicas = mesh.group(kDataAxes);

  Evaluation own;
  const std::int64_t rounds = (count - 1) / replicas.size() + 1;
  for (std::int64_t round = 0; round < rounds; ++round) {
    const std::int64_t mine = round * replicas.size() + replicas.rank();
    // Layers with experts are collective over replicas: one without a batch computes another's.
    const bool counts = mine < count;
    if (!counts && mesh.axes().size(Axis::ep) == 1) break;
    const std::int64_t i = std::min(mine, count - 1);
    data::Batch whole = source.batch(static_cast<std::uint64_t>(i * options.batch), options.batch);
    const MicroBatch rows{whole.ids, whole.targets, whole.document_starts};
    const nn::PassScope scope(parallel::pass_for(rows, tokens_here, options.device));
    const MicroBatch batch = parallel::tokens_of(rows, tokens_here);
    at::Tensor x = on_device(batch.input);
    if (!part.embedding) {
      x = at::empty({options.batch, batch.input.size(1), model->shape().hidden},
                    at::device(options.device).dtype(options.type));
      pp.recv(x, pp.rank() - 1, call).wait();
    }
    if (part.head) {
      const double loss = model->loss(x, on_device(batch.targets)).item<double>();
      // All tensor-parallel ranks have the same loss: only one counts it.
      if (counts && here[Axis::tp] == 0) own.loss_sum += loss;
      if (counts && here[Axis::tp] == 0 && here[Axis::cp] == 0) own.tokens += whole.predicted;
    } else {
      pp.send(model->forward_part(x).contiguous(), pp.rank() + 1, call).wait();
    }
    if (done) done(round + 1, rounds);
  }
  Evaluation all = sum_over(mesh.world(), own);
  all.bytes = static_cast<double>(all.tokens) * source.bytes_per_token();
  return all;
}

}  // namespace tessera::train
