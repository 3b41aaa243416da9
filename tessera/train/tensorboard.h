#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/core/fd.h"
#include "tessera/train/metrics.h"

namespace tessera::train {

// [Note: event files] TensorBoard reads files of records: the length (8 bytes), its checksum, the
// record, its checksum, all little-endian. A checksum is a CRC-32C, turned and moved so that one of
// data that holds checksums is no special case. A record is an Event in the wire format of protocol
// buffers: wall_time (1, double), step (2), file_version (3) in the first one, summary (5) with its
// values, each a tag and a number, or session_log (7).
class EventFile {
 public:
  // A new file in this folder, which is made if need be; those of earlier runs stay. What they say
  // of steps from `first_step` on no longer counts: the run that goes on takes them again. Throws
  // UsageError that begins with the flag.
  EventFile(const std::string& folder, std::string_view flag, std::int64_t first_step);
  using Scalars = std::vector<std::pair<std::string_view, double>>;
  // Throws DataError; of a record that did not fit, nothing stays.
  void write(std::int64_t step, const Scalars& scalars);
  // Loss, learning rate, norm of the gradient, tokens/s, times, memory, and an evaluation.
  void write(const StepMetrics& step);

  const std::string& path() const { return path_; }

 private:
  void record(const std::string& event);

  Fd file_;
  std::string path_;
};

// Throws UsageError for a folder that cannot be written to, and leaves nothing.
void check_event_folder(const std::string& folder, std::string_view flag);

std::uint32_t masked_crc(std::string_view data);

}  // namespace tessera::train
