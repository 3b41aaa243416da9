#pragma once

#include <cstdint>
#include <vector>

namespace tessera {

// Scaling of rotary positions for sequences longer than those of the original training. The effect
// of each kind on the frequencies is described in [Note: rotary scaling].
struct RotaryScaling {
  // Names as in config.json.
  enum class Kind : std::uint8_t { none, linear, llama3, dynamic, yarn };
  Kind kind = Kind::none;
  double factor = 1;
  // llama3: frequencies of waves longer than original_positions / low_freq_factor are divided by
  // the factor. Those of waves shorter than original_positions / high_freq_factor are unchanged.
  // In between they are interpolated.
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  std::int64_t original_positions = 8192;  // context of the original training: llama3, yarn
  // yarn: pairs that make more than beta_fast rotations in original_positions keep their frequency.
  // Pairs that make fewer than beta_slow have it divided by the factor. In between it is
  // interpolated linearly in the index of the pair. `truncate` rounds the first and last pair of
  // that interval outwards.
  double beta_fast = 32;
  double beta_slow = 1;
  bool truncate = true;
  // yarn: factor of queries and keys. 0: rotary_gain() computes it from `factor` and, if both are
  // set, mscale and mscale_all_dim.
  double attention_factor = 0;
  double mscale = 0;
  double mscale_all_dim = 0;
  bool operator==(const RotaryScaling&) const = default;
};
// Returns the name in checkpoints and messages.
const char* name(RotaryScaling::Kind kind);
// Throws UsageError that names the invalid field.
void check(const RotaryScaling& scaling, double base);

// [Note: rotary scaling] Pair i of a head rotates by base^(-2i / width) from one token to the next.
//   linear   all frequencies are divided by the factor
//   llama3   frequencies of long waves are divided
//   yarn     frequencies of slow pairs are divided; queries and keys are scaled by rotary_gain()
//   dynamic  unchanged up to ModelShape::context tokens. In longer sequences the frequencies of
//            all tokens would depend on the length and, in transformers, on earlier calls. Such
//            sequences are rejected.
// rotary_rates() returns these frequencies, computed in fp32 as in Hugging Face's models, which
// were trained with exactly these values.
std::vector<double> rotary_rates(std::int64_t width, double base,
                                 const RotaryScaling& scaling = {});
// Returns the factor of cosines and sines, and so of queries and keys. 1 except for yarn.
double rotary_gain(const RotaryScaling& scaling);

}  // namespace tessera
