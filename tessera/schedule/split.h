#pragma once

#include <vector>

// Division of a list of layers into stages of at least one consecutive layer each. The functions
// return bounds: stage s has the layers bounds[s] to bounds[s + 1] - 1.
namespace tessera::schedule {

// Splits by cost, such as parameter counts or measured seconds. Minimizes the cost of the most
// expensive stage, then the sum of squared stage costs. Throws UsageError if there are fewer layers
// than stages or a cost is negative or not finite.
std::vector<int> split(const std::vector<double>& costs, int stages);

// Splits by a given number of layers per stage. Throws UsageError unless they add up to `layers`.
std::vector<int> split_by_hand(const std::vector<int>& layers_per_stage, int layers, int stages);

}  // namespace tessera::schedule
