#pragma once

#include <string_view>

#include "tessera/planner/run_config.h"

namespace tessera::planner {

// Returns true if a setting of experts that changes the parameters or their use is given.
bool resizes_experts(const RunConfig& config);
// Returns the flag of the first given setting of experts except their number; "" for none.
std::string_view given_for_experts(const RunConfig& config);
// Applies the given settings of experts to a model. Throws UsageError if it has no experts.
void apply_experts(ModelShape& model, const RunConfig& config);
// Checks --ep and --expert-imbalance against the model and the ranks. Throws UsageError.
void resolve_experts(const RunConfig& config);

}  // namespace tessera::planner
