#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::comm {

// A backend that a user can ask for, and what is known of it before there is a group. What a group
// that exists can do, its Backend says.
struct BackendKind {
  std::string_view name;
  bool shares_memory = false;  // every rank maps the symmetric memory of all
  bool needs_mpi = false;      // its ranks are started by mpirun
  bool needs_gpu = false;      // every rank has a GPU of its own
  bool simulated = false;      // one process plays rank 0 of many
};

// The first is the default: on one host it is shm, on several two-level.
inline constexpr std::array<BackendKind, 7> kBackendKinds = {{
    {.name = "auto", .shares_memory = true},
    {.name = "shm", .shares_memory = true},
    {.name = "mpi", .needs_mpi = true},
    {.name = "two-level", .needs_mpi = true},
    {.name = "nccl", .needs_gpu = true},
    {.name = "tcp"},
    {.name = "dry", .shares_memory = true, .simulated = true},
}};

inline std::vector<std::string> backend_names() {
  std::vector<std::string> names;
  for (const BackendKind& kind : kBackendKinds) names.emplace_back(kind.name);
  return names;
}

// A name that is none of these can do nothing: whoever makes the group refuses it.
constexpr BackendKind backend_kind(std::string_view name) {
  for (const BackendKind& kind : kBackendKinds) {
    if (kind.name == name) return kind;
  }
  return {.name = name};
}

}  // namespace tessera::comm
