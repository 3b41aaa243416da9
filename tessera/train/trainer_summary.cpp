#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <utility>

#include "tessera/core/median.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/train/trainer_impl.h"

namespace tessera::train {
namespace {

std::string samples_of(const data::Source& source) {
  const auto samples = static_cast<std::int64_t>(source.samples_per_epoch());
  if (samples == 0) return "";
  return str(" (an epoch has ", format_grouped(samples), samples == 1 ? " sample" : " samples",
             source.separate() ? ", separate documents)" : ")");
}

}  // namespace

Summary Trainer::expected() const {
  const Impl& impl = *impl_;
  Summary out;
  const planner::RunMemory& planned = impl.plan;
  out.predicted.memory = {{"params", planned.params},       {"grads", planned.grads},
                          {"optimizer", planned.optimizer}, {"activations", planned.activations},
                          {"buffers", planned.buffers},     {"temporary", planned.temporary},
                          {"peak", planned.total()}};
  out.predicted.sent = impl.plan.sent;
  out.measured.memory = impl.measured;
  out.predicted.step_s = impl.predicted_s;
  out.run = {{"model", impl.resolved.model.name.empty() ? "gpt" : impl.resolved.model.name},
             {"parameters", str(impl.resolved.model.params())},
             {"ranks", str(impl.world.size())},
             {"zero", str(impl.config.zero)},
             {"layout", impl.config.layout.name},
             {"matmul_precision", str(impl.config.matmul_precision)},
             {"precision", str(impl.config.precision)},
             {"lr", str(impl.resolved.lr)},
             {"global_batch", str(impl.resolved.global_batch)},
             {"micro_batch", str(impl.config.micro_batch)},
             {"grad_accum", str(impl.resolved.grad_accum)},
             {"seq", str(impl.resolved.seq)},
             {"seed", str(impl.config.seed)},
             {"optimizer", str(impl.config.optimizer)},
             {"comm", str(impl.config.comm)},
             {"data", impl.config.data}};
  for (const Axis axis : kPrintedAxes) {
    out.run[std::string(axis_name(axis))] = str(impl.resolved.axes.given(axis));
  }
  return out;
}

Summary Trainer::summary() {
  Impl& impl = *impl_;
  const memory::OwnerScope owner(impl.ledger);
  impl.finish(0);
  impl.clock.pause();
  impl.engine().synchronize();
  Summary out = expected();
  impl.compare_ranks(out);
  if (impl.launched > 0) {
    SentBytes& each = out.measured.sent.emplace();
    for (const Axis axis : kAllAxes) each[axis] = impl.sent[axis] / impl.launched;
  }
  out.params_hash = hex(impl.model.params_hash(), 16);
  std::vector<double> rates, times, waits, preparations;
  for (const StepMetrics& step : impl.history) {
    rates.push_back(step.tokens_per_s());
    times.push_back(step.step_s);
    waits.push_back(step.data_s);
    preparations.push_back(step.data_prepare_s);
    out.skipped += step.skipped ? 1 : 0;
    out.saves += step.save_exposed_s ? 1 : 0;
    out.save_exposed_s += step.save_exposed_s.value_or(0);
  }
  if (out.saves > 0) out.save_exposed_s /= static_cast<double>(out.saves);
  out.tokens_per_s = median(std::move(rates));
  out.step_s = median(std::move(times));
  out.data_s = median(std::move(waits));
  out.data_prepare_s = median(std::move(preparations));
  out.evaluation = impl.evaluation;
  out.measured.step_s = out.step_s;
  out.steps = static_cast<std::int64_t>(impl.history.size());
  if (!impl.history.empty()) {
    out.first_loss = impl.history.front().loss;
    out.last_loss = impl.history.back().loss;
  }
  return out;
}

std::string Trainer::graph_note() const {
  if (impl_->device.is_cpu()) return "";
  if (impl_->model.graphed()) return "  steps ran as one CUDA graph\n";
  const std::string problem = impl_->model.graph_problem();
  return problem.empty() ? "" : str("  steps did not run as a CUDA graph: ", problem, "\n");
}

std::string Trainer::describe() const {
  const Impl& impl = *impl_;
  const ModelShape& shape = impl.resolved.model;
  const std::string scaling =
      impl.config.lr_scaling == LrScaling::none
          ? std::string()
          : str("learning rate ", impl.resolved.lr, ": ", impl.resolved.base_lr, " for a batch of ",
                impl.config.lr_reference_batch, ", ",
                impl.config.lr_scaling == LrScaling::sqrt ? "times the square root of " : "times ",
                impl.resolved.global_batch, " / ", impl.config.lr_reference_batch, "\n");
  return str(shape.name.empty() ? "GPT" : shape.name, ": ", format_count(shape.params()),
             " parameters (", plural(shape.layers, "layer"), ", width ", shape.hidden, ", ",
             plural(shape.heads, "head"), ", vocabulary ", shape.vocab, ")\n", impl.source->name(),
             samples_of(*impl.source), ": ", plural(impl.resolved.steps, "step"), " of ",
             impl.resolved.global_batch, " × ", plural(impl.resolved.seq, "token"), " = ",
             plural(impl.resolved.axes.given(Axis::dp_shard), "data-parallel rank"), " × ",
             impl.resolved.grad_accum, " × ", plural(impl.config.micro_batch, "sequence"),
             "\nZeRO-", impl.config.zero, ", ", impl.config.layout.name,
             impl.config.matmul_precision == MatmulPrecision::high ? ", fp32 products in TF32" : "",
             impl.config.precision == Precision::fp8 ? ", linears in fp8, " : ", ",
             impl.world.size() == 1 ? "one rank" : impl.world.backend(), ", ",
             plural(at::get_num_threads(), "thread"), " per rank on ",
             impl.device.is_cpu() ? "the CPU" : "a GPU", "; ", impl.model.describe(), "\n",
             scaling);
}

}  // namespace tessera::train
