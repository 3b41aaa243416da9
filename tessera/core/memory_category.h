#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace tessera {

// What memory is used for: the same words in the ledger, the planner, the tables and the metrics.
enum class MemoryCategory : std::uint8_t {
  params,       // what forward and backward read
  grads,        // what backward leaves for the optimizer
  optimizer,    // master copies and moments
  activations,  // what forward keeps for backward
  buffers,      // gathered units and buckets in flight
  temporary,    // everything else
};
inline constexpr int kMemoryCategories = 6;
inline constexpr std::array<std::string_view, kMemoryCategories> kMemoryCategoryNames = {
    "params", "grads", "optimizer", "activations", "buffers", "temporary"};

// "params": in tables, metrics and messages.
constexpr std::string_view name(MemoryCategory category) {
  return kMemoryCategoryNames[static_cast<std::size_t>(category)];
}

}  // namespace tessera
