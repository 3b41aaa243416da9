#include "tessera/pipeline/tied.h"

#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::pipeline {

comm::Group tied_group(const comm::Group& pp, const schedule::Schedule& schedule) {
  const int first = schedule.home(0).rank;
  const int last = schedule.home(schedule.stage_count() - 1).rank;
  if (first == last || (pp.rank() != first && pp.rank() != last)) return comm::Group();
  return pp.subset({first, last}, "tied");
}

void sum_tied(const comm::Group& group, const std::vector<at::Tensor>& gradients) {
  if (group.size() == 1) return;
  // All are under way before the first is waited for.
  std::vector<std::pair<at::Tensor, comm::Work>> sums;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined()) {
      throw UsageError(str("tied gradient ", i,
                           " is not there: this rank's stages do not use the parameter. Give it a "
                           "gradient of zeros, since the other rank sends one"));
    }
    comm::Call call;
    call.label = str("tied gradient ", i);
    at::Tensor dense = gradients[i].detach().contiguous();
    comm::Work work = group.all_reduce(dense, call);
    sums.emplace_back(std::move(dense), std::move(work));
  }
  for (std::size_t i = 0; i < sums.size(); ++i) {
    sums[i].second.wait();
    if (sums[i].first.data_ptr() != gradients[i].data_ptr()) {
      gradients[i].detach().copy_(sums[i].first);
    }
  }
}

}  // namespace tessera::pipeline
