#include "tessera/parallel/rank_tokens.h"

#include <ATen/ops/constant_pad_nd.h>

#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::parallel {
namespace {

// Appends tokens to a tensor of whole rows [B, T, …], so that ranks get equal parts.
at::Tensor padded(const at::Tensor& rows, const RankTokens& here, const at::Scalar& value) {
  const std::int64_t missing =
      padded_tokens(rows.size(1), here.part.parts, here.shards) - rows.size(1);
  if (missing == 0) return rows;
  std::vector<std::int64_t> pad(static_cast<std::size_t>(2 * (rows.dim() - 2)), 0);
  pad.insert(pad.end(), {0, missing});
  return at::constant_pad_nd(rows, pad, value);
}

// Returns a dim of the tensors of whole rows; 0 if this rank has none of them.
std::int64_t size_of_rows(const MicroBatch& batch, std::int64_t dim) {
  std::vector<at::Tensor> tensors = inputs_of(batch);
  tensors.push_back(batch.targets);
  tensors.push_back(batch.document_starts);
  for (const at::Tensor& rows : tensors) {
    if (rows.defined() && rows.dim() > dim) return rows.size(dim);
  }
  return 0;
}

std::int64_t tokens_of_rows(const MicroBatch& batch) { return size_of_rows(batch, 1); }

}  // namespace

std::vector<at::Tensor> inputs_of(const MicroBatch& batch) {
  return batch.inputs.empty() ? std::vector{batch.input} : batch.inputs;
}

double row_weight(const MicroBatch& batch, std::size_t micros, const Axes& axes) {
  const std::int64_t rows = size_of_rows(batch, 0);
  if (rows > 0) return 1.0 / static_cast<double>(rows * axes.ranks(kDataAxes)) / micros;
  throw UsageError(
      "The model has experts with balance_loss or z_loss, so every pipeline stage needs the input "
      "or the targets of each micro-batch, to count its rows. Pass them on all ranks");
}

MicroBatch on_device(const MicroBatch& batch, c10::Device device) {
  const auto there = [&](const at::Tensor& t) {
    return t.defined() ? t.to(device, /*non_blocking=*/device.is_cuda()) : t;
  };
  MicroBatch moved{there(batch.input), there(batch.targets)};
  for (const at::Tensor& input : batch.inputs) moved.inputs.push_back(there(input));
  return moved;
}

MicroBatch tokens_of(const MicroBatch& batch, const RankTokens& here) {
  if (here.part.parts == 1) return batch;
  const std::int64_t tokens = tokens_of_rows(batch);
  const auto own = [&](const at::Tensor& rows, const char* what, const at::Scalar& pad) {
    if (!rows.defined()) return rows;
    if (rows.dim() < 2 || rows.size(1) != tokens) {
      throw UsageError(
          tessera::str("Context parallelism cuts dim 1 of inputs and targets, but the ", what,
                       " of a micro-batch is ", rows.sizes(),
                       ". All must be [batch, tokens, …] with equal tokens."));
    }
    const std::int64_t whole = padded_tokens(tokens, here.part.parts, here.shards);
    if (pad.toLong() != 0 && whole != tokens && rows.is_floating_point()) {
      throw UsageError(tessera::str("Targets of type ", c10::toString(rows.scalar_type()),
                                    " cannot be padded, so their ", tokens,
                                    " tokens must be a multiple of ",
                                    padded_tokens(1, here.part.parts, here.shards), "."));
    }
    return nn::tokens_of(here.part, padded(rows, here, pad));
  };
  MicroBatch mine = batch;
  mine.input = own(batch.input, "input", 0);
  for (at::Tensor& input : mine.inputs) input = own(input, "input", 0);
  mine.targets = own(batch.targets, "target", -1);
  return mine;
}

std::shared_ptr<nn::Pass> pass_for(const MicroBatch& batch, const RankTokens& here,
                                   c10::Device device) {
  if (!batch.document_starts.defined() && here.part.parts == 1) return nullptr;
  auto pass = std::make_shared<nn::Pass>();
  pass->part = here.part;
  pass->row_tokens = tokens_of_rows(batch);
  at::Tensor starts = batch.document_starts;
  // The padding is a document of its own.
  if (starts.defined() && here.part.parts > 1) starts = padded(starts, here, starts.size(1));
  nn::with_documents(*pass, starts, device);
  return pass;
}

std::shared_ptr<const nn::Pass> evaluation_pass(const MicroBatch& batch, const RankTokens& here,
                                                c10::Device device) {
  std::shared_ptr<const nn::Pass> open = nn::current_pass();
  std::shared_ptr<const nn::Pass> own = pass_for(batch, here, device);
  if (!own) return open;
  if (!batch.document_starts.defined() && open && open->document_starts.defined()) {
    throw UsageError(
        "With context parallelism, pass documents as MicroBatch::document_starts instead of "
        "opening a pass.");
  }
  return own;
}

void expect_numbered_rows(const nn::Pass& pass) {
  if (pass.part.parts == 1 || pass.row_tokens > 0) return;
  throw UsageError(
      "With context parallelism and attention dropout, every pipeline stage needs the input or the "
      "targets of each micro-batch, to number its rows.");
}

}  // namespace tessera::parallel
