#pragma once

#include <map>
#include <vector>

namespace tessera::zero {

// The order of units in a pass, learnt from the pass before that began in the same way: a rank may
// run several model chunks in turn, each with its own first unit after the root.
class UnitOrder {
 public:
  // `alike`: all passes begin in the same way, so that the root tells what follows.
  explicit UnitOrder(bool alike) : alike_(alike) {}

  // A unit is entered: the one that will follow it, or -1 if that is not known.
  int enter(int unit);
  void end();                          // of the pass
  void forget() { entered_.clear(); }  // a pass that an exception ended is no guide to the next

 private:
  const bool alike_;
  std::map<int, std::vector<int>> known_;  // by the second unit of the pass
  std::vector<int> entered_;
};

}  // namespace tessera::zero
