#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tessera {

// Memory that holds a kind of training state: that of the device that computes, or a file.
enum class StatePlacement : std::uint8_t { device, disk };

// Placement of the training state by kind. Results have the same bits with any placement.
struct Offload {
  StatePlacement optimizer = StatePlacement::device;  // master copies and moments
  std::string dir;                                    // folder of the files

  bool any() const { return optimizer != StatePlacement::device; }
  friend bool operator==(const Offload&, const Offload&) = default;
};

// Returns the placement for --offload and --offload-dir: "optimizer" puts it into files in `dir`,
// "none" leaves all state on the device. Throws UsageError for other kinds, and for a missing
// `dir`.
Offload parse_offload(std::string_view kinds, const std::string& dir);

// [Note: records] State in a file is read, updated and written in records: up to kRecordElements
// elements of one parameter, with their master copy and moments. kRecordBuffers records are in
// memory at a time: those that are read ahead, updated, and written behind.
inline constexpr std::int64_t kRecordElements = std::int64_t{1} << 16;
inline constexpr int kRecordBuffers = 4;

}  // namespace tessera
