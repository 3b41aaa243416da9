#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/core/fd.h"
#include "tessera/train/metrics.h"

namespace tessera::train {

// File of events for TensorBoard.
//
// [Note: event files] TensorBoard reads files of records: the length (8 bytes), its checksum, the
// record, its checksum, all little-endian. A checksum is a CRC-32C, rotated and offset, so that the
// checksum of data that contains checksums is no special case. A record is an Event in the wire
// format of protocol buffers: wall_time (1, double), step (2), file_version (3) in the first one,
// summary (5) with its values, each a tag and a number, or session_log (7).
class EventFile {
 public:
  // Makes a new file in this folder, and the folder if it is missing. Files of earlier runs remain,
  // but readers ignore their steps from `first_step` on, which a resumed run takes again. Throws
  // UsageError that begins with the flag.
  EventFile(const std::string& folder, std::string_view flag, std::int64_t first_step);
  using Scalars = std::vector<std::pair<std::string_view, double>>;
  // Throws DataError, and then leaves no part of the record in the file.
  void write(std::int64_t step, const Scalars& scalars);
  // Writes loss, learning rate, gradient norm, tokens/s, times, memory, and an evaluation.
  void write(const StepMetrics& step);

  const std::string& path() const { return path_; }

 private:
  void record(const std::string& event);

  Fd file_;
  std::string path_;
};

// Throws UsageError if the folder cannot be written to. Changes nothing.
void check_event_folder(const std::string& folder, std::string_view flag);

// Returns the checksum of [Note: event files].
std::uint32_t masked_crc(std::string_view data);

}  // namespace tessera::train
