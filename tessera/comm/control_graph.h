#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace tessera::comm {

// [Note: control graph] Rank r of `size` holds connections to r ± 2^k (mod size) for all 2^k <
// size, at most 2·ceil(log2(size)). The graph is connected because it contains the ring r ± 1, and
// a message crosses it in at most ceil(log2(size)) hops.

// Returns the neighbors of a rank in ascending order.
inline std::vector<int> control_neighbors(int rank, int size) {
  std::vector<int> neighbors;
  for (std::int64_t step = 1; step < size; step *= 2) {
    neighbors.push_back(static_cast<int>((rank + step) % size));
    neighbors.push_back(static_cast<int>((rank + size - step) % size));
  }
  std::sort(neighbors.begin(), neighbors.end());
  neighbors.erase(std::unique(neighbors.begin(), neighbors.end()), neighbors.end());
  return neighbors;
}

}  // namespace tessera::comm
