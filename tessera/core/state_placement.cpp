#include "tessera/core/state_placement.h"

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera {

Offload parse_offload(std::string_view kinds, const std::string& dir) {
  if (kinds == "none") {
    if (dir.empty()) return {};
    throw UsageError(Flag("offload-dir"), str("got ", quote(dir),
                                              " without --offload, the state to store there. Add "
                                              "--offload optimizer."));
  }
  if (kinds != "optimizer") {
    throw UsageError(Flag("offload"),
                     str("got ", quote(kinds),
                         ", must be optimizer. Gradients, parameters and activations cannot be "
                         "offloaded yet; --zero 3 and --recompute reduce them."));
  }
  if (dir.empty()) {
    throw UsageError(Flag("offload"),
                     "got optimizer without --offload-dir, the folder for its files. Add "
                     "--offload-dir, on a fast local disk.");
  }
  Offload offload;
  offload.optimizer = StatePlacement::disk;
  offload.dir = dir;
  return offload;
}

}  // namespace tessera
