#include "tessera/planner/layer_time.h"

#include <algorithm>

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
    return {product_time(q_.hardware, s.element, m, n, k, batch), 1};
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
      return {fused_attention_time(q_.hardware, s.element, flops), 1};
    }
    Work work = product(s.seq, s.seq, s.head, s.sequences) + pass(2 * s.scores) +
                product(s.seq, s.head, s.seq, s.sequences);
    if (separate()) work += pass(7 * s.scores, kSeparateLaunches);
    return work;
  }
  Work attention_backward() const {
    if (q_.attention == Attention::fused) {
      const double flops = 2.5 * 4 * s.scores / 2 * s.head;  // computes the scores again
      return {fused_attention_time(q_.hardware, s.element, flops), 3};
    }
    Work work = product(s.seq, s.seq, s.head, s.sequences) +
                product(s.seq, s.head, s.seq, s.sequences) * 3 + pass(3 * s.scores);
    if (separate()) work += pass(6 * s.scores, kSeparateLaunches);
    return work;
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

}  // namespace

PartWork layer_work(const Question& q) {
  if (q.light_activations()) return light_layer_work(q);
  const LayerBuilder b(q);
  const LayerSizes& s = b.s;
  const double t = s.tokens, h = s.hidden, context = s.heads * s.head;
  PartWork work;
  work.forward = b.norms_and_activation() + b.attention();
  work.forward += b.product(t, s.qkv, h) + b.product(t, h, context) + b.product(t, s.up, h) +
                  b.product(t, h, s.ffn);
  work.forward += b.pass(2 * 3 * s.whole, 2);        // bias and residual, twice
  work.forward += b.pass(2 * t * context, kCopies);  // heads apart and together again
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
  switch (q.recompute) {
    case Recompute::none: break;
    case Recompute::selective:
      work.recompute = b.norms_and_activation();
      if (q.attention == Attention::unfused) work.recompute += b.attention();
      break;
    case Recompute::full:
      work.recompute = work.forward;
      work.recompute_reduces = work.forward_reduces;
  }
  return work;
}

PartWork embedding_work(const Question& q) {
  if (q.light_activations()) return light_embedding_work(q);
  const LayerBuilder b(q);
  PartWork work;
  work.forward = b.pass(5 * b.s.tokens * b.s.hidden, 12);
  work.backward_weight = b.pass(4 * b.s.tokens * b.s.hidden, 12);
  work.backward_weight += b.bytes(vocab_params_on_rank(q) * b.s.accumulate, 0);
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
  work.backward_weight = b.product(s.hidden, s.vocab, s.tokens);
  work.backward_weight += b.bytes(vocab_params_on_rank(q) * s.accumulate, 1);
  if (q.tp() > 1) {
    work.backward_reduces = 1;
    // Maximum, sum and target logit.
    const Places where = places(q);
    const double each = where.seconds(Collective::all_reduce, 4 * s.tokens, where.tp);
    work.forward += {3 * each, 3};
  }
  return work;
}

Work tensor_reduce(const Question& q) {
  const double bytes = real(q.micro_batch) * real(q.seq) * real(q.model.hidden) * element_bytes(q);
  const Places where = places(q);
  if (!q.sequence_parallel) return {where.seconds(Collective::all_reduce, bytes, where.tp), 1};
  return {where.seconds(Collective::reduce_scatter, bytes, where.tp) +
              where.seconds(Collective::all_gather, bytes, where.tp),
          2};
}

}  // namespace tessera::planner
