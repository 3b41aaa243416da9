#include "tessera/planner/layer_time.h"

#include <algorithm>
#include <cmath>

#include "tessera/planner/adapters.h"
#include "tessera/planner/light_time.h"
#include "tessera/planner/places.h"
#include "tessera/planner/rank_load.h"
#include "tessera/planner/step_time.h"

namespace tessera::planner {
namespace {

// The sizes that kernels see on one rank.
struct LayerSizes {
  explicit LayerSizes(const Question& q)
      : element(element_bytes(q)),
        tokens(real(q.micro_batch) * real(q.seq)),
        hidden(real(q.model.hidden)),
        head(real(q.model.head_dim())),
        heads(real(q.model.heads) / q.tp()),
        ffn(real(q.model.ffn) / q.tp()),
        vocab(real((q.model.vocab + q.tp() - 1) / q.tp())) {
    const double kv = std::max(1.0, real(q.model.kv_heads) / q.tp());
    qkv = (heads + 2 * kv) * head;
    up = ffn * (q.model.swiglu ? 2 : 1);
    seq = real(q.seq);
    sequences = real(q.micro_batch) * heads;
    scores = sequences * seq * q.model.keys_seen(q.seq);
    // What a row-parallel product gave is whole on every rank, unless the sequence is cut.
    whole = tokens * hidden / (q.sequence_parallel ? q.tp() : 1);
    // A gradient is added to: the product's result read, the sum read and written.
    accumulate = element + q.hardware.accumulate_passes * q.layout.grad;
  }
  int element;
  double tokens, hidden, head, heads, ffn, vocab;
  double qkv = 0, up = 0, seq = 0, sequences = 0, scores = 0, whole = 0, accumulate = 0;
};

// A collective along tp of so many bytes, [Note: the last host].
Work tp_collective(const Question& q, Collective kind, double bytes) {
  const Places where = places(q);
  const double behind = q.hardware.launch_skew * std::log2(std::max(1, q.tp()));
  return {behind + where.seconds(kind, bytes, where.along[Axis::tp]), 1};
}

// [Note: launches] What a layer launches in an eager framework. Besides its products and passes
// there are copies between layouts, which move little and cost a launch each.
constexpr double kCopies = 8, kBackwardCopies = 10;
// A softmax kernel that scales and masks as well takes four rows of scores from four heads; other
// numbers of heads go through separate kernels for each of its steps.
constexpr double kSoftmaxGroup = 4, kSeparateLaunches = 13;

class LayerBuilder {
 public:
  explicit LayerBuilder(const Question& q) : q_(q), s(q) {}

  Work product(double m, double n, double k, double batch = 1) const {
    return {product_time(q_.hardware, s.element, m, n, k, batch), 1, 2 * m * n * k * batch};
  }
  // Over so many elements.
  Work pass(double elements, double launches = 1) const {
    return {pass_time(q_.hardware, elements * s.element), launches};
  }
  // Over so many bytes.
  Work bytes(double count, double launches = 1) const {
    return {pass_time(q_.hardware, count), launches};
  }

  // Queries with keys, softmax, and its product with the values.
  Work attention() const {
    if (q_.attention == Attention::fused) {
      const double flops = 4 * s.scores / 2 * s.head;  // below the diagonal only
      return {fused_attention_time(q_.hardware, s.element, flops), 1, flops};
    }
    Work work = product(s.seq, s.seq, s.head, s.sequences) + pass(2 * s.scores) +
                product(s.seq, s.head, s.seq, s.sequences);
    if (separate()) work += pass(7 * s.scores, kSeparateLaunches);
    return work;
  }
  Work attention_backward() const {
    if (q_.attention == Attention::fused) {
      const double flops = 2.5 * 4 * s.scores / 2 * s.head;  // computes the scores again
      return {fused_attention_time(q_.hardware, s.element, flops), 3, flops};
    }
    Work work = product(s.seq, s.seq, s.head, s.sequences) +
                product(s.seq, s.head, s.seq, s.sequences) * 3 + pass(3 * s.scores);
    if (separate()) work += pass(6 * s.scores, kSeparateLaunches);
    return work;
  }
  Work layer_forward() const {
    const double t = s.tokens, h = s.hidden, context = s.heads * s.head;
    Work work = norms_and_activation() + attention();
    work +=
        product(t, s.qkv, h) + product(t, h, context) + product(t, s.up, h) + product(t, h, s.ffn);
    work += pass(2 * 3 * s.whole, 2);        // bias and residual, twice
    work += pass(2 * t * context, kCopies);  // heads apart and together again
    return work;
  }
  // What of a layer's forward is done again, once that is known.
  void recompute(PartWork& work) const {
    switch (q_.recompute) {
      case Recompute::none: break;
      case Recompute::selective:
        work.recompute = norms_and_activation();
        if (q_.attention == Attention::unfused) work.recompute += attention();
        break;
      case Recompute::full:
        work.recompute = work.forward;
        work.recompute_reduces = work.forward_reduces;
    }
  }
  Work norms_and_activation() const {
    return pass(2 * 2 * s.whole, 2) + pass(s.tokens * (s.up + s.ffn));
  }

 private:
  bool separate() const { return std::int64_t(s.sequences) % int(kSoftmaxGroup) != 0; }

  const Question& q_;

 public:
  const LayerSizes s;
};

// [Note: adapters in time] The frozen model's weights have no gradient: backward goes through them
// to where an adapter is, no farther, and adds what each adapter takes. Its thin matrices are two
// products in forward, and two each for their gradients and for what goes on to the input.
PartWork adapted_layer_work(const Question& q, const BlockFlow& flow) {
  const LayerBuilder b(q);
  const LayerSizes& s = b.s;
  const double t = s.tokens, h = s.hidden, context = s.heads * s.head, r = real(q.model.lora.rank);
  PartWork work;
  work.forward = b.layer_forward();
  Work& back = work.backward_input;
  if (flow.wide) {
    back += b.product(t, s.ffn, h) + b.pass(t * 2 * (s.up + s.ffn) - t * s.ffn);
    back += b.pass(t * s.up, 2);
  }
  if (flow.middle) back += b.product(t, h, s.up) + b.pass(5 * s.whole, 2) + b.pass(4 * s.whole);
  if (flow.attention) {
    back += b.product(t, context, h) + b.attention_backward();
    back += b.pass(t * (s.qkv + 2 * context), kBackwardCopies - 2);
  }
  if (flow.input) back += b.product(t, h, s.qkv) + b.pass(5 * s.whole, 2) + b.pass(4 * s.whole);
  const bool wanted[] = {flow.input, flow.attention, flow.middle, flow.wide};
  double summed[] = {0, 0, 0, 0}, shared = 0;  // elements of gradients that tp ranks add up
  for (const AdapterOnRank& own : adapters_on_rank(q.model, q.tp())) {
    work.forward += b.product(t, r, own.in) + b.product(t, own.out, r) + b.pass(3 * t * own.out);
    back += b.product(t, r, own.out);
    if (wanted[own.linear]) back += b.product(t, own.in, r) + b.pass(3 * t * own.in);
    work.backward_weight += b.product(own.out, r, t) + b.product(r, own.in, t);
    work.backward_weight += b.bytes(r * (own.in + own.out) * s.accumulate, 2);
    summed[own.linear] += r * own.whole;
    shared += r * own.shared;
  }
  if (q.tp() > 1) {
    work.forward_reduces = 2;
    work.backward_reduces = (flow.input ? 1 : 0) + (flow.middle ? 1 : 0);
    for (const double elements : {summed[0], summed[1], summed[2], summed[3], shared}) {
      if (elements <= 0) continue;
      work.backward_weight += tp_collective(q, Collective::all_reduce, elements * s.element);
    }
  }
  b.recompute(work);
  return work;
}

}  // namespace

PartWork layer_work(const Question& q) {
  if (q.light_activations()) return light_layer_work(q);
  if (q.model.lora.any()) return adapted_layer_work(q, BlockFlow(q.model, true));
  const LayerBuilder b(q);
  const LayerSizes& s = b.s;
  const double t = s.tokens, h = s.hidden, context = s.heads * s.head;
  PartWork work;
  work.forward = b.layer_forward();
  work.backward_input = b.attention_backward();
  work.backward_input += b.product(t, h, s.qkv) + b.product(t, context, h) + b.product(t, h, s.up) +
                         b.product(t, s.ffn, h);
  work.backward_input += b.pass(2 * 5 * s.whole, 4);  // norms
  work.backward_input += b.pass(2 * 4 * s.whole, 2);  // residuals, biases after them
  work.backward_input += b.pass(t * 2 * (s.up + s.ffn) - t * s.ffn);  // activation
  work.backward_input += b.pass(t * (s.up + s.qkv + 2 * context), kBackwardCopies);
  work.backward_weight = b.product(h, s.qkv, t) + b.product(h, context, t) + b.product(h, s.up, t) +
                         b.product(s.ffn, h, t);
  work.backward_weight += b.bytes(layer_params_on_rank(q) * s.accumulate, 4);
  if (q.tp() > 1) work.forward_reduces = work.backward_reduces = 2;
  b.recompute(work);
  return work;
}

PartWork first_layer_work(const Question& q) {
  return q.model.lora.any() ? adapted_layer_work(q, BlockFlow(q.model, false)) : layer_work(q);
}

PartWork embedding_work(const Question& q) {
  if (q.light_activations()) return light_embedding_work(q);
  const LayerBuilder b(q);
  PartWork work;
  work.forward = b.pass(5 * b.s.tokens * b.s.hidden, 12);
  if (!q.model.lora.any()) {
    work.backward_weight = b.pass(4 * b.s.tokens * b.s.hidden, 12);
    work.backward_weight += b.bytes(vocab_params_on_rank(q) * b.s.accumulate, 0);
  }
  if (q.tp() > 1) work.forward_reduces = 1;
  return work;
}

PartWork head_work(const Question& q) {
  if (q.light_activations()) return light_head_work(q);
  const LayerBuilder b(q);
  const LayerSizes& s = b.s;
  PartWork work;
  const double loss = s.tokens * s.vocab * q.hardware.logit_bytes / 2;
  work.forward = b.product(s.tokens, s.vocab, s.hidden) + b.pass(4 * s.whole, 1);
  work.forward += b.bytes(loss, 10);
  work.backward_input = b.product(s.tokens, s.hidden, s.vocab) + b.pass(3 * s.whole, 1);
  work.backward_input += b.bytes(loss, 8);
  if (!q.model.lora.any()) {
    work.backward_weight = b.product(s.hidden, s.vocab, s.tokens);
    work.backward_weight += b.bytes(vocab_params_on_rank(q) * s.accumulate, 1);
  }
  if (q.tp() > 1) {
    work.backward_reduces = 1;
    // Maximum, sum and target logit.
    work.forward += tp_collective(q, Collective::all_reduce, 4 * s.tokens) * 3;
  }
  return work;
}

Work tensor_reduce(const Question& q) {
  const double bytes = real(q.micro_batch) * real(q.seq) * real(q.model.hidden) * element_bytes(q);
  if (!q.sequence_parallel) return tp_collective(q, Collective::all_reduce, bytes);
  return tp_collective(q, Collective::reduce_scatter, bytes) +
         tp_collective(q, Collective::all_gather, bytes);
}

}  // namespace tessera::planner
