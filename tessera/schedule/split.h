#pragma once

#include <vector>

// Cuts a model, given as a list of layers, into stages: each a run of at least one layer. Stage s
// has the layers bounds[s] to bounds[s + 1] - 1 of the bounds that these functions give.
namespace tessera::schedule {

// By costs, such as parameter counts or measured seconds: the dearest stage is as cheap as can be,
// and among the ways to do that the costs are as even as can be. Throws UsageError for fewer layers
// than stages, and for costs that are negative or no numbers.
std::vector<int> split(const std::vector<double>& costs, int stages);

// By hand: how many layers each stage gets. Throws UsageError unless they are all of the layers.
std::vector<int> split_by_hand(const std::vector<int>& layers_per_stage, int layers, int stages);

}  // namespace tessera::schedule
