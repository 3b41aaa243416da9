#include "tessera/planner/hardware.h"

#include <algorithm>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/planner/topology.h"

namespace tessera::planner {

// Contents of hardware.toml, embedded by the build.
extern const char* const kHardwareToml;

Catalog::Catalog() { parse(kHardwareToml, "hardware.toml"); }

void Hardware::run_by(std::string_view wanted) {
  if (software == wanted) return;
  for (const auto& [each, made] : figures) {
    if (each == wanted) static_cast<SoftwareFigures&>(*this) = made;
  }
  software = wanted;
}

Hardware with_precision(Hardware hardware, MatmulPrecision precision, Precision linears) {
  if (linears == Precision::fp8 && hardware.peak_fp8 <= 0) {
    throw UsageError(Flag("precision"),
                     str("got fp8, but ", hardware.name,
                         " has no fp8 (its hardware entry has no peak_fp8); must be layout"));
  }
  hardware.tf32 = precision == MatmulPrecision::high;
  if (!hardware.tf32 || hardware.peak_tf32 > 0) return hardware;
  throw UsageError(Flag("matmul-precision"),
                   str("got ", precision, ", but ", hardware.name,
                       " has no TF32 (its hardware entry has no peak_tf32); must be highest"));
}

Topology Hardware::topology(int devices) const {
  Topology t;
  t.per_node = devices > 0 ? devices : per_node;
  t.kind = kind;
  t.inside = inside;
  t.nic = between;
  t.nics = nics == 0
               ? t.per_node
               : std::max<int>(1, static_cast<int>(std::int64_t{nics} * t.per_node / per_node));
  t.switches = switches;
  return t;
}

const Hardware& Catalog::find(std::string_view name) const {
  const auto found =
      std::find_if(all_.begin(), all_.end(), [&](const Hardware& h) { return h.name == name; });
  if (found != all_.end()) return *found;
  std::vector<std::string> names;
  for (const Hardware& hardware : all_) names.push_back(hardware.name);
  throw UsageError(str("--hardware ", quote(name), ": must be one of ", join(names, ", "),
                       did_you_mean(name, names)),
                   "hardware");
}

}  // namespace tessera::planner
