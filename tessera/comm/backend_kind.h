#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/core/run_options.h"

namespace tessera::comm {

// A backend that a user can select, with the properties known before a group exists. For an
// existing group, query its Backend instead.
struct BackendKind {
  std::string_view name;
  bool shares_memory = false;  // every rank maps the symmetric memory of all ranks
  bool needs_gpu = false;      // every rank needs its own GPU
  bool simulated = false;      // one process acts as rank 0 of many
};

// The first is the default: shm on one host, two-level on several.
inline constexpr std::array<BackendKind, 6> kBackendKinds = {{
    {.name = "auto", .shares_memory = true},
    {.name = "shm", .shares_memory = true},
    {.name = "two-level"},
    {.name = "nccl", .needs_gpu = true},
    {.name = "tcp"},
    {.name = "dry", .shares_memory = true, .simulated = true},
}};

inline std::vector<std::string> backend_names() {
  std::vector<std::string> names;
  for (const BackendKind& kind : kBackendKinds) names.emplace_back(kind.name);
  return names;
}

// Returns the properties of a backend. An unknown name has none; init() rejects it.
static_assert(
    std::equal(kBackendKinds.begin(), kBackendKinds.end(), EnumNames<BackendName>::kNames.begin(),
               EnumNames<BackendName>::kNames.end(),
               [](const BackendKind& kind, std::string_view name) { return kind.name == name; }));
// Returns the properties of a chosen backend.
constexpr const BackendKind& backend_kind(BackendName choice) {
  return kBackendKinds[static_cast<std::size_t>(choice)];
}
constexpr BackendKind backend_kind(std::string_view name) {
  for (const BackendKind& kind : kBackendKinds) {
    if (kind.name == name) return kind;
  }
  return {.name = name};
}

}  // namespace tessera::comm
