#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tessera::models {

// Rules for sampling the next token from logits. They apply in this order, as in other software:
// logits are divided by the temperature; the top_k most likely tokens are kept; of these, the
// fewest that together have top_p of the probability; of these, those with at least min_p times the
// probability of the most likely token. Then one is drawn. Of tokens with equal probability, the
// one with the lower number counts as more likely.
struct Sampling {
  double temperature = 1;  // 0: always the most likely token
  std::int64_t top_k = 0;  // 0: all
  double top_p = 1;
  double min_p = 0;
};
// Throws UsageError that names the value that is out of bounds.
void check(const Sampling& sampling);

// Token that may be sampled.
struct Candidate {
  std::int64_t token = 0;
  double probability = 0;
};
// Writes the tokens that the rules keep to `out`, the most likely first. Their probabilities add up
// to 1. The memory of `out` is reused.
void candidates(std::span<const float> logits, const Sampling& sampling,
                std::vector<Candidate>& out);
// Samples a token by a number in [0, 1). Throws Error if no logit is finite.
std::int64_t sample(std::span<const float> logits, const Sampling& sampling, double uniform,
                    std::vector<Candidate>& scratch);
// Returns the number in [0, 1) for token `position` of text `number`. Depends only on the
// arguments.
double uniform_of(std::uint64_t seed, std::uint64_t number, std::uint64_t position);

}  // namespace tessera::models
