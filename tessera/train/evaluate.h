#pragma once

#include <cstdint>
#include <functional>

#include "tessera/comm/mesh.h"
#include "tessera/data/source.h"
#include "tessera/train/evaluation.h"
#include "tessera/train/model_files.h"

namespace tessera::train {

struct EvaluateOptions {
  std::int64_t batch = 8;    // sequences that a replica computes at once
  std::int64_t batches = 0;  // so many of them over all replicas; 0: all that there is
  c10::Device device = c10::kCPU;
  at::ScalarType type = at::kFloat;
};
// Collective over the mesh: the model is cut over tp and pp, and the data over dp. Nothing but
// parameters and what one batch needs is held. All ranks get the same, whatever the mesh: batches
// are the same, and their losses are added in double precision. `done` hears of this rank's
// batches, and of how many there will be.
Evaluation evaluate(ModelFiles& files, const data::Source& source, const comm::Mesh& mesh,
                    const EvaluateOptions& options,
                    const std::function<void(std::int64_t, std::int64_t)>& done = {});

// Of data that never ends, a run evaluates so many batches unless it is told otherwise.
inline constexpr std::int64_t kEndlessBatches = 16;
// Throws UsageError unless the source ends or `batches` says how many to take; so many.
std::int64_t batches_of(const data::Source& source, std::int64_t batch, std::int64_t batches);

}  // namespace tessera::train
