#pragma once

#include <string>
#include <vector>

namespace tessera::comm::hierarchical {

// Placement of a group's ranks: rank r is local rank r % per_host of host r / per_host.
struct Layout {
  int hosts = 1;
  int per_host = 1;

  int ranks() const noexcept { return hosts * per_host; }
  int host(int rank) const noexcept { return rank / per_host; }
  int local(int rank) const noexcept { return rank % per_host; }
  int rank(int host, int local) const noexcept { return host * per_host + local; }
};

// Returns the layout of a group, where `home[r]` is the first rank on the host of rank r. Throws a
// UsageError that describes the layout unless every host has the same number of consecutive ranks.
Layout find_layout(const std::vector<int>& home, const std::string& group);

// Returns "ranks 0 1 2 on one host, rank 3 on one host".
std::string describe_layout(const std::vector<int>& home);
// Returns whether every host has the same number of consecutive ranks.
bool is_regular(const std::vector<int>& home);

}  // namespace tessera::comm::hierarchical
