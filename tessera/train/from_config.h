#pragma once

#include <memory>

#include "tessera/comm/group.h"
#include "tessera/data/source.h"
#include "tessera/train/config.h"
#include "tessera/train/parallelize.h"

namespace tessera::train {

// From what the user says to what the parts of a run want to know.
std::unique_ptr<data::Source> make_source(const TrainConfig& config, const Resolved& resolved);
c10::Device device_of(const TrainConfig& config, const comm::Group& world);
ParallelOptions parallel_options(const TrainConfig& config, const Resolved& resolved,
                                 c10::Device device, std::shared_ptr<memory::Ledger> ledger);

}  // namespace tessera::train
