// The steps of a router as loops over tokens.

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tessera/core/philox.h"
#include "tessera/experts/router.h"
#include "tessera/kernels/dropout.h"
#include "tessera/nn/parallel_for.h"

namespace tessera::experts {
namespace {

std::size_t at_index(std::int64_t i) { return static_cast<std::size_t>(i); }

// Calls f(token, position in the whole row) for the tokens of this rank.
template <typename F>
void each_token(const RouterCall& call, std::int64_t grain, F&& f) {
  const TokenRows& rows = call.rows;
  if (rows.total() == 0) return;
  const std::vector<TokenRange> ranges = rows.part.ranges(rows.tokens);
  nn::parallel_for(0, rows.total(), nn::grain_of(grain), [&](std::int64_t from, std::int64_t to) {
    for (std::int64_t n = from; n < to; ++n) {
      const std::int64_t t = n % rows.tokens;
      auto range = ranges.begin();
      while (t >= range->local + range->count) ++range;
      f(n, range->position + t - range->local);
    }
  });
}

template <class T>
void jitter_rows(const at::Tensor& out, const RouterCall& call) {
  const std::int64_t hidden = out.size(1);
  auto* data = out.mutable_data_ptr<T>();
  each_token(call, 16 * hidden, [&](std::int64_t n, std::int64_t position) {
    const std::uint64_t sample =
        call.jitter.first_sample + static_cast<std::uint64_t>(n / call.rows.tokens);
    const Philox random(call.jitter.seed, kernels::stream_of_sample(call.jitter.stream, sample));
    const auto first = static_cast<std::uint64_t>(position * hidden);
    for (std::int64_t c = 0; c < hidden; ++c) {
      const double u = random.uniform(first + static_cast<std::uint64_t>(c));
      data[n * hidden + c] *= static_cast<T>(1 + call.jitter.size * (2 * u - 1));
    }
  });
}

at::Tensor input(const at::Tensor& x, const RouterCall& call) {
  if (call.jitter.size == 0) return x.to(at::kDouble);
  at::Tensor out = x.to(at::kDouble, /*non_blocking=*/false, /*copy=*/true);
  jitter_rows<double>(out, call);
  return out;
}

// Writes exp(logit - log Σ exp(logit)) and returns log Σ exp(logit).
double softmax(const float* logits, std::int64_t count, double* out) {
  const double top = *std::max_element(logits, logits + count);
  double sum = 0;
  for (std::int64_t e = 0; e < count; ++e) sum += out[e] = std::exp(double{logits[e]} - top);
  for (std::int64_t e = 0; e < count; ++e) out[e] /= sum;
  return top + std::log(sum);
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// Scores of one token, and the numbers that follow from them.
struct Scores {
  explicit Scores(const Experts& experts)
      : softmax_of(at_index(experts.count)),
        scores(at_index(experts.count)),
        probabilities(at_index(experts.count)) {}

  void compute(const Experts& experts, const float* logits) {
    lse = softmax(logits, experts.count, softmax_of.data());
    if (experts.scores == RouterScores::softmax) {
      scores = probabilities = softmax_of;
      total = 1;
      return;
    }
    total = kTiny;
    for (std::size_t e = 0; e < scores.size(); ++e) total += scores[e] = sigmoid(logits[e]);
    for (std::size_t e = 0; e < scores.size(); ++e) probabilities[e] = scores[e] / total;
  }

  static constexpr double kTiny = 1e-20;  // keeps quotients finite if all scores are 0
  std::vector<double> softmax_of, scores, probabilities;
  double lse = 0, total = 0;
};

std::int64_t number_of(std::int32_t expert) { return expert < 0 ? ~expert : expert; }

at::Tensor choose(const at::Tensor& logits, const at::Tensor& bias, const RouterCall& call) {
  const Experts& options = call.experts;
  const std::int64_t count = options.count, k = options.per_token;
  at::Tensor experts = at::empty({logits.size(0), k}, logits.options().dtype(at::kInt));
  const auto* in = logits.const_data_ptr<float>();
  const auto* biases = bias.defined() ? bias.const_data_ptr<float>() : nullptr;
  auto* out = experts.mutable_data_ptr<std::int32_t>();
  each_token(call, 16 * count, [&](std::int64_t n, std::int64_t position) {
    std::int32_t* const chosen = out + n * k;
    if (position >= call.rows.row_tokens) {
      std::fill_n(chosen, k, kNotRouted);
      return;
    }
    std::vector<float> values(in + n * count, in + (n + 1) * count);
    if (biases != nullptr) {
      Scores scores(options);
      scores.compute(options, in + n * count);
      for (std::int64_t e = 0; e < count; ++e) {
        values[at_index(e)] = static_cast<float>(scores.scores[at_index(e)]) + biases[e];
      }
    }
    // Insertion into the sorted list of the best experts until now.
    for (std::int64_t e = 0; e < count; ++e) {
      const float value = values[at_index(e)];
      std::int64_t place = std::min(e, k);
      while (place > 0 && value > values[at_index(chosen[place - 1])]) --place;
      if (place == k) continue;
      for (std::int64_t i = std::min(e, k - 1); i > place; --i) chosen[i] = chosen[i - 1];
      chosen[place] = static_cast<std::int32_t>(e);
    }
  });
  return experts;
}

// Calls f(token, row and chunk, pair) for the pairs of routed tokens, in their order.
template <typename F>
void each_pair(const RouterCall& call, const std::int32_t* experts, F&& f) {
  const TokenRows& rows = call.rows;
  const std::int64_t chunks = rows.part.chunks(),
                     length = std::max<std::int64_t>(1, rows.tokens / chunks);
  for (std::int64_t n = 0; n < rows.total(); ++n) {
    const std::int64_t chunk = n / rows.tokens * chunks + n % rows.tokens / length;
    for (std::int64_t i = n * call.experts.per_token; i < (n + 1) * call.experts.per_token; ++i) {
      if (experts[i] != kNotRouted) f(n, chunk, i);
    }
  }
}

at::Tensor count(const at::Tensor& experts, const RouterCall& call) {
  at::Tensor counts = at::zeros({call.rows.rows, call.rows.part.chunks(), call.experts.count},
                                experts.options().dtype(at::kLong));
  auto* out = counts.mutable_data_ptr<std::int64_t>();
  const auto* of = experts.const_data_ptr<std::int32_t>();
  each_pair(call, of, [&](std::int64_t, std::int64_t chunk, std::int64_t i) {
    ++out[chunk * call.experts.count + number_of(of[i])];
  });
  return counts;
}

void drop(const at::Tensor& experts, const at::Tensor& before, std::int64_t capacity,
          const RouterCall& call) {
  const at::Tensor used = before.clone();
  auto* counts = used.mutable_data_ptr<std::int64_t>();
  auto* of = experts.mutable_data_ptr<std::int32_t>();
  each_pair(call, of, [&](std::int64_t, std::int64_t chunk, std::int64_t i) {
    if (counts[chunk * call.experts.count + of[i]]++ >= capacity) of[i] = ~of[i];
  });
}

// Returns the factor of Σ_e count_e · p_te in the balance of a row.
double balance_factor(const RouterCall& call) {
  const auto tokens = static_cast<double>(call.rows.row_tokens);
  return static_cast<double>(call.experts.count) /
         (static_cast<double>(call.experts.per_token) * tokens * tokens);
}

Weighed weigh(const at::Tensor& logits, const at::Tensor& experts, const at::Tensor& counts,
              const RouterCall& call) {
  const Experts& options = call.experts;
  const std::int64_t k = options.per_token, count = options.count;
  const auto doubles = logits.options().dtype(at::kDouble);
  Weighed result{at::zeros({logits.size(0), k}, logits.options()), {}, at::zeros({kSums}, doubles)};
  const at::Tensor each = at::zeros({logits.size(0), kSums}, doubles);  // sums of each token
  const auto* in = logits.const_data_ptr<float>();
  const auto* of = experts.const_data_ptr<std::int32_t>();
  const auto* of_rows = counts.defined() ? counts.const_data_ptr<std::int64_t>() : nullptr;
  auto* out = result.weights.mutable_data_ptr<float>();
  auto* parts = each.mutable_data_ptr<double>();
  each_token(call, 64 * count, [&](std::int64_t n, std::int64_t position) {
    if (position >= call.rows.row_tokens) return;
    Scores token(options);
    token.compute(options, in + n * count);
    double total = 0;
    for (std::int64_t i = n * k; i < (n + 1) * k; ++i) {
      total += token.scores[at_index(number_of(of[i]))];
    }
    const double factor = options.scale / (options.normalized ? total + Scores::kTiny : 1);
    double* const sums = parts + n * kSums;
    for (std::int64_t i = n * k; i < (n + 1) * k; ++i) {
      if (of[i] < 0) {
        sums[kDropped] += 1;
      } else {
        out[i] = static_cast<float>(token.scores[at_index(of[i])] * factor);
      }
    }
    sums[kRouted] = 1;
    sums[kZ] = token.lse * token.lse / static_cast<double>(call.rows.row_tokens);
    for (std::int64_t e = 0; e < count; ++e) {
      const double p = token.probabilities[at_index(e)];
      if (p > 0) sums[kEntropy] -= p * std::log(p);
      if (of_rows == nullptr) continue;
      sums[kBalance] +=
          balance_factor(call) * p * static_cast<double>(of_rows[n / call.rows.tokens * count + e]);
    }
  });
  auto* all = result.sums.mutable_data_ptr<double>();
  for (std::int64_t n = 0; n < logits.size(0); ++n) {
    for (std::int64_t i = 0; i < kSums; ++i) all[i] += parts[n * kSums + i];
  }
  result.loss = at::empty({}, logits.options());
  *result.loss.mutable_data_ptr<float>() =
      static_cast<float>(options.balance_loss * all[kBalance] + options.z_loss * all[kZ]);
  return result;
}

at::Tensor backward(const at::Tensor& logits, const at::Tensor& experts, const at::Tensor& counts,
                    const at::Tensor& dweights, const at::Tensor& dloss, const RouterCall& call) {
  const Experts& options = call.experts;
  const std::int64_t k = options.per_token, count = options.count;
  at::Tensor dlogits = at::zeros(logits.sizes(), logits.options());
  const at::Tensor given = dweights.defined() ? dweights.contiguous() : dweights;
  const auto* in = logits.const_data_ptr<float>();
  const auto* of = experts.const_data_ptr<std::int32_t>();
  const auto* of_rows = counts.defined() ? counts.const_data_ptr<std::int64_t>() : nullptr;
  const auto* dw = given.defined() ? given.const_data_ptr<float>() : nullptr;
  const double loss = dloss.defined() ? dloss.item<double>() : 0;
  const double z = loss * options.z_loss * 2 / static_cast<double>(call.rows.row_tokens);
  const double balance = loss * options.balance_loss * balance_factor(call);
  auto* out = dlogits.mutable_data_ptr<float>();
  each_token(call, 64 * count, [&](std::int64_t n, std::int64_t position) {
    if (position >= call.rows.row_tokens) return;
    Scores token(options);
    token.compute(options, in + n * count);
    // Gradients of the scores.
    std::vector<double> ds(at_index(count));
    if (dw != nullptr) {
      double total = Scores::kTiny, along = 0;
      for (std::int64_t i = n * k; i < (n + 1) * k; ++i) {
        const double score = token.scores[at_index(number_of(of[i]))];
        total += score;
        if (of[i] >= 0) along += score * dw[i];
      }
      for (std::int64_t i = n * k; i < (n + 1) * k; ++i) {
        const double d = of[i] >= 0 ? dw[i] : 0;
        ds[at_index(number_of(of[i]))] =
            options.scale * (options.normalized ? (d - along / total) / total : d);
      }
    }
    if (balance != 0 && of_rows != nullptr) {
      double along = 0;
      const std::int64_t* const row = of_rows + n / call.rows.tokens * count;
      for (std::int64_t e = 0; e < count; ++e) {
        along += token.probabilities[at_index(e)] * static_cast<double>(row[e]);
      }
      const bool divided = options.scores == RouterScores::sigmoid;
      for (std::int64_t e = 0; e < count; ++e) {
        const auto d = static_cast<double>(row[e]);
        ds[at_index(e)] += balance * (divided ? (d - along) / token.total : d);
      }
    }
    double along = 0;
    if (options.scores == RouterScores::softmax) {
      for (std::size_t e = 0; e < ds.size(); ++e) along += ds[e] * token.scores[e];
    }
    for (std::size_t e = 0; e < ds.size(); ++e) {
      const double s = token.scores[e];
      const double d =
          options.scores == RouterScores::softmax ? s * (ds[e] - along) : s * (1 - s) * ds[e];
      out[n * count + static_cast<std::int64_t>(e)] =
          static_cast<float>(d + z * token.lse * token.softmax_of[e]);
    }
  });
  return dlogits;
}

}  // namespace

const RouterSteps kRouterLoops = {input, choose, count, drop, weigh, backward};

}  // namespace tessera::experts
