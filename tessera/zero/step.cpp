// A step of the engine: its backward passes, and what follows the last of them.

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/zero/engine_impl.h"

namespace tessera::zero {
namespace {

// What every rank of a group has, side by side, for small host tensors that are not counted.
at::Tensor gathered(const comm::Group& group, const at::Tensor& mine, const char* label,
                    Stopwatch& waiting) {
  const at::Tensor all = at::empty({mine.numel() * group.size()}, mine.options());
  comm::Call call;
  call.traffic = comm::Traffic::control;
  call.label = label;
  const comm::Work work = group.all_gather(all, mine, call);
  waiting.time([&] { work.wait(); });
  return all;
}

}  // namespace

bool Engine::Impl::next_pass_reduces(int index) {
  if (!stepping) begin_step(options.micro_batches);
  if (index < 0 || index >= plan.model_chunks) {
    throw UsageError(
        str("backward: got model chunk ", index, ", wanted 0 to ", plan.model_chunks - 1));
  }
  const ModelChunk& chunk = model_chunks[static_cast<std::size_t>(index)];
  if (chunk.passes >= micro_batches) {
    throw UsageError(str("backward was called ", chunk.passes + 1, " times, but a step has ",
                         micro_batches, " micro-batches; call step(), or set micro_batches"));
  }
  if (failed) {
    throw UsageError(
        "the backward pass before this one failed, and some of its gradients may be "
        "on their way; call discard() on all ranks first");
  }
  return no_sync == 0 && (policy == ReducePolicy::each || chunk.passes + 1 == micro_batches);
}

void Engine::Impl::backward(const at::Tensor& output, const at::Tensor& gradient,
                            const BackwardPass& pass) {
  const bool is_loss = !gradient.defined();
  if (is_loss && (output.numel() != 1 || !at::isFloatingType(output.scalar_type()))) {
    throw UsageError(tessera::str("backward: got a loss of shape ", output.sizes(), " and type ",
                                  c10::toString(output.scalar_type()),
                                  ", wanted one floating-point number"));
  }
  const bool reduce = next_pass_reduces(pass.model_chunk) && !pass.deferred;
  if (!gatherer.shards() && gatherer.in_flight(0)) {
    throw UsageError(
        "the forward of this loss did not run through the engine, which had not gathered the new "
        "parameters yet: call train(x), or nn::observed(engine.root(), …), instead of the model");
  }
  for (UnitPass& unit : passes) {
    unit.params_due = unit.trainable;
    unit.uses = pass.of_one_forward ? unit.entries.most : unit.entries.sum;
    unit.leaves_due = pass.of_one_forward ? unit.leaves.most : unit.leaves.sum;
  }
  settle_scale();
  pass_under_way = pass;
  pass_reduces = reduce;
  reducer.begin_pass(pass.model_chunk, reduce);
  const at::Tensor root = is_loss ? output * scale : output;
  {
    in_backward = true;
    struct Ended {
      bool& flag;
      ~Ended() { flag = false; }
    } ended{in_backward};
    failed = true;
    if (root.requires_grad()) root.backward(gradient);
    failed = false;
  }
  reducer.end_pass();
  gatherer.end_backward();
  if (is_loss) {
    const at::Tensor value = root.detach().to(at::kDouble);
    loss_sum = loss_sum.defined() ? loss_sum + value : value;
  }
  for (UnitPass& unit : passes) unit.entries.sum = unit.leaves.sum = 0;
  ModelChunk& chunk = model_chunks[static_cast<std::size_t>(pass.model_chunk)];
  chunk.unreduced = !reduce;
  pass.deferred ? ++deferred : ++chunk.passes;
}

void Engine::Impl::settle_scale() {
  if (!tokens.defined()) return;
  scale = 0;  // should the exchange fail
  reducer.exposed().time([&] { std::exchange(tokens_known, {}).wait(); });
  const double total = std::exchange(tokens, {}).item<double>();
  if (!(total >= 0) || !std::isfinite(total)) {
    throw UsageError(str("begin: the ranks have ", total, " tokens in all, wanted 0 or more"));
  }
  scale = total > 0 ? 1.0 / total : 0.0;
}

// Other ranks, where the pass went well, have sent all its buckets: so does this one.
void Engine::Impl::end_failed_pass() {
  if (!failed) return;
  reducer.end_pass();
  ModelChunk& chunk = model_chunks[static_cast<std::size_t>(pass_under_way.model_chunk)];
  chunk.unreduced = !pass_reduces;
  if (!pass_under_way.deferred) ++chunk.passes;
}

void Engine::Impl::finish_pass(int index) {
  const bool reduce = next_pass_reduces(index);
  deferred = std::max(0, deferred - 1);
  reducer.begin_pass(index, reduce);
  for (std::size_t i = 0; i < plan.params.size(); ++i) {
    const Param& param = plan.params[i];
    if (param.bucket >= 0 && param.model_chunk == index && param.tensor.grad().defined()) {
      reducer.on_gradient(static_cast<int>(i), true);
    }
  }
  reducer.end_pass();
  ModelChunk& chunk = model_chunks[static_cast<std::size_t>(index)];
  chunk.unreduced = !reduce;
  ++chunk.passes;
}

void Engine::Impl::finish_reduction() {
  if (!stepping) begin_step(options.micro_batches);  // a rank without data has no backward
  // Ranks that had fewer micro-batches take part in the reductions of the others, with nothing.
  for (std::size_t s = 0; s < model_chunks.size(); ++s) {
    ModelChunk& chunk = model_chunks[s];
    const int missing = micro_batches - chunk.passes;
    const int due = policy == ReducePolicy::each ? missing : (missing > 0 || chunk.unreduced);
    for (int i = 0; i < std::max(due, chunk.unreduced ? 1 : 0); ++i) {
      reducer.begin_pass(static_cast<int>(s), true);
      reducer.end_pass();
    }
    chunk = {micro_batches, false};
  }
  reducer.finish();
  add_tied();
}

// Copies of one parameter in several parts of the model get the sum of their gradients. Each part
// has reduced its own by now, so that only what a rank keeps of it travels.
void Engine::Impl::add_tied() {
  if (std::exchange(tied_added, true)) return;
  for (const ModelAxes::Tie& tie : options.axes.ties) {
    for (std::size_t i = 0; i < plan.params.size(); ++i) {
      if (plan.params[i].name != tie.param || plan.params[i].bucket < 0) continue;
      const at::Tensor grad = reducer.grad_shard(static_cast<int>(i));
      if (grad.numel() == 0) continue;
      comm::Call call;
      call.label = tie.param + " (tied)";
      const comm::Work work = tie.group.all_reduce(grad, call);
      reducer.exposed().time([&] { work.wait(); });
    }
  }
}

void Engine::Impl::sum_over_model(StepInfo& info, double& squares) {
  const ModelAxes& axes = options.axes;
  if (!axes.counts_loss) info.loss = 0;
  if (axes.group.size() == 1) return;
  const at::Tensor mine = at::empty({2}, at::dtype(at::kDouble));
  mine.data_ptr<double>()[0] = squares;
  mine.data_ptr<double>()[1] = info.loss;
  const at::Tensor all =
      gathered(axes.group, mine, "norm and loss of the parts of the model", reducer.exposed());
  squares = info.loss = 0;
  for (int r = 0; r < axes.group.size(); ++r) {
    squares += all.data_ptr<double>()[2 * r];
    info.loss += all.data_ptr<double>()[2 * r + 1];
  }
}

void Engine::Impl::end_step() {
  stepping = false;
  depth = deferred = 0;
  for (UnitPass& pass : passes) {
    const int trainable = pass.trainable;
    pass = {};
    pass.trainable = trainable;
  }
}

StepInfo Engine::Impl::step(std::optional<double> lr) {
  if (failed) {
    throw UsageError("a backward pass of this step failed; call discard() on all ranks first");
  }
  finish_reduction();
  // One exchange tells all ranks the norm, the loss and which parameters anyone has used.
  constexpr int kBits = 48;  // of a double, exactly
  const std::size_t words = (plan.params.size() + kBits - 1) / kBits;
  const at::Tensor mine = at::zeros({static_cast<std::int64_t>(words) + 2}, at::dtype(at::kDouble));
  auto* values = mine.data_ptr<double>();
  optimizer_time.time([&] { values[0] = update->sum_of_squares(reducer); });
  values[1] = loss_sum.defined() ? loss_sum.item<double>() : 0;
  for (std::size_t i = 0; i < plan.params.size(); ++i) {
    if (reducer.used()[i]) values[2 + i / kBits] += std::ldexp(1.0, static_cast<int>(i % kBits));
  }
  const at::Tensor all = gathered(group, mine, "norm, loss and used parameters", reducer.exposed());
  StepInfo info;
  double squares = 0;
  std::vector<bool> used(plan.params.size());
  for (int r = 0; r < group.size(); ++r) {
    const double* theirs = all.data_ptr<double>() + r * mine.numel();
    squares += theirs[0];
    info.loss += theirs[1];
    for (std::size_t i = 0; i < plan.params.size(); ++i) {
      const auto bits = static_cast<std::uint64_t>(theirs[2 + i / kBits]);
      if ((bits >> (i % kBits)) & 1) used[i] = true;
    }
  }
  sum_over_model(info, squares);
  info.grad_norm = std::sqrt(squares);
  end_step();
  gatherer.begin_update();
  if (model->is_training() && options.broadcast_buffers) send_buffers();
  if (!std::isfinite(info.grad_norm) || !std::isfinite(info.loss)) {
    if (options.on_non_finite == OnNonFinite::stop) {
      throw Error(str("the gradient or the loss is not finite in step ", update->steps() + 1,
                      " (norm ", info.grad_norm, ", loss ", info.loss,
                      "); lower the learning rate, clip, or skip such steps "
                      "(on_non_finite = skip)"));
    }
    info.skipped = true;
    return info;
  }
  double factor = 1;
  if (options.clip_norm > 0) factor = std::min(1.0, options.clip_norm / (info.grad_norm + 1e-6));
  optimizer_time.time(
      [&] { update->apply(reducer, used, lr.value_or(update->default_lr()), factor); });
  gatherer.all_gather_updated();
  return info;
}

}  // namespace tessera::zero
