#include "tessera/core/recompute.h"

#include <string>
#include <vector>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera {

Recompute parse_recompute(std::string_view text) {
  for (const Recompute mode : {Recompute::none, Recompute::selective, Recompute::full}) {
    if (name(mode) == text) return mode;
  }
  throw UsageError(str("recomputation ", quote(text), " is unknown",
                       did_you_mean(text, {"none", "selective", "full"}),
                       "; must be none, selective (keeps matrix products) or full"));
}

std::string_view name(Recompute mode) {
  switch (mode) {
    case Recompute::none: return "none";
    case Recompute::selective: return "selective";
    case Recompute::full: return "full";
  }
  return "?";
}

}  // namespace tessera
