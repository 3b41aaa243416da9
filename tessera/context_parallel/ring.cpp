// [Note: context parallelism], ring.

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "tessera/context_parallel/kinds.h"
#include "tessera/context_parallel/ring_blocks.h"
#include "tessera/nn/attention_part.h"
#include "tessera/nn/gpu_attention_part.h"
#include "tessera/nn/recompute.h"
#include "tessera/nn/second_derivatives.h"

namespace tessera::context_parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

// Everything but the tensors.
struct Ring : torch::CustomClassHolder {
  comm::Group group;
  std::int64_t heads = 0, kv_heads = 0;
  nn::AttentionOptions options;
  nn::AttentionKernel kernel = nn::AttentionKernel::none;  // on a GPU
  RingShape shape = {};                                    // on a GPU
  std::string label;

  int size() const { return group.size(); }
  int next() const { return (group.rank() + 1) % size(); }
  int previous() const { return (group.rank() + size() - 1) % size(); }
  // Returns the rank whose keys are here at a step.
  int owner(int step) const { return (group.rank() + size() - step) % size(); }
  nn::GpuPart part_of(const RingBlock& block) const {
    return {kernel, block.causal, block.left, options.scale};
  }
};
using RingPointer = c10::intrusive_ptr<Ring>;

comm::Call call_of(const Ring& ring, const char* tensor) {
  comm::Call call;
  call.label = ring.label + " " + tensor;
  return call;
}

// Tensor that arrives from the previous rank, while another is on its way to the next one.
struct Transfer {
  at::Tensor arriving;
  comm::Work received, sent = {};

  at::Tensor wait() const {
    sent.wait();
    received.wait();
    return arriving;
  }
};
constexpr const char* keys_name = "keys and values";
constexpr const char* gradients_name = "gradients of keys and values";

Transfer start_receiving(const Ring& ring, const at::Tensor& buffer, const char* name) {
  return {buffer, ring.group.recv(buffer, ring.previous(), call_of(ring, name))};
}
// Starts the transfer of the next keys, except at the last step.
std::optional<Transfer> start_next_keys(const Ring& ring, const at::Tensor& keys, int step) {
  if (step + 1 == ring.size()) return std::nullopt;
  Transfer transfer = start_receiving(ring, at::empty_like(keys), keys_name);
  transfer.sent = ring.group.send(keys, ring.next(), call_of(ring, keys_name));
  return transfer;
}

// Type of sums: that of the log-sum-exp.
at::ScalarType sum_type(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// Views of [B, T / ranks, heads · d] as [B, T / ranks, heads, d].
at::Tensor queries_of(const Ring& ring, const at::Tensor& qkv) {
  const std::int64_t dim = qkv.size(2) / (ring.heads + 2 * ring.kv_heads);
  return qkv.narrow(2, 0, ring.heads * dim).unflatten(2, {ring.heads, dim});
}
struct KeysAndValues {
  at::Tensor k, v;
};
KeysAndValues split_keys(const Ring& ring, const at::Tensor& keys) {
  const at::Tensor all = keys.unflatten(3, {ring.kv_heads, -1});
  return {all.select(0, 0), all.select(0, 1)};
}
// Returns view of the keys and values in qkv, [2, B, T / ranks, KV heads · d].
at::Tensor keys_in(const Ring& ring, const at::Tensor& qkv) {
  const std::int64_t dim = qkv.size(2) / (ring.heads + 2 * ring.kv_heads);
  return qkv.narrow(2, ring.heads * dim, 2 * ring.kv_heads * dim)
      .unflatten(2, {2, ring.kv_heads * dim})
      .permute({2, 0, 1, 3});
}
// Returns the keys and values of this rank as one tensor to send.
at::Tensor own_keys(const Ring& ring, const at::Tensor& qkv) {
  return keys_in(ring, qkv).contiguous();
}

// Calls f(queries, keys, part) for each range of this rank's queries and each range of the keys of
// `owner` of which a query may see a key. Of a range of queries, its own keys come first.
template <typename F>
void each_pair(const Ring& ring, int owner, std::int64_t tokens, F&& f) {
  const SequencePart mine{ring.group.rank(), ring.size()}, others{owner, ring.size()};
  std::vector<TokenRange> key_ranges = others.ranges(tokens);
  std::reverse(key_ranges.begin(), key_ranges.end());
  for (const TokenRange& queries : mine.ranges(tokens)) {
    for (const TokenRange& keys : key_ranges) {
      const nn::AttentionPart part = {queries.position, keys.position, tokens * ring.size()};
      if (keys.position <= queries.position &&
          nn::sees_keys(part, queries.count, keys.count, ring.options)) {
        f(queries, keys, part);
      }
    }
  }
}

at::Tensor tokens_in(const at::Tensor& x, const TokenRange& range, std::int64_t dim = 1) {
  return x.narrow(dim, range.local, range.count);
}
// The queries and the keys of a block.
at::Tensor row_of(const RingBlock& block, const at::Tensor& x) {
  return block.row < 0 ? x : x.narrow(0, block.row, 1);
}
at::Tensor queries_of(const RingBlock& block, const at::Tensor& x, std::int64_t dim = 1) {
  return row_of(block, x).narrow(dim, block.query, block.queries);
}
at::Tensor keys_of(const RingBlock& block, const at::Tensor& x) {
  return row_of(block, x).narrow(1, block.key, block.keys);
}

// Operands and sums of forward.
class Forward {
 public:
  Forward(const Ring& ring, const at::Tensor& qkv)
      : ring_(ring),
        q_(queries_of(ring, qkv)),
        out_(at::empty(q_.sizes(), q_.options().dtype(sum_type(q_)))),
        lse_(at::empty({q_.size(0), ring.heads, q_.size(1)}, out_.options())) {
    if (q_.is_cuda()) q_ = q_.contiguous();
  }

  // Adds the attention to the keys of a step.
  void step(int number, const at::Tensor& keys) {
    const auto [k, v] = split_keys(ring_, keys);
    if (q_.is_cuda()) return gpu_step(ring_.owner(number), k, v);
    each_pair(ring_, ring_.owner(number), q_.size(1),
              [&, &k = k, &v = v](const TokenRange& queries, const TokenRange& here,
                                  const nn::AttentionPart& part) {
                const auto result =
                    nn::attention_part_forward(tokens_in(q_, queries), tokens_in(k, here),
                                               tokens_in(v, here), part, ring_.options);
                add(result, tokens_in(out_, queries), tokens_in(lse_, queries, 2),
                    part.first_key == part.first_query);
              });
  }

  // Returns {result [B, T / ranks, heads · d], lse} and, on a GPU, its seed and offset.
  tensor_list results() const {
    const at::Tensor out = out_.flatten(2).to(q_.scalar_type());
    if (!q_.is_cuda()) return {out, lse_};
    return {out, lse_dims_ == 4 ? lse_.unsqueeze(3) : lse_, seed_, offset_};
  }

 private:
  // `first`: the first result of these queries. Otherwise combines it with that of earlier keys.
  static void add(const nn::PartialAttention& more, const at::Tensor& out, const at::Tensor& lse,
                  bool first) {
    if (first) {
      out.copy_(more.out);
      lse.copy_(more.lse);
      return;
    }
    const at::Tensor weight = at::sigmoid(more.lse - lse);  // 0 if more.lse is -infinity
    out.lerp_(more.out.to(out.scalar_type()), weight.transpose(1, 2).unsqueeze(3));
    lse.copy_(at::logaddexp(lse, more.lse));
  }

  void gpu_step(int owner, const at::Tensor& k, const at::Tensor& v) {
    for (const RingBlock& block : ring_blocks(ring_.shape, owner)) {
      const nn::GpuPartResult result = nn::gpu_part_forward(
          queries_of(block, q_), keys_of(block, k), keys_of(block, v), ring_.part_of(block));
      seed_ = result.seed, offset_ = result.offset, lse_dims_ = result.lse.dim();
      add({result.out, lse_dims_ == 4 ? result.lse.squeeze(3) : result.lse},
          queries_of(block, out_), queries_of(block, lse_, 2), block.first);
    }
  }

  const Ring& ring_;
  at::Tensor q_, out_, lse_;
  at::Tensor seed_, offset_;   // of the last kernel, as backward expects them
  std::int64_t lse_dims_ = 3;  // of a kernel's result
};

tensor_list ring_forward(const Ring& ring, const at::Tensor& qkv) {
  Forward forward(ring, qkv);
  at::Tensor keys = own_keys(ring, qkv);
  for (int step = 0; step < ring.size(); ++step) {
    const auto next = start_next_keys(ring, keys, step);
    forward.step(step, keys);
    if (next) keys = next->wait();
  }
  return forward.results();
}

// Operands of backward, besides keys, and the gradient of the queries.
struct Backward {
  const Ring& ring;
  at::Tensor q, dout;
  at::Tensor out, lse;      // results of forward
  at::Tensor seed, offset;  // on a GPU
  at::Tensor delta;         // on a CPU; kernels of a GPU compute it from the result
  at::Tensor dq;

  // `saved`: qkv and the results of forward.
  Backward(const Ring& of, const tensor_list& saved, const at::Tensor& grad)
      : ring(of),
        q(queries_of(of, saved[0])),
        dout(grad.unflatten(2, {of.heads, -1})),
        out(saved[1].unflatten(2, {of.heads, -1})),
        lse(saved[2]),
        dq(at::zeros(q.sizes(), lse.options())) {
    if (q.is_cuda()) {
      q = q.contiguous();
      seed = saved[3], offset = saved[4];
    } else {
      delta = (out.to(lse.scalar_type()) * dout.to(lse.scalar_type()))
                  .sum(3)
                  .transpose(1, 2)
                  .contiguous();
    }
  }

  // Returns the gradient that these queries contribute to the keys of a step, and adds to dq.
  at::Tensor step(int number, const at::Tensor& keys) const {
    at::Tensor grad = at::zeros(keys.sizes(), lse.options());
    const auto [k, v] = split_keys(ring, keys);
    const KeysAndValues to = split_keys(ring, grad);
    if (q.is_cuda()) {
      gpu_step(ring.owner(number), k, v, to);
      return grad;
    }
    each_pair(ring, ring.owner(number), q.size(1),
              [&, &k = k, &v = v](const TokenRange& queries, const TokenRange& here,
                                  const nn::AttentionPart& part) {
                const auto result = nn::attention_part_backward(
                    tokens_in(q, queries), tokens_in(k, here), tokens_in(v, here),
                    tokens_in(dout, queries), tokens_in(lse, queries, 2),
                    tokens_in(delta, queries, 2), part, ring.options);
                tokens_in(dq, queries).add_(result.q);
                tokens_in(to.k, here).add_(result.k);
                tokens_in(to.v, here).add_(result.v);
              });
    return grad;
  }

  void gpu_step(int owner, const at::Tensor& k, const at::Tensor& v,
                const KeysAndValues& to) const {
    for (const RingBlock& block : ring_blocks(ring.shape, owner)) {
      const nn::GpuPartResult whole = {queries_of(block, out), queries_of(block, lse, 2), seed,
                                       offset};
      const nn::PartialGradients grad =
          nn::gpu_part_backward(queries_of(block, q), keys_of(block, k), keys_of(block, v),
                                queries_of(block, dout), whole, ring.part_of(block));
      queries_of(block, dq).add_(grad.q);
      keys_of(block, to.k).add_(grad.k);
      keys_of(block, to.v).add_(grad.v);
    }
  }
};

// Returns the gradient of qkv.
at::Tensor ring_backward(const Ring& ring, const tensor_list& saved, const at::Tensor& dout) {
  const Backward backward(ring, saved, dout);
  const at::Tensor& qkv = saved[0];
  at::Tensor keys = own_keys(ring, qkv), own;
  // Gradient that the previous rank computed in the step before, of the keys that are here now.
  std::optional<Transfer> arriving;
  // A pending send keeps its tensor, so at most one is pending.
  comm::Work sending;
  for (int step = 0; step < ring.size(); ++step) {
    const auto next = start_next_keys(ring, keys, step);
    std::optional<Transfer> later;
    // Two ranks exchange messages in the order of their calls, so this follows the keys, as the
    // send below does on the previous rank.
    if (step > 0) {
      later = start_receiving(ring, at::empty(keys.sizes(), backward.dq.options()), gradients_name);
    }
    at::Tensor grad = backward.step(step, keys);
    if (arriving) grad.add_(arriving->wait());
    if (step == 0) {
      own = grad;
    } else {
      sending.wait();
      sending = ring.group.send(grad, ring.next(), call_of(ring, gradients_name));
    }
    arriving = std::move(later);
    if (next) keys = next->wait();
  }
  own.add_(arriving->wait());
  sending.wait();
  at::Tensor dqkv = at::empty_like(qkv);
  dqkv.narrow(2, 0, backward.dq.size(2) * backward.dq.size(3)).copy_(backward.dq.flatten(2));
  keys_in(ring, dqkv).copy_(own);
  return dqkv;
}

struct RingAttention : torch::autograd::Function<RingAttention> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& qkv, const RingPointer& ring) {
    const at::Tensor x = qkv.contiguous();
    const auto results =
        nn::keep_in_selective("ring attention", {x}, [&] { return ring_forward(*ring, x); });
    tensor_list saved = {x};
    saved.insert(saved.end(), results.begin(), results.end());
    ctx->save_for_backward(std::move(saved));
    ctx->saved_data["ring"] = c10::IValue::make_capsule(ring);
    return results[0];
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    nn::refuse_second_derivatives("context-parallel attention");
    const auto saved = ctx->get_saved_variables();
    const auto ring = c10::static_intrusive_pointer_cast<Ring>(ctx->saved_data["ring"].toCapsule());
    return {ring_backward(*ring, saved, grads[0].contiguous()), at::Tensor()};
  }
};

}  // namespace

nn::AttentionChoice ring_kernel(const at::Tensor& qkv, std::int64_t heads, std::int64_t kv_heads,
                                const nn::AttentionOptions& options) {
  nn::AttentionOptions of = options;
  // The blocks of a ring contain no document boundaries, but have many lengths. With documents, in
  // 16 bits, the choice is flash attention, which unlike cuDNN needs no plan for each length.
  if (qkv.scalar_type() == at::kFloat) of.document_starts = at::Tensor();
  // The shortest blocks without documents have the tokens of one chunk.
  return nn::attention_kernel(qkv.narrow(1, 0, qkv.size(1) / 2), heads, kv_heads, of);
}

at::Tensor ring_attention(const Axis& axis, const at::Tensor& qkv, std::int64_t heads,
                          std::int64_t kv_heads, const nn::AttentionOptions& options,
                          const std::string& label) {
  const auto ring = c10::make_intrusive<Ring>();
  ring->group = axis.group;
  ring->heads = heads;
  ring->kv_heads = kv_heads;
  ring->options = options;
  ring->label = label;
  if (qkv.is_cuda()) {
    ring->kernel = ring_kernel(qkv, heads, kv_heads, options).kernel;
    ring->shape = {axis.rank(), axis.size(), qkv.size(1), options.window, {}};
    if (options.document_starts.defined()) {
      const at::Tensor starts = options.document_starts.cpu();  // waits for the device
      const auto* const data = starts.const_data_ptr<std::int32_t>();
      ring->shape.document_starts = {data, data + starts.numel()};
    }
  }
  return RingAttention::apply(qkv, ring);
}

}  // namespace tessera::context_parallel
