#include "tessera/planner/axis_words.h"

namespace tessera::planner {

AxisWords words_of(Axis axis) {
  switch (axis) {
    case Axis::tp:
      return {"waiting for tensor-parallel sums", "tensor-parallel communication",
              "all-reduces inside the layers"};
    case Axis::cp:
      return {"waiting for keys and values", "context-parallel communication",
              "keys and values that attention does not hide, or its all-to-alls"};
    case Axis::ep:
      return {"waiting for tokens on their way to experts", "exchange of tokens between experts",
              "tokens that travel to their experts and back"};
    case Axis::dp_shard:
      return {"waiting for gradients and parameters", "exposed data-parallel communication",
              "gradients and parameters that nothing hides"};
    case Axis::dp_replicate:
      return {"waiting for sums over replicas", "communication between replicas",
              "sums of gradients over replicas that nothing hides"};
    case Axis::pp: return {"hops between stages", "messages between stages", "hops between stages"};
  }
  return {"", "", ""};
}

}  // namespace tessera::planner
