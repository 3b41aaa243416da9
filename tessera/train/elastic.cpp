#include "tessera/train/elastic.h"

#include <algorithm>
#include <cstdio>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::train {
namespace {

// Range of ranks of --elastic.
struct Elastic {
  int fewest = 1, most = 1;
};
// Parses "2:8".
Elastic parse_elastic(const std::string& text) {
  Elastic range;
  char rest = 0;
  if (std::sscanf(text.c_str(), "%d:%d%c", &range.fewest, &range.most, &rest) != 2 ||
      range.fewest < 1 || range.most < range.fewest || range.most > 4096) {
    throw UsageError(str("--elastic: got ", quote(text),
                         ", must be FEWEST:MOST ranks, such as 2:8, at most 4096"));
  }
  return range;
}

}  // namespace

void check_elastic(const TrainConfig& config, int ranks) {
  const Elastic range = parse_elastic(config.elastic);
  if (ranks >= range.fewest && ranks <= range.most) return;
  throw UsageError(str("--elastic: got ", quote(config.elastic), ", but the run has ",
                       plural(ranks, "rank"), "; --ranks must be from ", range.fewest, " to ",
                       range.most, ". Omit --ranks and --dp to start ", range.most, "."));
}

int ranks_that_fit(const TrainConfig& config, const Resolved& resolved, int ranks, int left) {
  if (config.elastic.empty()) return ranks;
  const auto parts = static_cast<int>(config.axes.model_ranks());
  for (int count = left / parts * parts; count >= parse_elastic(config.elastic).fewest;
       count -= parts) {
    if (count > 0 && count / parts % config.axes.size(Axis::dp_replicate) == 0 &&
        resolved.global_batch % (count / parts * config.micro_batch) == 0) {
      return count;
    }
  }
  return 0;
}

int ranks_wanted(const TrainConfig& config) {
  if (!config.elastic.empty() && config.ranks == 0 && config.axes.dp() == 0) {
    return parse_elastic(config.elastic).most;
  }
  if (config.ranks > 0) return static_cast<int>(config.ranks);
  const std::int64_t parts = config.axes.model_ranks();
  const std::int64_t dp = config.axes.dp() > 0 ? config.axes.dp()
                                               : (parts == 1 ? planner::kRunRanks : 1) *
                                                     config.axes.size(Axis::dp_replicate);
  return static_cast<int>(std::min<std::int64_t>(dp * parts, 1 << 20));
}

}  // namespace tessera::train
