#include "tessera/comm/hierarchical/layout.h"

#include <algorithm>
#include <map>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::comm::hierarchical {

std::string describe_layout(const std::vector<int>& home) {
  std::map<int, std::vector<std::string>> hosts;
  for (std::size_t r = 0; r < home.size(); ++r) hosts[home[r]].push_back(str(r));
  std::vector<std::string> parts;
  for (const auto& [first, ranks] : hosts) {
    parts.push_back(str(ranks.size() == 1 ? "rank " : "ranks ", join(ranks, " "), " on one host"));
  }
  return join(parts, ", ");
}

bool is_regular(const std::vector<int>& home) {
  const auto per_host = std::count(home.begin(), home.end(), home.front());
  for (std::size_t r = 0; r < home.size(); ++r) {
    const auto first = static_cast<std::ptrdiff_t>(r) / per_host * per_host;
    if (home[r] != first) return false;
  }
  return static_cast<std::ptrdiff_t>(home.size()) % per_host == 0;
}

Layout find_layout(const std::vector<int>& home, const std::string& group) {
  if (!is_regular(home)) {
    throw UsageError(str("group ", quote(group),
                         " over two-level needs the same number of ranks on every host, with "
                         "consecutive numbers, but has ",
                         describe_layout(home),
                         ". Use backend tcp, or start equal numbers of ranks per host"));
  }
  const auto per_host = static_cast<int>(std::count(home.begin(), home.end(), home.front()));
  return {static_cast<int>(home.size()) / per_host, per_host};
}

}  // namespace tessera::comm::hierarchical
