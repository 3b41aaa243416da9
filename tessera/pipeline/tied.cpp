#include "tessera/pipeline/tied.h"

namespace tessera::pipeline {

comm::Group tied_group(const comm::Group& pp, const schedule::Schedule& schedule) {
  const int first = schedule.home(0).rank;
  const int last = schedule.home(schedule.stage_count() - 1).rank;
  if (first == last || (pp.rank() != first && pp.rank() != last)) return comm::Group();
  return pp.subset({first, last}, "tied");
}

}  // namespace tessera::pipeline
