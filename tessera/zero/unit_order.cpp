#include "tessera/zero/unit_order.h"

namespace tessera::zero {

int UnitOrder::enter(int unit) {
  const std::size_t at = entered_.size();
  entered_.push_back(unit);
  auto guess = known_.end();
  if (at > 0) {
    guess = known_.find(entered_[1]);
  } else if (alike_ && known_.size() == 1) {
    guess = known_.begin();
  }
  if (guess == known_.end()) return -1;
  const std::vector<int>& last = guess->second;
  return at + 1 < last.size() && last[at] == unit ? last[at + 1] : -1;
}

void UnitOrder::end() {
  if (entered_.size() > 1) known_[entered_[1]] = entered_;
  entered_.clear();
}

}  // namespace tessera::zero
