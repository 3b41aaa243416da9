#pragma once

#include "tessera/planner/layer_time.h"

namespace tessera::planner {

// Likewise for Tessera's operations on a GPU: [Note: fused operations].
PartWork light_layer_work(const Question& settled);
PartWork light_embedding_work(const Question& settled);
PartWork light_head_work(const Question& settled);

}  // namespace tessera::planner
