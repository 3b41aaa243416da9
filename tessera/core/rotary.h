#pragma once

#include <cstdint>
#include <vector>

namespace tessera {

// How rotary positions are changed for sequences longer than those of the first training. What each
// kind does to the frequencies, and what is exact, is in [Note: rotary scaling].
struct RotaryScaling {
  // As config.json calls them.
  enum class Kind : std::uint8_t { none, linear, llama3, dynamic, yarn };
  Kind kind = Kind::none;
  double factor = 1;
  // llama3: waves longer than original_positions / low_freq_factor are divided by the factor, those
  // shorter than original_positions / high_freq_factor are not, and between it is interpolated.
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  std::int64_t original_positions = 8192;  // of the first training: llama3 and yarn
  // yarn: pairs that turn more than beta_fast times in original_positions keep their frequency,
  // those that turn less than beta_slow times have it divided by the factor; between, along the
  // pairs, it is interpolated. With `truncate` the first and last pair of that are rounded
  // outwards.
  double beta_fast = 32;
  double beta_slow = 1;
  bool truncate = true;
  // yarn: what queries and keys are multiplied by. 0: as rotary_gain() says, from the factor and,
  // if both are there, the two scales.
  double attention_factor = 0;
  double mscale = 0;
  double mscale_all_dim = 0;
  bool operator==(const RotaryScaling&) const = default;
};
// As checkpoints and messages spell it.
const char* name(RotaryScaling::Kind kind);
// Throws UsageError that names the part that cannot be.
void check(const RotaryScaling& scaling, double base);

// [Note: rotary scaling] Pair i of a head turns by base^(-2i / width) from one token to the next.
//   linear   all of that divided by the factor
//   llama3   that of long waves
//   yarn     that of slow pairs; queries and keys are also multiplied by rotary_gain()
//   dynamic  as it is, up to as many tokens as the model is made for (ModelShape::context). In
//            longer sequences the frequencies of all tokens would depend on how many there are, and
//            in transformers on those that were computed before: these are refused.
// All is computed in fp32 as Hugging Face's models do, which have learned with exactly these.
std::vector<double> rotary_rates(std::int64_t width, double base,
                                 const RotaryScaling& scaling = {});
// What the cosines and sines, and so queries and keys, are multiplied by: 1 but for yarn.
double rotary_gain(const RotaryScaling& scaling);

}  // namespace tessera
