#include "tessera/comm/dtype.h"

namespace tessera::comm {

const char* name(ReduceOp op) noexcept {
  switch (op) {
    case ReduceOp::sum: return "sum";
    case ReduceOp::avg: return "avg";
    case ReduceOp::min: return "min";
    case ReduceOp::max: return "max";
  }
  return "unknown operation";
}

}  // namespace tessera::comm
