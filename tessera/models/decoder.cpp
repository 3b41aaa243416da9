#include "tessera/models/decoder.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>

#include "tessera/core/errors.h"
#include "tessera/core/index.h"
#include "tessera/core/lora.h"
#include "tessera/core/text.h"
#include "tessera/models/language_model.h"
#include "tessera/nn/unallocated.h"
#include "tessera/tensor_parallel/collectives.h"
#include "tessera/tensor_parallel/sharded.h"

namespace tessera::models {
namespace {

DecoderOptions settled(const ModelShape& shape, DecoderOptions options) {
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

comm::Call order_call() {
  comm::Call call;
  call.traffic = comm::Traffic::control;
  call.label = "what to decode";
  return call;
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

}  // namespace

Decoder::Decoder(const ModelShape& shape, const DecoderOptions& options)
    : shape_(shape),
      part_(part_of(shape, options.tp.size())),
      options_(settled(shape, options)),
      lengths_(as_size(options_.slots), 0) {}

at::Tensor Decoder::summed(const at::Tensor& partial) const {
  return alone() ? partial : tensor_parallel::all_reduce_(options_.tp, partial, "decode");
}

at::Tensor Decoder::gathered(const at::Tensor& own) const {
  if (alone()) return own;
  const std::int64_t ranks = options_.tp.size(), rows = own.size(0), columns = own.size(1);
  const at::Tensor all = at::empty({ranks, rows, columns}, own.options());
  comm::Call call;
  call.label = "logits";
  options_.tp.all_gather(all, own.contiguous(), call).wait();
  // Padding follows the last token.
  return all.transpose(0, 1)
      .reshape({rows, ranks * columns})
      .narrow(1, 0, shape_.vocab)
      .contiguous();
}

// Sends two messages. The first has a fixed length, and contains the length of the second.
void Decoder::tell(Order order, std::span<const std::size_t> ends) const {
  if (alone()) return;
  if (options_.tp.rank() != 0) {
    throw UsageError(str("rank ", options_.tp.rank(),
                         " of a decoder cannot be asked for logits. Call follow() on it, and ask "
                         "the first rank."));
  }
  const bool asks = order != Order::end;
  const std::vector<std::int64_t> head = {static_cast<std::int64_t>(order),
                                          asks ? static_cast<std::int64_t>(rows_.size()) : 0,
                                          static_cast<std::int64_t>(ends.size())};
  options_.tp.broadcast(at::tensor(head, at::kLong), 0, order_call()).wait();
  if (!asks) return;
  std::vector<std::int64_t> body;
  for (const Row& row : rows_) body.insert(body.end(), {row.slot, row.position, row.token});
  for (const std::size_t end : ends) body.push_back(static_cast<std::int64_t>(end));
  options_.tp.broadcast(at::tensor(body, at::kLong), 0, order_call()).wait();
}

void Decoder::follow() {
  if (alone() || options_.tp.rank() == 0) {
    throw UsageError("follow() cannot be called on the first rank of a decoder");
  }
  const at::Tensor head = at::empty({3}, at::kLong);
  for (;;) {
    options_.tp.broadcast(head, 0, order_call()).wait();
    const std::int64_t* const about = head.data_ptr<std::int64_t>();
    const auto order = static_cast<Order>(about[0]);
    if (order == Order::end) return;
    const std::int64_t rows = about[1], texts = about[2];
    const at::Tensor body = at::empty({3 * rows + texts}, at::kLong);
    options_.tp.broadcast(body, 0, order_call()).wait();
    const std::int64_t* from = body.data_ptr<std::int64_t>();
    rows_.clear();
    for (std::int64_t i = 0; i < rows; ++i, from += 3) rows_.push_back({from[0], from[1], from[2]});
    if (order == Order::texts) {
      const std::vector<std::size_t> ends(from, from + texts);
      run_texts(rows_, ends, at::empty({texts, shape_.vocab}, at::kFloat));
    } else {
      run(rows_, order == Order::last_row);
    }
  }
}

void Decoder::finish() { tell(Order::end); }

void Decoder::check_slot(std::int64_t slot) const {
  if (slot >= 0 && slot < options_.slots) return;
  throw UsageError(str("slot is ", slot, "; must be from 0 to ", options_.slots - 1));
}

std::int64_t Decoder::length(std::int64_t slot) const {
  check_slot(slot);
  return nth(lengths_, slot);
}

Decoder::Row Decoder::next(std::int64_t slot, std::int64_t token) {
  if (token < 0 || token >= shape_.vocab) {
    throw UsageError(str("a token is ", token, "; must be from 0 to ", shape_.vocab - 1,
                         ". The tokenizer may belong to another model."));
  }
  std::int64_t& length = nth(lengths_, slot);
  if (length >= options_.capacity) {
    throw UsageError(
        str("a text is longer than the decoder's capacity of ", options_.capacity, " tokens"));
  }
  return {slot, length++, token};
}

at::Tensor Decoder::read(std::int64_t slot, std::span<const std::int64_t> tokens, bool all) {
  check_slot(slot);
  if (tokens.empty()) throw UsageError("a text to continue is empty; must have at least one token");
  nth(lengths_, slot) = 0;
  rows_.clear();
  for (const std::int64_t token : tokens) rows_.push_back(next(slot, token));
  tell(all ? Order::rows : Order::last_row);
  return run(rows_, !all);
}

void Decoder::check_slots(std::span<const std::int64_t> slots) const {
  for (std::size_t i = 0; i < slots.size(); ++i) {
    check_slot(slots[i]);
    const auto here = slots.begin() + static_cast<std::ptrdiff_t>(i);
    if (std::find(slots.begin(), here, slots[i]) != here) {
      throw UsageError(str("got slot ", slots[i], " twice; slots must be different"));
    }
  }
}

at::Tensor Decoder::read_each(std::span<const std::int64_t> slots,
                              std::span<const std::vector<std::int64_t>> texts) {
  if (slots.empty() || slots.size() != texts.size()) {
    throw UsageError(str("got ", slots.size(), " slots and ", texts.size(),
                         " texts to read; must be one slot for each text"));
  }
  check_slots(slots);
  rows_.clear();
  std::vector<std::size_t> ends;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (texts[i].empty()) {
      throw UsageError("a text to continue is empty; must have at least one token");
    }
    nth(lengths_, slots[i]) = 0;
    for (const std::int64_t token : texts[i]) rows_.push_back(next(slots[i], token));
    ends.push_back(rows_.size());
  }
  const at::Tensor logits =
      at::empty({static_cast<std::int64_t>(slots.size()), shape_.vocab}, at::kFloat);
  tell(Order::texts, ends);
  run_texts(rows_, ends, logits);
  return logits;
}

void Decoder::run_texts(std::span<const Row> rows, std::span<const std::size_t> ends,
                        const at::Tensor& logits) {
  const at::NoGradGuard no_gradients;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    logits.select(0, static_cast<std::int64_t>(i))
        .copy_(run(rows.subspan(begin, ends[i] - begin), true));
    begin = ends[i];
  }
}

at::Tensor Decoder::step(std::span<const std::int64_t> slots,
                         std::span<const std::int64_t> tokens) {
  if (slots.empty() || slots.size() != tokens.size() || slots.size() > as_size(options_.slots)) {
    throw UsageError(str("a step got ", slots.size(), " slots and ", tokens.size(),
                         " tokens; must be one token for each slot, at most ", options_.slots));
  }
  rows_.clear();
  check_slots(slots);
  for (std::size_t i = 0; i < slots.size(); ++i) rows_.push_back(next(slots[i], tokens[i]));
  tell(Order::rows);
  return run(rows_, false);
}

DecoderWeights read_weights(const ModelShape& given, const DecoderOptions& options,
                            at::ScalarType vectors, const ReadParam& read) {
  ModelShape shape = given;
  shape.lora = {};  // `read` merges adapters into their matrices
  DecoderWeights weights;
  weights.blocks.resize(as_size(shape.layers));
  const auto place = [&](const std::string& name) -> at::Tensor* {
    const auto at = [&](const char* what, at::Tensor& tensor) -> at::Tensor* {
      return name.ends_with(what) ? &tensor : nullptr;
    };
    if (!name.starts_with("blocks.")) {
      if (name == "tok.weight") return &weights.tok;
      if (name == "pos.weight") return &weights.pos;
      if (name == "norm.weight") return &weights.norm;
      if (name == "norm.bias") return &weights.norm_bias;
      if (name == "head.weight") return &weights.head;
      return nullptr;
    }
    BlockWeights& b = weights.blocks.at(std::stoul(name.substr(7)));
    for (at::Tensor* found :
         {at(".norm1.weight", b.norm1), at(".norm1.bias", b.norm1_bias), at(".qkv.weight", b.qkv),
          at(".qkv.bias", b.qkv_bias), at(".proj.weight", b.proj), at(".proj.bias", b.proj_bias),
          at(".norm2.weight", b.norm2), at(".norm2.bias", b.norm2_bias), at(".fc.weight", b.fc),
          at(".fc.bias", b.fc_bias), at(".proj2.weight", b.proj2), at(".proj2.bias", b.proj2_bias),
          at(".q_norm.weight", b.q_norm), at(".k_norm.weight", b.k_norm),
          at(".post_norm1.weight", b.post_norm1), at(".post_norm2.weight", b.post_norm2)}) {
      if (found != nullptr) return found;
    }
    return nullptr;
  };
  // The model defines the parameters and this rank's shards of them.
  Part part;
  part.tp = options.tp;
  const tensor_parallel::Axis axis{options.tp};
  const auto model = make_model(shape, part, 0, nn::ParamOptions::unallocated());
  const std::vector<ParamSpec> specs = tensor_parallel::find_specs(*model);
  std::size_t next = 0;
  for (const auto& item : model->named_parameters()) {
    at::Tensor* const to = place(item.key());
    if (to == nullptr) {
      throw Error(str("a decoder does not support parameter ", quote(item.key())));
    }
    const bool matrix = item.value().dim() > 1;
    const bool plus_one = !matrix && shape.norm_plus_one && !item.key().ends_with(".bias");
    at::Tensor host = at::empty(item.value().sizes(), matrix     ? options.type
                                                      : plus_one ? at::kFloat
                                                                 : vectors);
    use_large_pages(host);
    read(specs.at(next++), host, axis.axes(), axis.coordinate());
    if (plus_one) host += 1;
    *to = host.to(options.device);
  }
  if (shape.tied) weights.head = weights.tok;
  return weights;
}

RotaryTable rotary_table(const ModelShape& shape, std::int64_t tokens, bool windowed) {
  const std::int64_t dim = shape.head_dim(), half = dim / 2;
  RotaryTable table{at::empty({tokens, half}, at::kFloat), at::empty({tokens, half}, at::kFloat)};
  const bool own_base = windowed && shape.window_rotary_base > 0;
  const RotaryScaling scaling = own_base ? RotaryScaling() : shape.rotary_scaling;
  const std::vector<double> rates =
      rotary_rates(dim, own_base ? shape.window_rotary_base : shape.rotary_base, scaling);
  const auto gain = static_cast<float>(rotary_gain(scaling));
  for (std::int64_t i = 0; i < half; ++i) {
    for (std::int64_t t = 0; t < tokens; ++t) {
      // In fp32, as in training.
      const float angle = static_cast<float>(t) * static_cast<float>(nth(rates, i));
      table.cos.data_ptr<float>()[t * half + i] = std::cos(angle) * gain;
      table.sin.data_ptr<float>()[t * half + i] = std::sin(angle) * gain;
    }
  }
  return table;
}

}  // namespace tessera::models
