#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tessera::models {

// How the next token is chosen from the logits. In this order, as others do: logits are divided by
// the temperature; the top_k most likely tokens stay; of these, the fewest that together have top_p
// of the probability; of these, those with at least min_p of the probability of the likeliest. Then
// one is drawn. Among equals, the token with the lower number is the likelier.
struct Sampling {
  double temperature = 1;  // 0: the likeliest token, always
  std::int64_t top_k = 0;  // 0: all
  double top_p = 1;
  double min_p = 0;
};
// Throws UsageError that names what is out of bounds.
void check(const Sampling& sampling);

struct Candidate {
  std::int64_t token = 0;
  double probability = 0;
};
// What stays, the likeliest first; probabilities add up to 1. `out` is reused.
void candidates(std::span<const float> logits, const Sampling& sampling,
                std::vector<Candidate>& out);
// Draws one by a number in [0, 1). Throws Error where no logit is a finite number.
std::int64_t sample(std::span<const float> logits, const Sampling& sampling, double uniform,
                    std::vector<Candidate>& scratch);
// The number that token `position` of text `number` is drawn by: it depends on these alone.
double uniform_of(std::uint64_t seed, std::uint64_t number, std::uint64_t position);

}  // namespace tessera::models
