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
#include "tessera/nn/attention_part.h"
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
  std::string label;

  int size() const { return group.size(); }
  int next() const { return (group.rank() + 1) % size(); }
  int previous() const { return (group.rank() + size() - 1) % size(); }
  // Returns the rank whose keys are here at a step.
  int owner(int step) const { return (group.rank() + size() - step) % size(); }
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
  const at::Tensor all = keys.unflatten(2, {2, ring.kv_heads, -1});
  return {all.select(2, 0), all.select(2, 1)};
}
// Returns the keys and values of this rank as one tensor to send, [B, T / ranks, 2 · KV heads · d].
at::Tensor own_keys(const Ring& ring, const at::Tensor& qkv) {
  const std::int64_t dim = qkv.size(2) / (ring.heads + 2 * ring.kv_heads);
  return qkv.narrow(2, ring.heads * dim, 2 * ring.kv_heads * dim).contiguous();
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

// Adds the result over some more keys to that over the keys before.
void merge(const nn::PartialAttention& more, const at::Tensor& out, const at::Tensor& lse) {
  const at::Tensor weight = at::sigmoid(more.lse - lse);  // 0 if more.lse is -infinity
  out.lerp_(more.out.to(out.scalar_type()), weight.transpose(1, 2).unsqueeze(3));
  lse.copy_(at::logaddexp(lse, more.lse));
}

// Returns {result [B, T / ranks, heads · d], lse [B, heads, T / ranks]}.
tensor_list ring_forward(const Ring& ring, const at::Tensor& qkv) {
  const at::Tensor q = queries_of(ring, qkv);
  const std::int64_t batch = q.size(0), tokens = q.size(1);
  const auto sums = q.options().dtype(sum_type(q));
  const at::Tensor out = at::empty(q.sizes(), sums);
  const at::Tensor lse = at::empty({batch, ring.heads, tokens}, sums);
  at::Tensor keys = own_keys(ring, qkv);
  for (int step = 0; step < ring.size(); ++step) {
    const auto next = start_next_keys(ring, keys, step);
    const auto [k, v] = split_keys(ring, keys);
    each_pair(ring, ring.owner(step), tokens,
              [&, &k = k, &v = v](const TokenRange& queries, const TokenRange& here,
                                  const nn::AttentionPart& part) {
                const auto result =
                    nn::attention_part_forward(tokens_in(q, queries), tokens_in(k, here),
                                               tokens_in(v, here), part, ring.options);
                const at::Tensor out_here = tokens_in(out, queries),
                                 lse_here = tokens_in(lse, queries, 2);
                if (part.first_key == part.first_query) {  // the first of these queries
                  out_here.copy_(result.out);
                  lse_here.copy_(result.lse);
                } else {
                  merge(result, out_here, lse_here);
                }
              });
    if (next) keys = next->wait();
  }
  return {out.flatten(2).to(qkv.scalar_type()), lse};
}

// Operands of backward, besides keys, and the gradient of the queries.
struct Backward {
  const Ring& ring;
  at::Tensor q, dout, lse, delta;
  at::Tensor dq;

  Backward(const Ring& of, const at::Tensor& qkv, const at::Tensor& out,
           const at::Tensor& total_lse, const at::Tensor& grad)
      : ring(of),
        q(queries_of(of, qkv)),
        dout(grad.unflatten(2, {of.heads, -1})),
        lse(total_lse),
        delta((out.to(lse.scalar_type()) * grad.to(lse.scalar_type()))
                  .unflatten(2, {of.heads, -1})
                  .sum(3)
                  .transpose(1, 2)
                  .contiguous()),
        dq(at::zeros(q.sizes(), lse.options())) {}

  // Returns the gradient that these queries contribute to the keys of a step, and adds to dq.
  at::Tensor step(int number, const at::Tensor& keys) const {
    at::Tensor grad = at::zeros(keys.sizes(), lse.options());
    const auto [k, v] = split_keys(ring, keys);
    const auto [dk, dv] = split_keys(ring, grad);
    each_pair(
        ring, ring.owner(number), q.size(1),
        [&, &k = k, &v = v, &dk = dk, &dv = dv](const TokenRange& queries, const TokenRange& here,
                                                const nn::AttentionPart& part) {
          const auto result = nn::attention_part_backward(
              tokens_in(q, queries), tokens_in(k, here), tokens_in(v, here),
              tokens_in(dout, queries), tokens_in(lse, queries, 2), tokens_in(delta, queries, 2),
              part, ring.options);
          tokens_in(dq, queries).add_(result.q);
          tokens_in(dk, here).add_(result.k);
          tokens_in(dv, here).add_(result.v);
        });
    return grad;
  }
};

// Returns the gradient of qkv.
at::Tensor ring_backward(const Ring& ring, const at::Tensor& qkv, const at::Tensor& out,
                         const at::Tensor& lse, const at::Tensor& dout) {
  const Backward backward(ring, qkv, out, lse, dout);
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
      later = start_receiving(ring, at::empty(keys.sizes(), lse.options()), gradients_name);
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
  const std::int64_t width = qkv.size(2) - own.size(2);
  dqkv.narrow(2, 0, width).copy_(backward.dq.flatten(2));
  dqkv.narrow(2, width, own.size(2)).copy_(own);
  return dqkv;
}

struct RingAttention : torch::autograd::Function<RingAttention> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& qkv, const RingPointer& ring) {
    const at::Tensor x = qkv.contiguous();
    const auto results =
        nn::keep_in_selective("ring attention", {x}, [&] { return ring_forward(*ring, x); });
    ctx->save_for_backward({x, results[0], results[1]});
    ctx->saved_data["ring"] = c10::IValue::make_capsule(ring);
    return results[0];
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    nn::refuse_second_derivatives("context-parallel attention");
    const auto saved = ctx->get_saved_variables();
    const auto ring = c10::static_intrusive_pointer_cast<Ring>(ctx->saved_data["ring"].toCapsule());
    return {ring_backward(*ring, saved[0], saved[1], saved[2], grads[0].contiguous()),
            at::Tensor()};
  }
};

}  // namespace

at::Tensor ring_attention(const Axis& axis, const at::Tensor& qkv, std::int64_t heads,
                          std::int64_t kv_heads, const nn::AttentionOptions& options,
                          const std::string& label) {
  const auto ring = c10::make_intrusive<Ring>();
  ring->group = axis.group;
  ring->heads = heads;
  ring->kv_heads = kv_heads;
  ring->options = options;
  // The window covers everything.
  if (options.window >= qkv.size(1) * axis.size()) ring->options.window = 0;
  ring->label = label;
  return RingAttention::apply(qkv, ring);
}

}  // namespace tessera::context_parallel
