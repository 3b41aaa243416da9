#pragma once

#include <cstdint>
#include <functional>

#include "tessera/comm/mesh.h"
#include "tessera/data/source.h"
#include "tessera/train/metrics.h"
#include "tessera/train/model_files.h"

namespace tessera::train {

// Options of evaluate().
struct EvaluateOptions {
  std::int64_t batch = 8;    // sequences that a replica computes at once
  std::int64_t batches = 0;  // number of batches over all replicas; 0: all of the data
  c10::Device device = c10::kCPU;
  at::ScalarType type = at::kFloat;
  ContextKind context = ContextKind::automatic;
};
// Evaluates a stored model. Collective over the mesh: tp and pp split the model, ep its experts, cp
// the tokens of each sequence and dp the data. Memory holds only the parameters and one batch. All
// ranks get the same result on every mesh: the batches are the same, and their losses are summed in
// double precision. `done` is called after each batch with the number of finished batches of this
// rank and their total.
Evaluation evaluate(ModelFiles& files, const data::Source& source, const comm::Mesh& mesh,
                    const EvaluateOptions& options,
                    const std::function<void(std::int64_t, std::int64_t)>& done = {});

// Default number of batches that a run evaluates if its validation data is endless.
inline constexpr std::int64_t kEndlessBatches = 16;
// Returns the number of batches to evaluate: all of the source, or at most `batches` if that is
// more than 0. Throws UsageError if the source is endless and `batches` is 0.
std::int64_t batches_of(const data::Source& source, std::int64_t batch, std::int64_t batches);

}  // namespace tessera::train
