#pragma once

#include <string>
#include <vector>

namespace tessera::comm::hierarchical {

// Which rank of a group is where. Rank r is number r % per_host on host r / per_host.
struct Layout {
  int hosts = 1;
  int per_host = 1;

  int ranks() const noexcept { return hosts * per_host; }
  int host(int rank) const noexcept { return rank / per_host; }
  int local(int rank) const noexcept { return rank % per_host; }
  int rank(int host, int local) const noexcept { return host * per_host + local; }
};

// `home[r]` is the first rank of the group on the host of rank r. Throws UsageError that says what
// it found unless every host has the same number of ranks, one after another.
Layout find_layout(const std::vector<int>& home, const std::string& group);

// "ranks 0 1 2 together; ranks 3 together"
std::string describe_layout(const std::vector<int>& home);
bool is_regular(const std::vector<int>& home);

}  // namespace tessera::comm::hierarchical
