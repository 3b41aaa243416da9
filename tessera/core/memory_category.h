#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace tessera {

// Use of memory. The ledger, the planner, the tables and the metrics share these categories.
enum class MemoryCategory : std::uint8_t {
  params,       // read by forward and backward
  grads,        // written by backward for the optimizer
  optimizer,    // master copies and moments
  activations,  // kept by forward for backward
  buffers,      // gathered units and buckets in flight
  temporary,    // everything else
};
inline constexpr int kMemoryCategories = 6;
inline constexpr std::array<std::string_view, kMemoryCategories> kMemoryCategoryNames = {
    "params", "grads", "optimizer", "activations", "buffers", "temporary"};

// Returns the name in tables, metrics and messages: "params".
constexpr std::string_view name(MemoryCategory category) {
  return kMemoryCategoryNames[static_cast<std::size_t>(category)];
}

}  // namespace tessera
