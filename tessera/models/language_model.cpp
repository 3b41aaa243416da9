#include "tessera/models/language_model.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/models/gpt.h"
#include "tessera/models/init.h"
#include "tessera/models/llama.h"
#include "tessera/nn/ops.h"

namespace tessera::models {
namespace {

using tensor_parallel::Axis;
using tensor_parallel::ColumnParallelLinear;
using tensor_parallel::LinearOptions;
using tensor_parallel::RowParallelLinear;

// `norm` is {weight} or {weight, shift}.
at::Tensor apply_norm(const at::Tensor& x, at::ArrayRef<at::Tensor> norm) {
  return norm.size() == 2 ? nn::layer_norm(x, norm[0], norm[1]) : nn::rms_norm(x, norm[0]);
}

std::pair<at::Tensor, at::Tensor> apply_add_norm(const at::Tensor& x, const at::Tensor& r,
                                                 at::ArrayRef<at::Tensor> norm) {
  if (norm.size() == 2) return nn::add_layer_norm(x, r, norm[0], norm[1]);
  const at::Tensor sum = x + r;
  return {nn::rms_norm(sum, norm[0]), sum};
}

void check_divides(const char* what, std::int64_t value, int tp, const std::string& remedy) {
  if (value % tp == 0) return;
  throw UsageError(
      str(what, " is ", value, ", which ", tp, " tensor-parallel ranks do not divide; ", remedy));
}

// Names its children by the layer of the whole model that each is.
class BlockListImpl : public torch::nn::Module {};

}  // namespace

void check_tp(const planner::ModelShape& shape, int tp) {
  const std::string divisor = "choose a tp that divides it";
  check_divides("heads", shape.heads, tp, divisor);
  check_divides("ffn", shape.ffn, tp,
                str(divisor, ", or ffn ", planner::padded_vocab(shape.ffn, tp)));
  check_divides(
      "vocab", shape.vocab, tp,
      str(divisor, ", or pad the vocabulary to ", planner::padded_vocab(shape.vocab, tp)));
  if (shape.kv_heads % tp != 0 && tp % shape.kv_heads != 0) {
    throw UsageError(str("kv-heads is ", shape.kv_heads, " for ", tp,
                         " tensor-parallel ranks; wanted a tp that divides it or is a multiple"));
  }
}

Part check_part(const planner::ModelShape& shape, Part part) {
  planner::check(shape);
  check_tp(shape, part.tp.size());
  if (part.last_layer == -1) part.last_layer = shape.layers;
  if (part.first_layer < 0 || part.last_layer > shape.layers ||
      part.first_layer > part.last_layer) {
    throw UsageError(str("a part got layers ", part.first_layer, " to ", part.last_layer,
                         " (the last excluded) of a model of ", shape.layers));
  }
  return part;
}

void check_ids(const planner::ModelShape& shape, const at::Tensor& ids) {
  if (ids.dim() == 2 && ids.scalar_type() == at::kLong &&
      (shape.positions == 0 || ids.size(1) <= shape.positions)) {
    return;
  }
  const std::string most =
      shape.positions == 0 ? "" : str(" with at most ", shape.positions, " tokens");
  throw UsageError(str("the model got ids of ", ids.dim(), " dims, the last of ",
                       ids.dim() > 0 ? ids.size(-1) : 0, ", of type ",
                       c10::toString(ids.scalar_type()), "; wanted int64 [batch, tokens]", most));
}

NormImpl::NormImpl(std::int64_t width, bool shift, const at::TensorOptions& options)
    : weight(register_parameter("weight", at::empty({width}, options))) {
  if (shift) bias = register_parameter("bias", at::empty({width}, options));
}

void NormImpl::add_to(std::vector<at::Tensor>& parameters) const {
  parameters.push_back(weight);
  if (bias.defined()) parameters.push_back(bias);
}

TableImpl::TableImpl(std::int64_t rows, std::int64_t width, const at::TensorOptions& options)
    : weight(register_parameter("weight", at::empty({rows, width}, options))) {}

BlockImpl::BlockImpl(const planner::ModelShape& shape, const Axis& axis, const std::string& name,
                     const at::TensorOptions& options)
    : axis_(axis),
      name_(name),
      heads_(shape.heads / axis.size()),
      kv_heads_(std::max<std::int64_t>(1, shape.kv_heads / axis.size())),
      head_dim_(shape.head_dim()),
      rotary_(shape.positions == 0),
      rotary_base_(shape.rotary_base),
      swiglu_(shape.swiglu) {
  const std::int64_t width = shape.hidden, ffn = shape.ffn, kv = shape.kv_heads * head_dim_;
  LinearOptions linear;
  linear.bias = shape.biases;
  linear.tensors = options;
  const auto named = [&](const char* child) {
    linear.label = str(name, ".", child);
    return child;
  };
  norm1_ = register_module("norm1", Norm(width, shape.biases, options));
  linear.in = width;
  linear.out = width + 2 * kv;
  linear.outputs = {{width, shape.heads}, {kv, shape.kv_heads, true}, {kv, shape.kv_heads, true}};
  qkv_ = register_module(named("qkv"), ColumnParallelLinear(axis, linear));
  linear.out = width;
  linear.outputs = {};
  proj_ = register_module(named("proj"), RowParallelLinear(axis, linear));
  norm2_ = register_module("norm2", Norm(width, shape.biases, options));
  linear.out = (swiglu_ ? 2 : 1) * ffn;
  if (swiglu_) linear.outputs = {{ffn}, {ffn}};
  fc_ = register_module(named("fc"), ColumnParallelLinear(axis, linear));
  linear.in = ffn;
  linear.out = width;
  linear.outputs = {};
  proj2_ = register_module(named("proj2"), RowParallelLinear(axis, linear));
}

at::Tensor BlockImpl::forward(const at::Tensor& x) {
  std::vector<at::Tensor> norms;  // of both, in one all-reduce
  norm1_->add_to(norms);
  norm2_->add_to(norms);
  norms = tensor_parallel::sequence_parallel_params(axis_, norms, name_);
  const at::ArrayRef<at::Tensor> all(norms);
  const at::Tensor before = apply_norm(x, all.slice(0, all.size() / 2));
  at::Tensor qkv = qkv_->forward(before);
  if (rotary_) qkv = nn::rotary(qkv, heads_ + kv_heads_, head_dim_, rotary_base_);
  const at::Tensor mixed = nn::attention(qkv, heads_, kv_heads_);
  const auto [h, sum] = apply_add_norm(x, proj_->forward(mixed), all.slice(all.size() / 2));
  const at::Tensor wide = swiglu_ ? nn::swiglu(fc_->forward(h)) : fc_->forward_gelu(h);
  return sum + proj2_->forward(wide);
}

LanguageModel::LanguageModel(const planner::ModelShape& shape, std::uint64_t seed,
                             const at::TensorOptions& options, const Part& part)
    : shape_(shape), part_(check_part(shape, part)) {
  const Axis axis = part_.axis();
  if (part_.embedding || (part_.head && shape.tied)) {
    tensor_parallel::EmbeddingOptions table;
    table.rows = shape.vocab;
    table.width = shape.hidden;
    table.label = "tok";
    table.tensors = options;
    tok_ = register_module("tok", tensor_parallel::VocabParallelEmbedding(axis, table));
  }
  if (part_.embedding && shape.positions > 0) {
    pos_ = register_module("pos", Table(shape.positions, shape.hidden, options));
  }
  const auto list = register_module("blocks", std::make_shared<BlockListImpl>());
  for (std::int64_t layer = part_.first_layer; layer < part_.last_layer; ++layer) {
    blocks_.emplace_back(shape, axis, str("blocks.", layer), options);
    list->register_module(std::to_string(layer), blocks_.back().ptr());
  }
  if (part_.head) {
    norm_ = register_module("norm", Norm(shape.hidden, shape.biases, options));
    if (!shape.tied) {
      LinearOptions head;
      head.in = shape.hidden;
      head.out = shape.vocab;
      head.bias = false;
      head.label = "head";
      head.tensors = options;
      head_ = register_module("head", ColumnParallelLinear(axis, head));
    }
  }
  initialise(*this, shape, seed, part_.tp.rank(), part_.tp.size());
}

at::Tensor LanguageModel::forward_part(const at::Tensor& in) {
  at::Tensor x = in;
  if (part_.embedding) {
    check_ids(shape_, in);
    x = tok_->forward(in, pos_ ? pos_->weight.narrow(0, 0, in.size(1)) : at::Tensor());
  } else if (in.dim() != 3 || in.size(2) != shape_.hidden || !in.is_floating_point()) {
    throw UsageError(tessera::str("a part of a model without its embedding got ", in.sizes(),
                                  " of type ", c10::toString(in.scalar_type()),
                                  "; wanted hidden states [batch, tokens, ", shape_.hidden, "]"));
  }
  for (auto& block : blocks_) x = block->forward(x);
  return x;
}

at::Tensor LanguageModel::normed(const at::Tensor& x) {
  std::vector<at::Tensor> norm;
  norm_->add_to(norm);
  return apply_norm(x, tensor_parallel::sequence_parallel_params(part_.axis(), norm, "norm"));
}

const at::Tensor& LanguageModel::head_weight() const {
  if (!part_.head) {
    throw UsageError(str("layers ", part_.first_layer, " to ", part_.last_layer,
                         " of the model are without its head; call forward_part, and pass the "
                         "result on"));
  }
  return shape_.tied ? tok_->weight : head_->weight;
}

at::Tensor LanguageModel::loss(const at::Tensor& x, const at::Tensor& targets) {
  const at::Tensor weight = head_weight();  // first: it refuses a part without a head
  return tensor_parallel::vocab_parallel_cross_entropy(part_.axis(), normed(forward_part(x)),
                                                       weight, targets, "head");
}

at::Tensor LanguageModel::forward(const at::Tensor& x) {
  const at::Tensor weight = head_weight();
  const at::Tensor h =
      tensor_parallel::copy_to_region(part_.axis(), normed(forward_part(x)), "head");
  return tensor_parallel::gather_columns(part_.tp, nn::linear(h, weight, at::Tensor()), "logits");
}

std::shared_ptr<LanguageModel> make_model(const planner::ModelShape& shape, const Part& part,
                                          std::uint64_t seed, const at::TensorOptions& options) {
  if (is_llama(shape)) return std::make_shared<LlamaImpl>(shape, seed, options, part);
  return std::make_shared<GptImpl>(shape, seed, options, part);
}

}  // namespace tessera::models
