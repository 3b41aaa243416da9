#include "tessera/context_parallel/attention.h"

#include "tessera/context_parallel/kinds.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/nn/ops.h"

namespace tessera::context_parallel {
namespace {

struct Sizes {
  std::int64_t heads = 0, kv_heads = 0;
};

void check_tensors(const Axis& axis, const at::Tensor& qkv, const Sizes& of,
                   const nn::AttentionOptions& options, const std::string& subject) {
  if (qkv.dim() != 3 || of.heads < 1 || of.kv_heads < 1 || of.heads % of.kv_heads != 0 ||
      qkv.size(2) % (of.heads + 2 * of.kv_heads) != 0) {
    throw UsageError(tessera::str(subject, "a tensor with ", qkv.dim(), " dims, the last of size ",
                                  qkv.dim() > 0 ? qkv.size(-1) : 0, ", for ", of.heads,
                                  " heads and ", of.kv_heads,
                                  " KV heads. The tensor must be [batch, tokens / ranks, (heads + "
                                  "2 · KV heads) · head width], and the heads a multiple of the KV "
                                  "heads."));
  }
  if (qkv.size(1) % axis.part().chunks() != 0) {
    throw UsageError(tessera::str(subject, qkv.size(1),
                                  " tokens on this rank. The number must be even: each rank holds "
                                  "two chunks of equal length."));
  }
  const std::int64_t tokens = qkv.size(1) * axis.size();
  const at::Tensor& starts = options.document_starts;
  if (starts.defined() &&
      (starts.scalar_type() != at::kInt || starts.dim() != 2 || starts.size(0) != qkv.size(0) ||
       starts.size(1) != tokens || starts.device() != qkv.device() || !starts.is_contiguous())) {
    throw UsageError(tessera::str(subject, "document starts of type ",
                                  c10::toString(starts.scalar_type()), " and size ",
                                  c10::str(starts.sizes()), " on ", starts.device().str(),
                                  ". They must be those of whole rows, contiguous int32 [",
                                  qkv.size(0), ", ", tokens, "] on ", qkv.device().str(), "."));
  }
  if (options.window < 0 || !(options.dropout.rate >= 0) || options.dropout.rate >= 1) {
    throw UsageError(tessera::str(subject, "window ", options.window, " and dropout ",
                                  options.dropout.rate,
                                  ". The window must not be negative, and dropout must be in "
                                  "[0, 1)."));
  }
}

void check_ring(const at::Tensor& qkv, const Sizes& of, const nn::AttentionOptions& options,
                const std::string& subject) {
  const auto refuse = [&](const auto&... problem) {
    throw UsageError(tessera::str(subject, problem..., " Use --cp-kind ulysses."));
  };
  if (qkv.is_cpu()) return;
  if (!qkv.is_cuda()) {
    refuse("the tensor is on ", qkv.device().str(),
           ". --cp-kind ring runs on the CPU and on CUDA devices.");
  }
  if (options.cap != 0) {
    refuse("the scores have a cap of ", options.cap,
           ", which --cp-kind ring does not support on a GPU.");
  }
  if (options.dropout.rate > 0) {
    refuse("attention dropout of ", options.dropout.rate,
           ", which --cp-kind ring does not support on a GPU.");
  }
  if (options.window > 0 && options.document_starts.defined()) {
    refuse("a window of ", options.window,
           " with packed documents, which --cp-kind ring does not support on a GPU.");
  }
  if (qkv.numel() == 0) return;
  const nn::AttentionChoice choice = ring_kernel(qkv, of.heads, of.kv_heads, options);
  if (choice.kernel == nn::AttentionKernel::none) {
    refuse("no kernel of this GPU supports --cp-kind ring here: ", choice.why, ".");
  }
}

void check_ulysses(const Axis& axis, const Sizes& of, const std::string& subject) {
  const int ranks = axis.size();
  if (of.heads % ranks == 0 && (of.kv_heads % ranks == 0 || ranks % of.kv_heads == 0)) return;
  throw UsageError(tessera::str(subject, of.heads, " heads and ", of.kv_heads, " KV heads over ",
                                ranks,
                                " ranks with --cp-kind ulysses. The ranks must divide the heads, "
                                "and divide the KV heads or be a multiple of them. Use another "
                                "--cp or --cp-kind ring."));
}

}  // namespace

at::Tensor attention(const Axis& axis, const at::Tensor& qkv, std::int64_t heads,
                     std::int64_t kv_heads, const nn::AttentionOptions& given,
                     const std::string& label) {
  if (axis.size() == 1) return nn::attention(qkv, heads, kv_heads, given);
  const std::string subject = tessera::str("Context parallelism of ", quote(label), ": ");
  check_tensors(axis, qkv, {heads, kv_heads}, given, subject);
  nn::AttentionOptions options = given;
  // The window covers everything.
  if (options.window >= qkv.size(1) * axis.size()) options.window = 0;
  if (axis.kind == ContextKind::automatic) {
    throw UsageError(tessera::str(subject, "the kind is auto. It must be ring or ulysses here."));
  }
  const bool ring = axis.kind == ContextKind::ring;
  if (ring) {
    check_ring(qkv, {heads, kv_heads}, options, subject);
  } else {
    check_ulysses(axis, {heads, kv_heads}, subject);
  }
  // There is nothing to exchange. Returns a differentiable tensor of the right size.
  if (qkv.numel() == 0) {
    return qkv.narrow(2, 0, qkv.size(2) / (heads + 2 * kv_heads) * heads).clone();
  }
  return ring ? ring_attention(axis, qkv, heads, kv_heads, options, label)
              : ulysses_attention(axis, qkv, heads, kv_heads, options, label);
}

}  // namespace tessera::context_parallel
