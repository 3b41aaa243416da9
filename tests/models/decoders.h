// Models for tests of decoders, which read their parameters.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "tessera/models/decoder.h"
#include "tessera/models/language_model.h"

namespace tessera::models::test {

// Returns the initial values, except for vectors, whose initial 0 or 1 would hide mistakes.
inline std::shared_ptr<LanguageModel> make_random(const ModelShape& shape) {
  auto model = make_model(shape, {}, 3);
  const at::NoGradGuard no_gradients;
  at::manual_seed(1);
  for (at::Tensor& p : model->parameters()) p.add_(at::randn_like(p), 0.2);
  for (at::Tensor& b : model->buffers()) b.add_(at::randn_like(b), 0.1);
  return model;
}

// Reads a rank's shard of each parameter, and buffers, from a model in this process.
inline ReadParam reader(const std::shared_ptr<LanguageModel>& model) {
  return [model](const ParamSpec& spec, const at::Tensor& into, const Axes& axes,
                 const Coordinate& coordinate) {
    const at::NoGradGuard no_gradients;
    const auto buffers = model->named_buffers();
    const at::Tensor whole =
        (buffers.contains(spec.name) ? buffers[spec.name] : model->named_parameters()[spec.name])
            .detach()
            .contiguous()
            .view(-1);
    into.zero_();
    for (const Run& run : local_runs(spec, axes, coordinate)) {
      into.view(-1).narrow(0, run.local, run.count).copy_(whole.narrow(0, run.whole, run.count));
    }
  };
}

inline std::vector<std::int64_t> random_text(const ModelShape& shape, std::size_t length,
                                             int seed) {
  std::mt19937 random(static_cast<unsigned>(seed));
  std::vector<std::int64_t> text(length);
  for (std::int64_t& token : text) {
    token = std::uniform_int_distribution<std::int64_t>(0, shape.vocab - 1)(random);
  }
  return text;
}

}  // namespace tessera::models::test
