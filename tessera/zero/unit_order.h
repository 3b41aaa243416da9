#pragma once

#include <map>
#include <vector>

namespace tessera::zero {

// Predicted order of units in a pass. It is that of the last pass with the same first unit after
// the root, because a rank may run several model chunks alternately.
class UnitOrder {
 public:
  // `alike`: all passes begin with the same unit after the root.
  explicit UnitOrder(bool alike) : alike_(alike) {}

  // Records that a unit is entered. Returns the predicted next unit, or -1 if it is unknown.
  int enter(int unit);
  void end();                          // ends the pass and records its order
  void forget() { entered_.clear(); }  // drops a pass that ended in an exception

 private:
  const bool alike_;
  std::map<int, std::vector<int>> known_;  // by the second unit of the pass
  std::vector<int> entered_;
};

}  // namespace tessera::zero
