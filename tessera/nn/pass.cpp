#include "tessera/nn/pass.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "tessera/core/errors.h"
#include "tessera/core/philox.h"
#include "tessera/core/text.h"

namespace tessera::nn {
namespace {

thread_local std::shared_ptr<const Pass> current;  // [Note: pass]

}  // namespace

std::shared_ptr<const Pass> current_pass() { return current; }

namespace {

class AuxiliaryLoss : public torch::autograd::Function<AuxiliaryLoss> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& loss, double weight,
                            const std::optional<at::Tensor>& scale) {
    at::Tensor gradient = at::full({}, weight, loss.options());
    if (scale) gradient = gradient * scale->to(loss.device());
    context->save_for_backward({gradient.to(loss.scalar_type()).reshape(loss.sizes())});
    return x.view_as(x);
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               const torch::autograd::tensor_list& gradients) {
    return {gradients[0], context->get_saved_variables()[0], {}, {}};
  }
};

}  // namespace

at::Tensor with_auxiliary_loss(const at::Tensor& x, const at::Tensor& loss, const Pass& pass) {
  if (pass.row_weight == 0) return x;
  const auto scale =
      pass.loss_scale.defined() ? std::optional<at::Tensor>(pass.loss_scale) : std::nullopt;
  return AuxiliaryLoss::apply(x, loss, pass.row_weight, scale);
}

void with_documents(Pass& pass, const at::Tensor& given, c10::Device device) {
  if (!given.defined()) return;
  if (given.scalar_type() != at::kInt || given.dim() != 2 || !given.is_cpu()) {
    throw UsageError(tessera::str("Document starts are ", given.sizes(), " of type ",
                                  c10::toString(given.scalar_type()), " on ", given.device().str(),
                                  ". They must be int32 [batch, tokens] on the host."));
  }
  const at::Tensor starts = given.contiguous();
  const std::int64_t rows = starts.size(0), tokens = starts.size(1);
  const std::int32_t* data = starts.const_data_ptr<std::int32_t>();
  std::vector<std::int32_t> bounds;
  for (std::int64_t b = 0; b < rows; ++b) {
    for (std::int64_t t = 0; t < tokens; ++t) {
      const std::int32_t start = data[b * tokens + t];
      const std::int32_t before = t == 0 ? 0 : data[b * tokens + t - 1];
      if (start != before && start != t) {
        throw UsageError(str("The document of token ", t, " in row ", b, " starts at ", start,
                             ". The start must be ", before, ", as for the previous token, or ", t,
                             "."));
      }
      if (start == t) bounds.push_back(static_cast<std::int32_t>(b * tokens + t));
    }
  }
  bounds.push_back(static_cast<std::int32_t>(rows * tokens));
  pass.longest_document = 0;
  for (std::size_t i = 1; i < bounds.size(); ++i) {
    pass.longest_document =
        std::max<std::int64_t>(pass.longest_document, bounds[i] - bounds[i - 1]);
  }
  const at::Tensor list = at::empty({static_cast<std::int64_t>(bounds.size())}, at::kInt);
  std::copy(bounds.begin(), bounds.end(), list.mutable_data_ptr<std::int32_t>());
  pass.document_starts = starts.to(device);
  pass.document_bounds = list.to(device);
}

void expect_whole_rows(const char* operation, const char* instead) {
  if (current == nullptr || current->part.parts == 1) return;
  throw UsageError(str(operation, ": context parallelism gives each of ", current->part.parts,
                       " ranks a part of every row, but this call treats it as whole rows. Use ",
                       instead, " with LayerContext::cp."));
}

at::Tensor tokens_of(const SequencePart& part, const at::Tensor& rows) {
  if (part.parts == 1) return rows.contiguous();
  std::vector<at::Tensor> chunks;
  for (const TokenRange& range : part.ranges(rows.size(1) / part.parts)) {
    chunks.push_back(rows.narrow(1, range.position, range.count));
  }
  return at::cat(chunks, 1);
}

at::Tensor positions_of(const SequencePart& part, std::int64_t tokens,
                        const at::TensorOptions& options) {
  if (part.parts == 1) return at::arange(tokens, options);
  std::vector<at::Tensor> ranges;
  for (const TokenRange& range : part.ranges(tokens)) {
    ranges.push_back(at::arange(range.position, range.position + range.count, options));
  }
  return at::cat(ranges);
}

namespace {

Dropout dropout_with(const Pass* pass, double rate, std::string_view operation) {
  if (rate == 0) return {};
  return {rate, pass->seed, stream_of(operation), pass->first_sample, pass->part};
}

}  // namespace

Dropout dropout_of(const Pass* pass, std::string_view operation) {
  return dropout_with(pass, pass == nullptr ? 0 : pass->dropout, operation);
}
Dropout attention_dropout_of(const Pass* pass, std::string_view operation) {
  return dropout_with(pass, pass == nullptr ? 0 : pass->attention_dropout, operation);
}
Dropout adapter_dropout_of(const Pass* pass, std::string_view operation) {
  return dropout_with(pass, pass == nullptr ? 0 : pass->adapter_dropout, operation);
}

PassScope::PassScope(std::shared_ptr<const Pass> pass)
    : before_(std::exchange(current, std::move(pass))) {}
PassScope::~PassScope() { current = std::move(before_); }

}  // namespace tessera::nn
