#include <algorithm>
#include <cmath>

#include "tessera/core/errors.h"
#include "tessera/core/model_shape.h"
#include "tessera/core/text.h"

namespace tessera {
namespace {

using ScalingKind = RotaryScaling::Kind;

float llama3_rate(float rate, const RotaryScaling& scaling) {
  constexpr float two_pi = 6.28318530717958647692f;
  const auto factor = static_cast<float>(scaling.factor);
  const auto low = static_cast<float>(scaling.low_freq_factor);
  const auto high = static_cast<float>(scaling.high_freq_factor);
  const auto original = static_cast<float>(scaling.original_positions);
  const float wave = two_pi / rate;
  if (wave > original / low) return rate / factor;
  if (wave < original / high) return rate;
  const float smooth = (original / wave - low) / (high - low);
  return (1 - smooth) * rate / factor + smooth * rate;
}

// Pairs between which yarn interpolates from the original to the divided frequency.
struct YarnRamp {
  double first = 0, last = 0;
};
YarnRamp yarn_ramp(std::int64_t width, double base, const RotaryScaling& scaling) {
  constexpr double two_pi = 6.283185307179586476925;
  const auto dim = static_cast<double>(width);
  // Returns the (fractional) pair that makes `turns` rotations in original_positions.
  const auto pair_of = [&](double turns) {
    const auto original = static_cast<double>(scaling.original_positions);
    return dim * std::log(original / (turns * two_pi)) / (2 * std::log(base));
  };
  YarnRamp ramp{pair_of(scaling.beta_fast), pair_of(scaling.beta_slow)};
  if (scaling.truncate) ramp = {std::floor(ramp.first), std::ceil(ramp.last)};
  ramp = {std::max(ramp.first, 0.0), std::min(ramp.last, dim - 1)};
  if (ramp.first == ramp.last) ramp.last += 0.001;
  return ramp;
}

float yarn_rate(std::int64_t pair, float wave, double factor, const YarnRamp& ramp) {
  const float along = (static_cast<float>(pair) - static_cast<float>(ramp.first)) /
                      static_cast<float>(ramp.last - ramp.first);
  const float kept = 1 - std::clamp(along, 0.0f, 1.0f);
  return 1 / (static_cast<float>(factor) * wave) * (1 - kept) + 1 / wave * kept;
}

}  // namespace

const char* name(RotaryScaling::Kind kind) {
  switch (kind) {
    case ScalingKind::none: return "none";
    case ScalingKind::linear: return "linear";
    case ScalingKind::llama3: return "llama3";
    case ScalingKind::dynamic: return "dynamic";
    case ScalingKind::yarn: return "yarn";
  }
  return "?";
}

std::vector<double> rotary_rates(std::int64_t width, double base, const RotaryScaling& scaling) {
  const YarnRamp ramp =
      scaling.kind == ScalingKind::yarn ? yarn_ramp(width, base, scaling) : YarnRamp{};
  std::vector<double> rates;
  for (std::int64_t i = 0; i < width / 2; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(width);
    // pow in fp64, then rounded: the result of a correctly rounded fp32 pow.
    const auto wave = static_cast<float>(std::pow(base, double{exponent}));
    float rate = 1.0f / wave;
    if (scaling.kind == ScalingKind::linear) rate /= static_cast<float>(scaling.factor);
    if (scaling.kind == ScalingKind::llama3) rate = llama3_rate(rate, scaling);
    if (scaling.kind == ScalingKind::yarn) rate = yarn_rate(i, wave, scaling.factor, ramp);
    rates.push_back(rate);
  }
  return rates;
}

double rotary_gain(const RotaryScaling& scaling) {
  if (scaling.kind != ScalingKind::yarn) return 1;
  if (scaling.attention_factor != 0) return scaling.attention_factor;
  const auto gain = [&](double scale) {
    return scaling.factor <= 1 ? 1 : 0.1 * scale * std::log(scaling.factor) + 1;
  };
  const bool both = scaling.mscale != 0 && scaling.mscale_all_dim != 0;
  return both ? gain(scaling.mscale) / gain(scaling.mscale_all_dim) : gain(1);
}

void check(const RotaryScaling& scaling, double base) {
  if (!(base > 0)) {
    throw UsageError(str("the base of rotary positions is ", base, "; must be greater than 0"));
  }
  if (scaling.kind == ScalingKind::none) return;
  if (!(scaling.factor > 0)) {
    throw UsageError(
        str("the factor of rotary scaling is ", scaling.factor, "; must be greater than 0"));
  }
  if (scaling.kind == ScalingKind::llama3 &&
      (!(scaling.low_freq_factor > 0) || !(scaling.high_freq_factor > scaling.low_freq_factor) ||
       scaling.original_positions < 1)) {
    throw UsageError(str("llama3 rotary scaling has low_freq_factor ", scaling.low_freq_factor,
                         ", high_freq_factor ", scaling.high_freq_factor,
                         " and original positions ", scaling.original_positions,
                         "; must be 0 < low < high, and at least one position"));
  }
  if (scaling.kind != ScalingKind::yarn) return;
  if (!(scaling.beta_slow > 0) || !(scaling.beta_fast >= scaling.beta_slow) ||
      scaling.original_positions < 1 || !(base > 1)) {
    throw UsageError(str("yarn rotary scaling has beta_slow ", scaling.beta_slow, ", beta_fast ",
                         scaling.beta_fast, ", original positions ", scaling.original_positions,
                         " and base ", base,
                         "; must be 0 < slow <= fast, at least one position, and a base above 1"));
  }
  if (!(scaling.attention_factor >= 0) || !(scaling.mscale >= 0) ||
      !(scaling.mscale_all_dim >= 0)) {
    throw UsageError(str("yarn rotary scaling has attention_factor ", scaling.attention_factor,
                         ", mscale ", scaling.mscale, " and mscale_all_dim ",
                         scaling.mscale_all_dim, "; must be greater than 0, or 0 for unset"));
  }
}

}  // namespace tessera
