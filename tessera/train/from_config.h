#pragma once

#include <memory>
#include <vector>

#include "tessera/data/source.h"
#include "tessera/parallel/parallelize.h"
#include "tessera/train/config.h"

namespace tessera::train {

// These functions convert the configuration into the options of the parts of a run. They change
// nothing outside of their results, except apply_threads().

// Returns the training data.
std::unique_ptr<data::Source> make_source(const RunConfig& config, const Resolved& resolved);
// Returns the data of --val-data or --val-fraction; null without them. Its samples are in order,
// and each token is predicted once. Samples from samples_per_epoch() on have no targets and pad the
// last batch.
std::unique_ptr<data::Source> make_validation_source(const RunConfig& config,
                                                     const Resolved& resolved);
// Returns the device of this rank. Throws UsageError if the device does not exist.
c10::Device device_of(const RunConfig& config, int rank, int ranks);
// Returns the multiple to which a rank's rows of the vocabulary are rounded up.
std::int64_t vocab_multiple(const RunConfig& config);
// Collective. Throws UsageError if the configuration cannot run on these ranks.
comm::Mesh mesh_of(const RunConfig& config, const Resolved& resolved, const comm::Group& world);
// Returns the options of the parallel model.
ParallelOptions parallel_options(const RunConfig& config, const Resolved& resolved,
                                 c10::Device device, std::shared_ptr<memory::Ledger> ledger);
// Sets the number of LibTorch's threads, for the whole process.
void apply_threads(const RunConfig& config);

// Throws UsageError that names the flag if the mesh or the pipeline cannot run.
void check_mesh(const RunConfig& config, const Resolved& resolved);

// Returns the number of models::layers_of() on each stage of the pipeline, by --split.
std::vector<int> layers_of_stages(const RunConfig& config, const Resolved& resolved);

}  // namespace tessera::train
