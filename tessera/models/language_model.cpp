#include "tessera/models/language_model.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/silu.h>

#include <algorithm>
#include <cmath>

#include "tessera/core/errors.h"
#include "tessera/core/lora.h"
#include "tessera/core/text.h"
#include "tessera/models/init.h"
#include "tessera/nn/ops.h"
#include "tessera/tensor_parallel/fused_linear.h"

namespace tessera::models {
namespace {

using tensor_parallel::Axis;
using tensor_parallel::ColumnParallelLinear;
using tensor_parallel::FusedInput;
using tensor_parallel::LinearOptions;
using tensor_parallel::RowParallelLinear;
using tensor_parallel::VocabParallelEmbedding;

// Returns the factor of a norm: weight, or 1 + weight in fp32, because 16 bits would round too
// much.
at::Tensor norm_factor(const at::Tensor& weight, bool plus_one) {
  if (!plus_one) return weight;
  return (weight.scalar_type() == at::kDouble ? weight : weight.to(at::kFloat)) + 1;
}

// `norm` is {weight} or {weight, shift}.
nn::NormWeights norm_of(const ModelShape& shape, at::ArrayRef<at::Tensor> norm) {
  return {norm_factor(norm[0], shape.norm_plus_one), norm.size() == 2 ? norm[1] : at::Tensor(),
          shape.norm_eps};
}

void check_divides(const char* what, std::int64_t value, int tp, const std::string& remedy) {
  if (value % tp == 0) return;
  throw UsageError(
      str(what, " is ", value, ", which ", tp, " tensor-parallel ranks do not divide; ", remedy));
}

// Applies dropout to a branch or the embedding: [Note: dropout] in nn/pass.h.
at::Tensor dropped(const Axis& axis, const at::Tensor& x, const nn::Pass* pass,
                   const std::string& operation) {
  const nn::Dropout how = nn::dropout_of(pass, operation);
  return how.rate == 0 ? x : nn::dropout(x, how, tensor_parallel::rows_of(axis, how, x.size(1)));
}

VocabParallelEmbedding make_table(const ModelShape& shape, const Axis& axis,
                                  const nn::ParamOptions& options, std::int64_t pad_to) {
  tensor_parallel::EmbeddingOptions table;
  table.rows = shape.vocab;
  table.width = shape.hidden;
  table.label = "tok";
  table.pad_to = pad_to;
  table.tensors = options;
  return VocabParallelEmbedding(axis, table);
}

// Returns the adapters of a linear in a block ("qkv"): [Note: adapters] in core/lora.h.
std::vector<tensor_parallel::AdapterOptions> adapters_beside(const ModelShape& shape,
                                                             const std::string& linear) {
  std::vector<tensor_parallel::AdapterOptions> list;
  for (const Adapter& adapter : adapters_of(shape)) {
    if (adapter.linear != linear) continue;
    list.push_back({adapter.module, adapter.part, shape.lora.rank, shape.lora.scale()});
  }
  return list;
}

}  // namespace

void check_tp(const ModelShape& shape, int tp) {
  const std::string divisor = "choose a tp that divides it";
  check_divides("heads", shape.heads, tp, divisor);
  const auto check_width = [&](const char* what, std::int64_t width) {
    check_divides(what, width, tp, str(divisor, ", or ", what, " ", padded_vocab(width, tp)));
  };
  if (shape.expert_layers() < shape.layers) check_width("ffn", shape.ffn);
  if (shape.expert_layers() > 0) {
    check_width("expert-ffn", shape.experts.width);
    check_width("shared-expert-ffn", shape.experts.shared_width);
  }
  if (shape.kv_heads % tp != 0 && tp % shape.kv_heads != 0) {
    throw UsageError(str("kv-heads is ", shape.kv_heads, " for ", tp,
                         " tensor-parallel ranks; tp must divide it or be a multiple of it"));
  }
}

RotaryAngles rotary_angles(const ModelShape& shape, bool windowed) {
  const std::int64_t width = shape.head_dim();
  if (windowed && shape.window_rotary_base > 0) {
    return {rotary_rates(width, shape.window_rotary_base), 1};
  }
  return {rotary_rates(width, shape.rotary_base, shape.rotary_scaling),
          rotary_gain(shape.rotary_scaling)};
}

Part check_part(const ModelShape& shape, Part part) {
  check(shape);
  check_tp(shape, part.tp.size());
  if (part.last_layer == -1) part.last_layer = shape.layers;
  if (part.first_layer < 0 || part.last_layer > shape.layers ||
      part.first_layer > part.last_layer) {
    throw UsageError(str("a part has layers [", part.first_layer, ", ", part.last_layer,
                         ") of a model of ", plural(shape.layers, "layer")));
  }
  return part;
}

void check_ids(const ModelShape& shape, const at::Tensor& ids, std::int64_t whole) {
  const std::int64_t tokens = whole > 0 ? whole : ids.dim() > 0 ? ids.size(-1) : 0;
  if (ids.dim() == 2 && ids.scalar_type() == at::kLong &&
      (shape.longest() == 0 || tokens <= shape.longest())) {
    return;
  }
  const std::string most = shape.longest() == 0 ? ""
                                                : str(" with at most ", shape.longest(),
                                                      " tokens: ", longest_reason(shape));
  throw UsageError(str("the model got ids of ", ids.dim(), " dims, the last of ", tokens,
                       ", of type ", c10::toString(ids.scalar_type()),
                       "; must be int64 [batch, tokens]", most));
}

NormImpl::NormImpl(std::int64_t width, bool shift, const nn::ParamOptions& options)
    : weight(register_parameter("weight", nn::new_parameter({width}, options))) {
  if (shift) bias = register_parameter("bias", nn::new_parameter({width}, options));
}

void NormImpl::add_to(std::vector<at::Tensor>& parameters) const {
  parameters.push_back(weight);
  if (bias.defined()) parameters.push_back(bias);
}

TableImpl::TableImpl(std::int64_t rows, std::int64_t width, const nn::ParamOptions& options)
    : weight(register_parameter("weight", nn::new_parameter({rows, width}, options))) {}

BlockImpl::BlockImpl(const ModelShape& shape, const Axis& axis, const std::string& name,
                     const nn::ParamOptions& options, std::int64_t layer,
                     const context_parallel::Axis& cp, const comm::Group& ep)
    : shape_(shape),
      axis_(axis),
      cp_{cp.group,
          context_kind_for(shape, cp.kind,
                           {{tessera::Axis::tp, axis.size()}, {tessera::Axis::cp, cp.size()}})},
      name_(name),
      heads_(shape.heads / axis.size()),
      kv_heads_(std::max<std::int64_t>(1, shape.kv_heads / axis.size())),
      head_dim_(shape.head_dim()),
      window_(shape.window_of(layer)) {
  const std::int64_t width = shape.hidden, ffn = shape.ffn;
  const std::int64_t q = shape.q_width(), kv = shape.kv_width();
  if (shape.rotary()) rotary_ = rotary_angles(shape, window_ > 0);
  using Outputs = std::vector<tensor_parallel::Outputs>;
  const auto linear = [&](const char* child, std::int64_t in, std::int64_t out, bool bias,
                          const Outputs& outputs = {}) {
    return LinearOptions{.in = in,
                         .out = out,
                         .bias = bias,
                         .label = str(name, ".", child),
                         .outputs = outputs,
                         .tensors = options,
                         .adapters = adapters_beside(shape, child)};
  };
  const auto norm = [&](const char* child) {
    return register_module(child, Norm(width, shape.biases.norm, options));
  };
  norm1_ = norm("norm1");
  const Outputs heads = {{q, shape.heads}, {kv, shape.kv_heads, true}, {kv, shape.kv_heads, true}};
  qkv_ = register_module(
      "qkv", ColumnParallelLinear(axis, linear("qkv", width, q + 2 * kv, shape.biases.qkv, heads)));
  if (shape.qk_norm) {
    q_norm_ = register_module("q_norm", Norm(head_dim_, false, options));
    k_norm_ = register_module("k_norm", Norm(head_dim_, false, options));
  }
  proj_ =
      register_module("proj", RowParallelLinear(axis, linear("proj", q, width, shape.biases.out)));
  if (shape.post_norms) post_norm1_ = norm("post_norm1");
  norm2_ = norm("norm2");
  if (shape.has_experts(layer)) {
    const experts::LayerOptions experts{.hidden = width,
                                        .experts = shape.experts,
                                        .gated = shape.swiglu,
                                        .activation = shape.swiglu ? shape.gate : shape.activation,
                                        .biases = shape.biases.mlp,
                                        .label = name + ".experts",
                                        .tensors = options};
    experts_ = register_module(
        "experts", experts::MixtureOfExperts(experts::Ranks{axis, cp.group, ep}, experts));
  } else {
    const Outputs gate = shape.swiglu ? Outputs{{ffn}, {ffn}} : Outputs{};
    const std::int64_t up = (shape.swiglu ? 2 : 1) * ffn;
    fc_ = register_module(
        "fc", ColumnParallelLinear(axis, linear("fc", width, up, shape.biases.mlp, gate)));
    proj2_ = register_module(
        "proj2", RowParallelLinear(axis, linear("proj2", ffn, width, shape.biases.mlp)));
  }
  if (shape.post_norms) post_norm2_ = norm("post_norm2");
}

// Ranks have different heads, so each has a part of the gradients of these shared weights.
at::Tensor BlockImpl::normalize_heads(const at::Tensor& qkv) {
  const std::vector<at::Tensor> weights =
      tensor_parallel::copy_to(axis_.group, {q_norm_->weight, k_norm_->weight}, name_ + ".qk_norm");
  const std::int64_t q = heads_ * head_dim_, kv = kv_heads_ * head_dim_;
  const auto parts = qkv.split_with_sizes({q, kv, kv}, -1);
  const auto normed = [&](const at::Tensor& x, std::int64_t heads, const at::Tensor& weight) {
    const at::Tensor by_head = x.unflatten(-1, {heads, head_dim_}).contiguous();
    return nn::rms_norm(by_head, norm_factor(weight, shape_.norm_plus_one), shape_.norm_eps)
        .flatten(-2);
  };
  at::Tensor queries = normed(parts[0], heads_, weights[0]);
  // Attention divides by the square root of the width; other scales are applied here.
  const double scale = shape_.attention_scale * std::sqrt(static_cast<double>(head_dim_));
  if (shape_.attention_scale > 0 && scale != 1) queries = queries * scale;
  return at::cat({queries, normed(parts[1], kv_heads_, weights[1]), parts[2]}, -1);
}

at::Tensor BlockImpl::attend(at::Tensor qkv, const nn::Pass* pass) {
  nn::AttentionOptions options;
  options.window = window_;
  options.cap = shape_.attention_cap;
  if (q_norm_) {
    qkv = normalize_heads(qkv);
  } else {
    options.scale = shape_.attention_scale;
  }
  if (pass != nullptr) {
    options.document_starts = pass->document_starts;
    options.document_bounds = pass->document_bounds;
    options.longest_document = pass->longest_document;
    options.dropout = nn::attention_dropout_of(pass, name_ + ".attention");
    options.first_head = axis_.rank() * heads_;
    options.row_tokens = pass->row_tokens;
  }
  if (!rotary_.rates.empty()) {
    qkv = nn::rotary(std::move(qkv), heads_ + kv_heads_, head_dim_, rotary_.rates, rotary_.gain,
                     cp_.part());
  }
  return context_parallel::attention(cp_, qkv, heads_, kv_heads_, options, name_ + ".attention");
}

// Activation functions that are not fused with the product after them.
at::Tensor BlockImpl::activate(const at::Tensor& x) const {
  switch (shape_.activation) {
    case Activation::gelu_tanh: return nn::gelu(x);
    case Activation::gelu: return at::gelu(x, "none");
    case Activation::relu: return at::relu(x);
    case Activation::silu: return at::silu(x);
  }
  return x;
}

at::Tensor BlockImpl::gated(const at::Tensor& x) const {
  const auto parts = x.chunk(2, -1);
  return at::gelu(parts[0], shape_.gate == Activation::gelu_tanh ? "tanh" : "none") * parts[1];
}

at::Tensor BlockImpl::forward(const at::Tensor& in) {
  using Kind = nn::Operand::Kind;
  const std::shared_ptr<const nn::Pass> pass = nn::current_pass();
  std::vector<at::Tensor> norms;  // all of them, for one all-reduce
  for (const Norm& norm : {norm1_, norm2_, post_norm1_, post_norm2_}) {
    if (norm) norm->add_to(norms);
  }
  norms = tensor_parallel::sequence_parallel_params(axis_, norms, name_);
  const std::size_t each = norm1_->bias.defined() ? 2 : 1;
  const auto nth_norm = [&](std::size_t i) {
    return norm_of(shape_, at::ArrayRef<at::Tensor>(norms).slice(i * each, each));
  };
  // Ends a branch, before it is added to the residual stream.
  const auto branch = [&](at::Tensor y, std::size_t post_norm, const char* linear) {
    if (post_norm1_) y = nn::norm(y, nth_norm(post_norm));
    return dropped(axis_, y, pass.get(), name_ + linear);
  };
  // A product on a GPU adds the residual itself if nothing comes between the two.
  const bool drops = pass != nullptr && pass->dropout > 0;
  const bool adds = nn::fuses(in) && axis_.size() == 1 && !post_norm1_ && !drops;

  auto [qkv, x] = qkv_->forward_fused({.x = in, .kind = Kind::norm, .norm = nth_norm(0)});
  const at::Tensor mixed = attend(std::move(qkv), pass.get());
  FusedInput up{.x = x, .kind = Kind::norm, .norm = nth_norm(1)};
  if (adds) {
    up.x = proj_->forward_fused({.x = mixed}, x);
  } else {
    up.branch = branch(proj_->forward(mixed), 2, ".proj");
  }
  if (experts_) {
    const auto [normed, sum] = up.branch.defined() ? nn::add_norm(up.x, up.branch, up.norm)
                                                   : std::pair(nn::norm(up.x, up.norm), up.x);
    return sum + branch(experts_->forward(normed), 3, ".experts");
  }
  const bool gelu = !shape_.swiglu && shape_.activation == Activation::gelu_tanh;
  const bool gelu_adds_bias = gelu && fc_->bias.defined() && nn::gelu_adds_bias(in);
  auto [wide, sum] = fc_->forward_fused(std::move(up), !gelu_adds_bias);
  FusedInput down{.x = std::move(wide)};
  if (gelu) {
    down.kind = Kind::gelu;
    if (gelu_adds_bias) down.bias = fc_->bias;
  } else if (shape_.swiglu && shape_.gate == Activation::silu) {
    down.kind = Kind::swiglu;
  } else {
    down.x = shape_.swiglu ? gated(down.x) : activate(down.x);
  }
  if (adds) return proj2_->forward_fused(std::move(down), sum);
  return sum + branch(proj2_->forward_fused(std::move(down)), 3, ".proj2");
}

namespace {

// Rounds a value to this type.
double rounded(double value, at::ScalarType type) {
  if (type == at::kBFloat16) return static_cast<float>(c10::BFloat16(static_cast<float>(value)));
  if (type == at::kHalf) return static_cast<float>(c10::Half(static_cast<float>(value)));
  return value;
}

}  // namespace

EmbeddingImpl::EmbeddingImpl(const ModelShape& shape, const Axis& axis,
                             const nn::ParamOptions& options, std::int64_t pad_vocab_to)
    : shape_(shape), axis_(axis) {
  tok = register_module("tok", make_table(shape, axis, options, pad_vocab_to));
  if (shape.positions > 0) {
    pos_ = register_module("pos", Table(shape.positions, shape.hidden, options));
  }
}

at::Tensor EmbeddingImpl::forward(const at::Tensor& ids) {
  const std::shared_ptr<const nn::Pass> pass = nn::current_pass();
  check_ids(shape_, ids, pass == nullptr ? 0 : pass->row_tokens);
  at::Tensor x = tok->forward(ids, positions_of(ids, pass.get()));
  if (shape_.embedding_scale != 1) x = x * rounded(shape_.embedding_scale, x.scalar_type());
  return dropped(axis_, x, pass.get(), "embedding");
}

at::Tensor EmbeddingImpl::positions_of(const at::Tensor& ids, const nn::Pass* pass) const {
  if (!pos_) return {};
  const bool documents = pass != nullptr && pass->document_starts.defined();
  const SequencePart part = pass == nullptr ? SequencePart() : pass->part;
  if (!documents && part.parts == 1) return pos_->weight.narrow(0, 0, ids.size(1));
  at::Tensor positions = nn::positions_of(part, ids.size(1), ids.options().dtype(at::kInt));
  if (documents) positions = positions - nn::tokens_of(part, pass->document_starts);
  // Padding beyond the last position affects no loss.
  return at::embedding(pos_->weight, positions.clamp_max(shape_.positions - 1));
}

HeadImpl::HeadImpl(const ModelShape& shape, const Axis& axis, VocabParallelEmbedding tok,
                   const nn::ParamOptions& options, std::int64_t pad_vocab_to)
    : shape_(shape), axis_(axis) {
  if (shape.tied) {
    tok_ = register_module("tok",
                           tok.is_empty() ? make_table(shape, axis, options, pad_vocab_to) : tok);
  }
  norm_ = register_module("norm", Norm(shape.hidden, shape.biases.norm, options));
  if (shape.tied) return;
  LinearOptions head;
  head.in = shape.hidden;
  head.out = shape.vocab;
  head.bias = false;
  head.label = "head";
  head.pad_to = pad_vocab_to;
  head.tensors = options;
  head_ = register_module("head", ColumnParallelLinear(axis, head));
}

at::Tensor HeadImpl::normed(const at::Tensor& x) {
  std::vector<at::Tensor> norm;
  norm_->add_to(norm);
  norm = tensor_parallel::sequence_parallel_params(axis_, norm, "norm");
  return nn::norm(x, norm_of(shape_, norm));
}

const at::Tensor& HeadImpl::weight() const { return shape_.tied ? tok_->weight : head_->weight; }

at::Tensor HeadImpl::forward(const at::Tensor& x, const at::Tensor& targets) {
  return tensor_parallel::vocab_parallel_cross_entropy(axis_, normed(x), weight(), targets, "head",
                                                       shape_.vocab, shape_.logit_cap);
}

at::Tensor HeadImpl::logits(const at::Tensor& x) {
  const at::Tensor h = tensor_parallel::copy_to_region(axis_, normed(x), "head");
  const at::Tensor all =
      tensor_parallel::gather_columns(axis_.group, nn::linear(h, weight(), at::Tensor()), "logits")
          .narrow(-1, 0, shape_.vocab);
  return shape_.logit_cap > 0 ? (all / shape_.logit_cap).tanh() * shape_.logit_cap : all;
}

std::vector<Layer> layers_of(const ModelShape& shape, const nn::ParamOptions& options,
                             std::int64_t pad_vocab_to) {
  using torch::nn::AnyModule;
  check(shape);
  std::vector<Layer> layers;
  layers.push_back({.name = "embedding",
                    .make =
                        [=](const LayerContext& at) {
                          return AnyModule(Embedding(shape, at.tp, options, pad_vocab_to));
                        },
                    .flat = true});
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    layers.push_back(
        {.name = str("blocks.", layer), .make = [shape, options, layer](const auto& at) {
           return AnyModule(Block(shape, at.tp, at.name, options, layer, at.cp, at.ep));
         }});
  }
  Layer head{.name = "head", .make = [=](const LayerContext& at) {
               const auto embedding =
                   std::dynamic_pointer_cast<EmbeddingImpl>(at.find("embedding"));
               return AnyModule(Head(shape, at.tp,
                                     embedding ? embedding->tok : VocabParallelEmbedding(nullptr),
                                     options, pad_vocab_to));
             }};
  head.flat = true;
  if (shape.tied) head.tied["tok.weight"] = {"embedding", "tok.weight"};
  layers.push_back(std::move(head));
  if (!shape.lora.any()) return layers;
  check_lora(shape);
  for (Layer& layer : layers) {
    layer.make = [make = layer.make](const LayerContext& at) {
      AnyModule module = make(at);
      for (const auto& item : module.ptr()->named_parameters()) {
        if (!is_adapter_param(item.key())) item.value().set_requires_grad(false);
      }
      return module;
    };
  }
  return layers;
}

namespace {

std::size_t first_of(const Part& part) {
  return part.embedding ? 0 : static_cast<std::size_t>(1 + part.first_layer);
}
std::size_t end_of(const ModelShape& shape, const Part& part) {
  return static_cast<std::size_t>(part.head ? 2 + shape.layers : 1 + part.last_layer);
}

}  // namespace

LanguageModel::LanguageModel(const ModelShape& shape, std::uint64_t seed,
                             const nn::ParamOptions& options, const Part& part)
    : ModelChunkImpl(layers_of(shape, options, part.pad_vocab_to),
                     first_of(check_part(shape, part)), end_of(shape, check_part(shape, part)),
                     parallel::LayerAxes(part.axis(), part.cp, part.ep)),
      shape_(shape),
      part_(check_part(shape, part)) {
  const tensor_parallel::Axis axis{part_.tp};
  initialize(*this, shape, seed, axis.axes(), axis.coordinate());
}

at::Tensor LanguageModel::forward_part(const at::Tensor& in) {
  if (!part_.embedding &&
      (in.dim() != 3 || in.size(2) != shape_.hidden || !in.is_floating_point())) {
    throw UsageError(tessera::str("a part of a model without its embedding got ", in.sizes(),
                                  " of type ", c10::toString(in.scalar_type()),
                                  "; must be hidden states [batch, tokens, ", shape_.hidden, "]"));
  }
  return forward_layers(in, size() - (part_.head ? 1 : 0));
}

HeadImpl& LanguageModel::head() {
  if (!part_.head) {
    throw UsageError(str("layers ", part_.first_layer, " to ", part_.last_layer,
                         " of the model do not include its head. Call forward_part(), and pass the "
                         "result to the next part."));
  }
  return dynamic_cast<HeadImpl&>(layer(size() - 1));
}

at::Tensor LanguageModel::loss(const at::Tensor& x, const at::Tensor& targets) {
  HeadImpl& last = head();  // first, because it throws for a part without a head
  return last.forward(forward_part(x), targets);
}

at::Tensor LanguageModel::forward(const at::Tensor& x) {
  HeadImpl& last = head();
  return last.logits(forward_part(x));
}

std::shared_ptr<LanguageModel> make_model(const ModelShape& shape, const Part& part,
                                          std::uint64_t seed, const nn::ParamOptions& options) {
  return std::make_shared<LanguageModel>(shape, seed, options, part);
}

}  // namespace tessera::models
