#include "tessera/planner/light_time.h"

#include <algorithm>
#include <cmath>

#include "tessera/planner/rank_load.h"

namespace tessera::planner {
namespace {

// The kernels of Tessera's operations on a GPU: products, and what nn/gpu_*.cpp puts between them.
class LightBuilder {
 public:
  explicit LightBuilder(const Question& q)
      : q_(q),
        e(element_bytes(q)),
        rows(real(q.micro_batch) * real(q.seq)),
        width(real(q.model.hidden)),
        ffn(real(q.model.ffn)),
        up(ffn * (q.model.swiglu ? 2 : 1)),
        vocab(real(q.model.vocab)),
        turned(q.model.positions == 0
                   ? real((q.model.heads + q.model.kv_heads) * q.model.head_dim())
                   : 0),
        q_width(real(q.model.q_width())),
        qkv(real((q.model.heads + 2 * q.model.kv_heads) * q.model.head_dim())) {}

  Work product(double m, double n, double k) const {
    return {product_time(q_.hardware, e, m, n, k), 1, 2 * m * n * k};
  }
  // Over so many values of every row.
  Work pass(double values, double launches = 1) const { return bytes(rows * values * e, launches); }
  Work bytes(double count, double launches = 1) const {
    return {pass_time(q_.hardware, count), launches};
  }
  // Gradients that are kept in another type than they are computed in are copied there, each by
  // itself.
  Work kept_gradients(double params, double tensors) const {
    if (q_.layout.grad == e) return {};
    return bytes(params * (e + q_.layout.grad), tensors);
  }
  // Forward is two products below the diagonal; backward has five.
  Work attention(double products, double launches) const {
    const double flops = products * rows * q_.model.keys_seen(q_.seq) * q_width;
    return {fused_attention_time(q_.hardware, e, flops), launches, flops};
  }

 private:
  const Question& q_;

 public:
  const int e;
  const double rows, width, ffn, up, vocab, turned, q_width, qkv;
};

// As nn/gpu_loss.cpp takes them.
constexpr double kLogitBytesAtOnce = 256.0 * (1 << 20);

}  // namespace

PartWork light_layer_work(const Question& q) {
  const LightBuilder b(q);
  const double n = b.rows, h = b.width;
  PartWork work;
  work.forward = b.product(n, b.qkv, h) + b.product(n, h, b.q_width) + b.product(n, b.up, h) +
                 b.product(n, h, b.ffn);
  work.forward += b.attention(2, 2);
  const Work cheap = b.pass(2 * h) * 2 + b.pass(b.up + b.ffn);  // both norms, the function
  work.forward += cheap;
  if (b.turned > 0) work.forward += b.pass(2 * b.turned);
  work.backward_input = b.product(n, h, b.qkv) + b.product(n, b.q_width, h) +
                        b.product(n, h, b.up) + b.product(n, b.ffn, h);
  work.backward_input += b.attention(5, 4);
  work.backward_input += b.pass(2 * b.qkv);              // three gradients side by side
  work.backward_input += b.pass(2 * (b.up + b.ffn), 2);  // the function, and its output again
  work.backward_input += b.pass(5 * h, 2) * 2;           // norms, and their outputs again
  if (b.turned > 0) work.backward_input += b.pass(2 * b.turned);
  work.backward_weight = b.product(b.qkv, h, n) + b.product(h, b.q_width, n) +
                         b.product(b.up, h, n) + b.product(h, b.ffn, n);
  work.backward_weight += b.kept_gradients(h * (b.qkv + b.q_width + b.up + b.ffn), 12);
  // Sums over the rows for biases that no product makes on its way.
  if (q.model.biases.any_linear()) work.backward_weight += b.pass(b.qkv + 2 * h, 6);
  if (q.recompute == Recompute::selective) work.recompute = cheap;
  if (q.recompute == Recompute::full) work.recompute = work.forward;
  return work;
}

PartWork light_embedding_work(const Question& q) {
  const LightBuilder b(q);
  PartWork work;
  work.forward = b.pass(3 * b.width, 4);
  // The rows sorted and summed into a table of zeros, which is added to the gradient.
  work.backward_weight = b.pass(3 * b.width, 16) + b.bytes(4 * b.e * b.vocab * b.width, 4);
  work.backward_weight += b.kept_gradients(b.vocab * b.width, 2);
  return work;
}

PartWork light_head_work(const Question& q) {
  const LightBuilder b(q);
  const double n = b.rows, h = b.width, v = b.vocab;
  const double at_once =
      std::min(n, std::max(128.0, std::floor(kLogitBytesAtOnce / (v * b.e) / 128) * 128));
  const double blocks = std::ceil(n / at_once);
  PartWork work;
  work.forward = b.pass(2 * h) + b.bytes(n * v * q.hardware.logit_bytes, blocks);
  work.forward += b.product(at_once, v, h) * (n / at_once);
  // Forward has the gradients too: of its input, and of the table in fp32, added up by blocks.
  work.backward_input = b.product(at_once, h, v) * (n / at_once) + b.pass(2 * h, 2);
  work.backward_input += b.pass(5 * h, 2);
  work.backward_weight = b.product(v, h, at_once) * (n / at_once);
  work.backward_weight += b.bytes(v * h * (8 * (blocks - 1) + 4 + b.e), 2);
  if (!q.model.tied) work.backward_weight += b.kept_gradients(v * h, 1);
  return work;
}

}  // namespace tessera::planner
