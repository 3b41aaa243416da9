#pragma once

#include <memory>

#include "tessera/data/source.h"
#include "tessera/parallel/parallelize.h"
#include "tessera/train/config.h"

namespace tessera::train {

// From what the user says to what the parts of a run want to know.
std::unique_ptr<data::Source> make_source(const TrainConfig& config, const Resolved& resolved);
// What --val-data or --val-fraction says, null where neither does: its samples in their order, each
// token predicted once. Samples from samples_per_epoch() on have no target: a last batch is filled
// up with them.
std::unique_ptr<data::Source> make_validation_source(const TrainConfig& config,
                                                     const Resolved& resolved);
// Of this rank of so many. Throws UsageError where there is no such device.
c10::Device device_of(const TrainConfig& config, int rank, int ranks);
// What a rank's rows of the vocabulary are rounded up to.
std::int64_t vocab_multiple(const TrainConfig& config);
// Collective. Throws UsageError for what cannot be run on these ranks.
comm::Mesh mesh_of(const TrainConfig& config, const Resolved& resolved, const comm::Group& world);
ParallelOptions parallel_options(const TrainConfig& config, const Resolved& resolved,
                                 c10::Device device, std::shared_ptr<memory::Ledger> ledger);
// For the whole process, unlike the others, which change nothing.
void apply_threads(const TrainConfig& config);

}  // namespace tessera::train
