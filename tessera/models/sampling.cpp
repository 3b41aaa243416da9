#include "tessera/models/sampling.h"

#include <algorithm>
#include <cmath>

#include "tessera/core/errors.h"
#include "tessera/core/philox.h"
#include "tessera/core/text.h"

namespace tessera::models {
namespace {

bool likelier(const Candidate& a, const Candidate& b) {
  return a.probability != b.probability ? a.probability > b.probability : a.token < b.token;
}

// Moves the most likely `count` candidates to the front, in order; the first `done` are there
// already. `probability` may still hold logits.
void bring_forward(std::vector<Candidate>& all, std::size_t done, std::size_t count) {
  const auto begin = all.begin() + static_cast<std::ptrdiff_t>(done);
  const auto end = all.begin() + static_cast<std::ptrdiff_t>(count);
  if (end != all.end()) std::nth_element(begin, end, all.end(), likelier);
  std::sort(begin, end, likelier);
}

constexpr const char* kNoLogits =
    "the model gives no token a finite logit. Its weights are damaged, or it was not trained.";

// Returns the most likely token; the first if several are equal. The maximum is computed in
// independent lanes, which compilers vectorize, because vocabularies are large.
std::int64_t greedy(std::span<const float> logits) {
  constexpr std::size_t kLanes = 16;
  float most[kLanes];
  std::fill(most, most + kLanes, -INFINITY);
  std::size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    for (std::size_t k = 0; k < kLanes; ++k) {
      most[k] = logits[i + k] > most[k] ? logits[i + k] : most[k];  // a NaN is never larger
    }
  }
  for (; i < logits.size(); ++i) most[0] = logits[i] > most[0] ? logits[i] : most[0];
  const float best = *std::max_element(most, most + kLanes);
  if (!std::isfinite(best)) throw Error(kNoLogits);
  return std::find(logits.begin(), logits.end(), best) - logits.begin();
}

}  // namespace

void check(const Sampling& sampling) {
  const auto refuse = [](const char* what, auto value, const char* allowed) {
    throw UsageError(str(what, " is ", value, "; must be ", allowed));
  };
  if (!(sampling.temperature >= 0 && sampling.temperature <= 1e6)) {
    refuse("temperature", sampling.temperature, "0 (the most likely token) or more");
  }
  if (sampling.top_k < 0) refuse("top-k", sampling.top_k, "1 or more, or 0 for all tokens");
  if (!(sampling.top_p > 0 && sampling.top_p <= 1)) {
    refuse("top-p", sampling.top_p, "more than 0, and at most 1");
  }
  if (!(sampling.min_p >= 0 && sampling.min_p <= 1)) {
    refuse("min-p", sampling.min_p, "from 0 to 1");
  }
}

void candidates(std::span<const float> logits, const Sampling& sampling,
                std::vector<Candidate>& out) {
  out.clear();
  if (sampling.temperature == 0) {
    out.push_back({greedy(logits), 1});
    return;
  }
  out.reserve(logits.size());
  Candidate best{-1, 0};
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (!(logits[i] > -INFINITY)) continue;  // never chosen; neither is a NaN
    const Candidate now{static_cast<std::int64_t>(i), logits[i]};
    if (best.token < 0 || likelier(now, best)) best = now;
    out.push_back(now);
  }
  if (best.token < 0 || !std::isfinite(best.probability)) {
    throw Error(kNoLogits);
  }
  std::size_t kept = out.size();
  bool sorted = false;
  if (sampling.top_k > 0 && static_cast<std::size_t>(sampling.top_k) < kept) {
    kept = static_cast<std::size_t>(sampling.top_k);
    bring_forward(out, 0, kept);
    out.resize(kept);
    sorted = true;
  }
  double total = 0;
  for (Candidate& each : out) {
    each.probability = std::exp((each.probability - best.probability) / sampling.temperature);
    total += each.probability;
  }
  if (sampling.top_p < 1) {
    // Sort only as many as needed, which are few of a large vocabulary.
    double sum = 0;
    std::size_t ordered = sorted ? kept : 0, taken = 0;
    while (taken < kept && sum < sampling.top_p * total) {
      if (taken == ordered) {
        const std::size_t next = std::min(kept, std::max<std::size_t>(64, 4 * ordered));
        bring_forward(out, ordered, next);
        ordered = next;
      }
      sum += out[taken++].probability;
    }
    out.resize(taken);
    total = sum;
    sorted = true;
  }
  if (sampling.min_p > 0) {
    // The most likely token has e^0 = 1.
    std::erase_if(out, [&](const Candidate& each) { return each.probability < sampling.min_p; });
    total = 0;
    for (const Candidate& each : out) total += each.probability;
  }
  if (!sorted) std::sort(out.begin(), out.end(), likelier);
  for (Candidate& each : out) each.probability /= total;
}

std::int64_t sample(std::span<const float> logits, const Sampling& sampling, double uniform,
                    std::vector<Candidate>& scratch) {
  candidates(logits, sampling, scratch);
  double sum = 0;
  for (const Candidate& each : scratch) {
    sum += each.probability;
    if (uniform < sum) return each.token;
  }
  return scratch.back().token;  // the sum may be rounded to less than `uniform`
}

double uniform_of(std::uint64_t seed, std::uint64_t number, std::uint64_t position) {
  const PhiloxBlock words = Philox(seed, stream_of("generate") + number).block(position);
  return static_cast<double>((std::uint64_t{words[0]} << 21) ^ (words[1] >> 11)) * 0x1p-53;
}

}  // namespace tessera::models
