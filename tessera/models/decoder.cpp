#include "tessera/models/decoder.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/index.h"
#include "tessera/core/lora.h"
#include "tessera/core/text.h"
#include "tessera/experts/router.h"
#include "tessera/models/language_model.h"
#include "tessera/nn/unallocated.h"
#include "tessera/tensor_parallel/sharded.h"

namespace tessera::models {
namespace {

constexpr std::size_t kCutRows =
    256;  // most tokens of a prompt that a rank computes at a time, with cp

DecoderOptions checked(const ModelShape& shape, DecoderOptions options) {
  if (options.type != at::kFloat && options.type != at::kBFloat16) {
    throw UsageError(
        str("a decoder got type ", c10::toString(options.type), "; must be float or bfloat16"));
  }
  if (options.slots < 1) throw UsageError(str("slots is ", options.slots, "; must be at least 1"));
  const std::int64_t longest = shape.longest();
  if (options.capacity == 0) options.capacity = longest > 0 ? longest : 2048;
  if (options.capacity < 1) {
    throw UsageError(str("capacity is ", options.capacity, "; must be at least 1"));
  }
  if (longest > 0 && options.capacity > longest) {
    throw UsageError(str("capacity is ", options.capacity, " tokens, but ", longest_reason(shape),
                         "; must be at most ", longest));
  }
  return options;
}

ModelShape part_of(ModelShape shape, int tp) {
  check(shape);
  check_tp(shape, tp);
  shape.head_width = shape.head_dim();
  shape.heads /= tp;
  shape.kv_heads = std::max<std::int64_t>(1, shape.kv_heads / tp);
  shape.ffn /= tp;
  return shape;
}

// Requests huge pages: every token reads all of a matrix, and larger pages need fewer TLB entries.
// Must be called before the memory is touched. Has no effect if the system does not support it.
void use_large_pages(const at::Tensor& tensor) {
  constexpr std::uintptr_t kPage = 2 << 20;
  const auto begin = reinterpret_cast<std::uintptr_t>(tensor.data_ptr());
  const std::uintptr_t end = (begin + tensor.nbytes()) / kPage * kPage;
  const std::uintptr_t first = (begin + kPage - 1) / kPage * kPage;
  if (first < end) ::madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
}

// Reads the weights of this rank: matrices in the type of the options, all others in the type
// `vectors`. Routers of experts and their buffers are fp32. Norms are the factor, which is fp32 if
// the model adds 1 to the weight.
std::map<std::string, at::Tensor> read_weights(ModelShape shape, const DecoderOptions& options,
                                               at::ScalarType vectors, const ReadParam& read) {
  shape.lora = {};  // `read` merges adapters into their matrices
  // The model defines the parameters and this rank's shards of them.
  Part part;
  part.tp = options.tp;
  const tensor_parallel::Axis axis{options.tp};
  const auto model = make_model(shape, part, 0, nn::ParamOptions::unallocated());
  const std::vector<ParamSpec> specs = tensor_parallel::find_specs(*model);
  std::map<std::string, at::Tensor> weights;
  std::size_t next = 0;
  for (const auto& item : model->named_parameters()) {
    const bool matrix = item.value().dim() > 1;
    const bool plus_one = !matrix && shape.norm_plus_one && !item.key().ends_with(".bias");
    const bool router = item.key().ends_with(".router.weight");
    at::Tensor host = at::empty(item.value().sizes(), plus_one || router ? at::kFloat
                                                      : matrix           ? options.type
                                                                         : vectors);
    use_large_pages(host);
    read(specs.at(next++), host, axis.axes(), axis.coordinate());
    if (plus_one) host += 1;
    weights[item.key()] = host.to(options.device);
  }
  for (const auto& item : model->named_buffers()) {
    const at::Tensor host = at::empty(item.value().sizes(), at::kFloat);
    read({item.key(), host.sizes().vec()}, host, axis.axes(), axis.coordinate());
    weights[item.key()] = host.to(options.device);
  }
  return weights;
}

// Returns cosines and sines, multiplied by the gain: [tokens, d].
at::Tensor rotary_table(const RotaryAngles& angles, std::int64_t tokens) {
  const std::size_t half = angles.rates.size();
  at::Tensor table = at::empty({tokens, static_cast<std::int64_t>(2 * half)}, at::kFloat);
  const auto gain = static_cast<float>(angles.gain);
  float* to = table.data_ptr<float>();
  for (std::int64_t t = 0; t < tokens; ++t, to += 2 * half) {
    for (std::size_t i = 0; i < half; ++i) {
      // In fp32, as in training.
      const float angle = static_cast<float>(t) * static_cast<float>(angles.rates[i]);
      to[i] = std::cos(angle) * gain;
      to[half + i] = std::sin(angle) * gain;
    }
  }
  return table;
}

}  // namespace

Decoder::Decoder(const ModelShape& shape, const DecoderOptions& options,
                 std::unique_ptr<DecoderOps> ops, const ReadParam& read)
    : shape_(shape),
      part_(part_of(shape, options.tp.size())),
      options_(checked(shape, options)),
      ops_(std::move(ops)),
      // Rounded as in training.
      embedding_scale_(at::scalar_tensor(shape.embedding_scale, options_.type).item<double>()),
      lengths_(as_size(options_.slots), 0) {
  auto weights = read_weights(shape, options_, ops_->traits.type, read);
  const auto take = [&](const std::string& name) {
    auto found = weights.extract(name);
    return found.empty() ? at::Tensor() : std::move(found.mapped());
  };
  const auto norm = [&](const std::string& name) {
    return nn::NormWeights{take(name + ".weight"), take(name + ".bias"), shape.norm_eps};
  };
  const auto linear = [&](const std::string& name) {
    return LinearWeights{take(name + ".weight"), take(name + ".bias")};
  };
  const auto cache = [&] {
    const std::int64_t ranks = options_.cp.size();
    const std::int64_t sizes[] = {options_.slots, part_.kv_heads,
                                  (options_.capacity + ranks - 1) / ranks, part_.head_dim()};
    const auto kind = at::device(options_.device).dtype(options_.type);
    return ops_->traits.zeroed_cache ? at::zeros(sizes, kind) : at::empty(sizes, kind);
  };
  const auto mlp = [&](const std::string& name) {
    return Mlp{linear(name + "fc"), linear(name + "proj2")};
  };
  const auto expert_layer = [&](const std::string& name, std::int64_t layer) {
    ExpertLayer result;
    if (!shape.has_experts(layer)) return result;
    result.router = take(name + "router.weight");
    result.selection_bias = take(name + "selection_bias");
    for (std::int64_t e = 0; e < shape.experts.count; ++e) {
      result.experts.push_back(mlp(str(name, e, ".")));
    }
    result.shared = mlp(name + "shared.");
    result.shared_gate = linear(name + "shared_gate");
    return result;
  };
  tok_ = take("tok.weight");
  pos_ = take("pos.weight");
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    const std::string in = str("blocks.", layer, ".");
    blocks_.push_back({.window = shape.window_of(layer),
                       .norm1 = norm(in + "norm1"),
                       .qkv = linear(in + "qkv"),
                       .q_norm = norm(in + "q_norm"),
                       .k_norm = norm(in + "k_norm"),
                       .cache = {cache(), cache(), {options_.cp.rank(), options_.cp.size()}},
                       .proj = linear(in + "proj"),
                       .post_norm1 = norm(in + "post_norm1"),
                       .norm2 = norm(in + "norm2"),
                       .mlp = mlp(in),
                       .experts = expert_layer(in + "experts.", layer),
                       .post_norm2 = norm(in + "post_norm2")});
  }
  norm_ = norm("norm");
  head_.weight = shape.tied ? tok_ : take("head.weight");
  if (!weights.empty()) {
    throw Error(str("a decoder does not support parameter ", quote(weights.begin()->first)));
  }
  for (const bool windowed : {false, true}) {
    if (!shape.rotary() || (windowed && shape.window == 0)) continue;
    rotary_[windowed ? 1 : 0] =
        rotary_table(rotary_angles(shape, windowed), options_.capacity).to(options_.device);
  }
}

at::Tensor Decoder::run_block(const Block& block, at::Tensor x) {
  const std::int64_t heads = part_.heads, kv_heads = part_.kv_heads;
  const at::Tensor qkv = ops_->linear(ops_->norm(x, block.norm1), block.qkv);
  if (part_.qk_norm) {
    ops_->norm_heads(qkv, 0, heads, block.q_norm);
    ops_->norm_heads(qkv, heads, kv_heads, block.k_norm);
  }
  if (part_.rotary()) ops_->rotate(qkv, heads + kv_heads, rotary_[block.window > 0 ? 1 : 0]);
  const double usual = 1 / std::sqrt(static_cast<double>(part_.head_dim()));
  const at::Tensor mixed =
      attend(qkv, block.cache,
             {.window = block.window,
              .scale = part_.attention_scale > 0 ? part_.attention_scale : usual,
              .cap = part_.attention_cap});
  x = end_branch(std::move(x), mixed, block.proj, block.post_norm1);
  const at::Tensor normed = ops_->norm(x, block.norm2);
  if (block.experts.router.defined()) {
    return add_branch(std::move(x), run_experts(block.experts, normed), block.post_norm2);
  }
  return end_branch(std::move(x), wide(normed, block.mlp.fc), block.mlp.proj2, block.post_norm2);
}

// Returns the activations between the matrices of an MLP.
at::Tensor Decoder::wide(const at::Tensor& x, const LinearWeights& fc) {
  return ops_->activate(ops_->linear(x, fc), part_.swiglu ? part_.gate : part_.activation,
                        part_.swiglu);
}

// Returns this rank's part of a linear whose inputs are cut over the ranks.
at::Tensor Decoder::own_linear(const at::Tensor& x, const LinearWeights& last) {
  const bool adds_bias = options_.tp.rank() == 0;
  return ops_->linear(x, {last.weight, adds_bias ? last.bias : at::Tensor()});
}

// Adds a residual branch, which ends with this linear, to x. With several ranks, each has a part of
// the linear's sum.
at::Tensor Decoder::end_branch(at::Tensor x, const at::Tensor& inner, const LinearWeights& last,
                               const nn::NormWeights& post_norm) {
  if (options_.tp.size() == 1 && !part_.post_norms)
    return ops_->add_linear(std::move(x), inner, last);
  return add_branch(std::move(x), own_linear(inner, last), post_norm);
}

// Adds a residual branch, of which each rank has a part, to x.
at::Tensor Decoder::add_branch(at::Tensor x, const at::Tensor& own,
                               const nn::NormWeights& post_norm) {
  at::Tensor branch = summed(own);
  if (part_.post_norms) branch = ops_->norm(branch, post_norm);
  return x.add_(branch);
}

// Returns this rank's part of the sum of the experts of each row: [Note: decoding with experts].
at::Tensor Decoder::run_experts(const ExpertLayer& layer, const at::Tensor& x) {
  const std::int64_t count = x.size(0), k = part_.experts.per_token;
  const experts::Chosen chosen = experts::choose_experts(ops_->router_logits(x, layer.router),
                                                         layer.selection_bias, part_.experts);
  at::Tensor sum;  // fp32
  if (layer.shared.fc.weight.defined()) {
    sum = own_linear(wide(x, layer.shared.fc), layer.shared.proj2).to(at::kFloat);
    if (layer.shared_gate.weight.defined()) {
      sum.mul_(ops_->sigmoid(ops_->linear(x, layer.shared_gate)));
    }
  } else {
    sum = at::zeros({count, shape_.hidden}, x.options().dtype(at::kFloat));
  }
  const at::Tensor on_host = chosen.experts.cpu();
  const auto* const selected = on_host.const_data_ptr<std::int32_t>();
  std::vector<std::vector<std::int64_t>> pairs(layer.experts.size());
  for (std::int64_t i = 0; i < count * k; ++i) nth(pairs, selected[i]).push_back(i);
  for (std::size_t e = 0; e < pairs.size(); ++e) {
    if (pairs[e].empty()) continue;
    const at::Tensor of_expert = at::tensor(pairs[e], at::kLong).to(x.device());
    const at::Tensor factors = chosen.weights.view({-1}).index_select(0, of_expert).unsqueeze(1);
    const at::Tensor rows = of_expert.div(k, "floor");
    const Mlp& mlp = layer.experts[e];
    const at::Tensor out = own_linear(wide(x.index_select(0, rows), mlp.fc), mlp.proj2);
    sum.index_add_(0, rows, out * factors);
  }
  return sum.to(x.scalar_type());
}

// Returns the residual stream behind the last block.
at::Tensor Decoder::hidden(std::span<const Row> rows) {
  current_ = rows;
  ops_->begin(rows);
  // With several ranks, one has the row of the token; the first adds the position.
  const int rank = options_.tp.rank();
  at::Tensor x = summed(ops_->embed(tok_, rank * tok_.size(0), rank == 0 ? pos_ : at::Tensor()));
  if (part_.embedding_scale != 1) x.mul_(embedding_scale_);
  for (const Block& block : blocks_) x = run_block(block, std::move(x));
  return x;
}

at::Tensor Decoder::logits_of(const at::Tensor& x) {
  const at::Tensor own = ops_->linear(ops_->norm(x, norm_), head_);
  at::Tensor logits = gathered(own).to(c10::kCPU, at::kFloat);
  return part_.logit_cap > 0 ? ops_->capped(std::move(logits), part_.logit_cap) : logits;
}

// Short texts run together: the numbers of a row do not depend on other rows, so each text gets the
// same numbers as alone. Longer texts run one by one, in chunks.
at::Tensor Decoder::run(Order order) {
  const at::NoGradGuard no_gradients;
  // Ranks along cp that share a text hold the scores of a chunk's rows with their part of it.
  const std::size_t ranks = as_size(options_.cp.size());
  const std::size_t most =
      ranks == 1 ? ops_->traits.most_rows : ranks * std::min(kCutRows, ops_->traits.most_rows);
  const auto is_short = [&](std::size_t text) {
    return ends_[text] - (text == 0 ? 0 : ends_[text - 1]) <= ops_->traits.most_together;
  };
  std::vector<at::Tensor> logits;
  for (std::size_t begin = 0, end = 0, text = 0; text < ends_.size(); begin = end) {
    std::vector<std::int64_t> last_rows;  // of the texts that end in rows [begin, end)
    const bool together = is_short(text);
    do {
      end = std::min(ends_[text], begin + most);
      if (end < ends_[text]) break;
      last_rows.push_back(static_cast<std::int64_t>(end - begin) - 1);
      ++text;
    } while (together && text < ends_.size() && is_short(text) && ends_[text] - begin <= most);
    const bool wanted = order == Order::all_rows || !last_rows.empty();
    const auto rows = std::span(rows_).subspan(begin, end - begin);
    at::Tensor x = together || ranks == 1 ? hidden(rows) : hidden_of_text(rows, wanted);
    if (!wanted) continue;
    if (order == Order::last_rows && last_rows.size() < end - begin) {
      const auto count = static_cast<std::int64_t>(last_rows.size());
      x = count > 1 ? x.index_select(0, at::tensor(last_rows, at::kLong))
                    : x.narrow(0, x.size(0) - count, count);
    }
    logits.push_back(logits_of(x));
  }
  return logits.size() == 1 ? logits[0] : at::cat(logits);
}

at::Tensor Decoder::run_on_ranks(Order order) {
  tell(order);
  return run(order);
}

void Decoder::check_slot(std::int64_t slot) const {
  if (slot >= 0 && slot < options_.slots) return;
  throw UsageError(str("slot is ", slot, "; must be from 0 to ", options_.slots - 1));
}

std::int64_t Decoder::length(std::int64_t slot) const {
  check_slot(slot);
  return nth(lengths_, slot);
}

void Decoder::begin_call(std::span<const std::int64_t> slots) {
  for (std::size_t i = 0; i < slots.size(); ++i) {
    check_slot(slots[i]);
    const auto here = slots.begin() + static_cast<std::ptrdiff_t>(i);
    if (std::find(slots.begin(), here, slots[i]) != here) {
      throw UsageError(str("got slot ", slots[i], " twice; slots must be different"));
    }
  }
  rows_.clear();
  ends_.clear();
}

void Decoder::extend(std::int64_t slot, std::span<const std::int64_t> tokens) {
  std::int64_t& length = nth(lengths_, slot);
  for (const std::int64_t token : tokens) {
    if (token < 0 || token >= shape_.vocab) {
      throw UsageError(str("a token is ", token, "; must be from 0 to ", shape_.vocab - 1,
                           ". The tokenizer may belong to another model."));
    }
    if (length >= options_.capacity) {
      throw UsageError(
          str("a text is longer than the decoder's capacity of ", options_.capacity, " tokens"));
    }
    rows_.push_back({slot, length++, token});
  }
  ends_.push_back(rows_.size());
}

void Decoder::replace(std::int64_t slot, std::span<const std::int64_t> tokens) {
  if (tokens.empty()) throw UsageError("a text to continue is empty; must have at least one token");
  nth(lengths_, slot) = 0;
  extend(slot, tokens);
}

at::Tensor Decoder::read(std::int64_t slot, std::span<const std::int64_t> tokens, bool all) {
  begin_call({&slot, 1});
  replace(slot, tokens);
  const at::Tensor logits = run_on_ranks(all ? Order::all_rows : Order::last_rows);
  return all ? logits : logits.select(0, 0);
}

at::Tensor Decoder::read_each(std::span<const std::int64_t> slots,
                              std::span<const std::vector<std::int64_t>> texts) {
  if (slots.empty() || slots.size() != texts.size()) {
    throw UsageError(str("got ", slots.size(), " slots and ", texts.size(),
                         " texts to read; must be one slot for each text"));
  }
  begin_call(slots);
  for (std::size_t i = 0; i < slots.size(); ++i) replace(slots[i], texts[i]);
  return run_on_ranks(Order::last_rows);
}

at::Tensor Decoder::step(std::span<const std::int64_t> slots,
                         std::span<const std::int64_t> tokens) {
  if (slots.empty() || slots.size() != tokens.size() || slots.size() > as_size(options_.slots)) {
    throw UsageError(str("a step got ", slots.size(), " slots and ", tokens.size(),
                         " tokens; must be one token for each slot, at most ", options_.slots));
  }
  begin_call(slots);
  for (std::size_t i = 0; i < slots.size(); ++i) extend(slots[i], tokens.subspan(i, 1));
  return run_on_ranks(Order::last_rows);
}

std::unique_ptr<Decoder> make_decoder(const ModelShape& shape, const DecoderOptions& options,
                                      const ReadParam& read) {
  if (!options.device.is_cpu()) return make_plain_decoder(shape, options, read);
  return std::make_unique<Decoder>(shape, options, make_kernel_ops(), read);
}

std::unique_ptr<Decoder> make_plain_decoder(const ModelShape& shape, const DecoderOptions& options,
                                            const ReadParam& read) {
  return std::make_unique<Decoder>(shape, options, make_aten_ops(options.type, options.device),
                                   read);
}

}  // namespace tessera::models
