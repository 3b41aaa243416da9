#include <algorithm>
#include <cmath>

#include "tessera/core/errors.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/rank_load.h"

namespace tessera::planner {
namespace {

constexpr std::int64_t kSeq = 2048;
// How far the parameters of the assumed model may be from those asked for.
constexpr double kNear = 0.1;

// A GPT as they are usually cut: a vocabulary of 50257, heads of 64 or 128, an MLP of four times
// the width, and a width of about 64 times the layers, from 5B parameters on 128 times. Heads are a
// multiple of tp, and there is a layer for each stage.
std::optional<ModelShape> usual_gpt(double params, int tp, std::int64_t stages) {
  const double ratio = params < 5e9 ? 64 : 128;
  const double width = std::cbrt(ratio * params / 12);  // 12 · width² in a layer
  if (!(width >= 64 && width < 9e5)) return std::nullopt;
  const std::int64_t head = width < 2048 ? 64 : 128;
  const std::int64_t step = head * tp;
  const std::int64_t hidden = std::max<std::int64_t>(1, std::llround(width / real(step))) * step;
  if (hidden > 1'000'000) return std::nullopt;
  ModelShape shape = gpt_shape(1, hidden, hidden / head, 50257, 0);
  const double layers =
      (params - real(shape.params() - shape.layer_params())) / real(shape.layer_params());
  const auto rounded = static_cast<std::int64_t>(std::llround(std::clamp(layers, 1.0, 1e5)));
  shape.layers = std::max(stages, rounded);
  if (std::abs(real(shape.params()) - params) > kNear * params) return std::nullopt;
  return shape;
}

}  // namespace

std::optional<Assumed> assumed_for(const Question& q) {
  if (!q.state_only()) return std::nullopt;
  const auto shape = usual_gpt(q.params, q.tp(), std::int64_t{q.pp()} * q.chunks);
  if (!shape) return std::nullopt;
  Question other = q;
  other.params = 0;
  other.model = *shape;
  other.seq = q.seq > 0 ? q.seq : kSeq;
  Assumed assumed{*shape, other.seq, {}};
  try {
    assumed.memory = memory_of(settle(other));
  } catch (const UsageError&) {  // such as a --split for other layers
    return std::nullopt;
  }
  const Memory state = memory_of(q);
  assumed.memory.params = state.params;
  assumed.memory.grads = state.grads;
  assumed.memory.optimizer = state.optimizer;
  return assumed;
}

double needed_memory(const Question& q) {
  if (const auto assumed = assumed_for(q)) return assumed->memory.total();
  return memory_of(q).total();
}

}  // namespace tessera::planner
