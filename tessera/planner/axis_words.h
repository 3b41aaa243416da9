#pragma once

#include "tessera/core/axis.h"

namespace tessera::planner {

// Descriptions of the communication along an axis.
struct AxisWords {
  const char* loss;     // part of a step that is lost: "12% is hops between stages"
  const char* growth;   // part of a step that grows with the number of ranks
  const char* exposed;  // time of a step in which nothing hides it
};
AxisWords words_of(Axis axis);

}  // namespace tessera::planner
