#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/checkpoint/shard.h"
#include "tessera/core/axes.h"
#include "tessera/core/param_spec.h"

namespace tessera::checkpoint {

// Constants of the format, for its writer and its reader.
inline constexpr std::string_view kFormat = "tessera-checkpoint";
// Version that is written. Version 1, with only tensor-parallel cuts, can still be read.
inline constexpr int kVersion = 2;
inline constexpr std::string_view kChecksumBefore = "{\"crc32c\": \"";
inline constexpr std::string_view kChecksumAfter = "\",\n";
inline constexpr std::size_t kChecksumDigits = 8;

// Maximum of steps, samples, elements and bytes, here and in files. Sums and small multiples of
// them do not overflow, and every JSON reader represents them exactly.
inline constexpr std::int64_t kMaxCount = std::int64_t{1} << 53;
inline constexpr std::int64_t kMaxRanks = 1 << 24;
// Maximum number of runs of one state over all files. It bounds the memory for looking them up.
inline constexpr std::int64_t kMaxRuns = 1 << 24;

// Information that a run needs, besides its tensors, to resume. The same on every rank except
// `params` and `extra`. The parameters of all ranks together are the model. If several ranks have
// an `extra` key, the value of the first rank is used.
struct Description {
  std::int64_t step = 0;     // optimizer steps done
  std::int64_t samples = 0;  // samples read from the data by all ranks
  std::uint64_t seed = 0;    // of all random numbers
  Axes mesh;                 // mesh that saved; informational, loading does not use it
  int stage = 0;
  std::string layout;        // StateLayout::name
  std::string model = "{}";  // JSON object with the shape of the model
  std::map<std::string, std::string> extra;
  std::vector<ParamSpec> params;
};

// Throws UsageError if step or samples are out of range.
void check_counts(const Description& about);

// A tensor of a shard file: the elements of a state that it has, and its checksums by block.
struct StoredTensor {
  std::string name;  // name in the file
  std::string param;
  std::string state;
  DType dtype = DType::f32;
  std::vector<StridedRun> strided_runs;
  std::vector<std::uint32_t> checksums;

  std::int64_t elements() const;
};
// Returns the number of contiguous runs of a tensor.
std::int64_t run_count(const StoredTensor& tensor);
struct StoredFile {
  std::string name;
  std::int64_t bytes = 0;
  std::int64_t header_bytes = 0;  // bytes before the data
  std::uint32_t header_checksum = 0;
  std::vector<StoredTensor> tensors;
};
struct Manifest {
  Description about;
  std::vector<StoredFile> files;
};

// Message from a rank to rank 0: its shard file, and its part of the description.
struct ShardFileTable {
  StoredFile file;
  std::vector<ParamSpec> params;
  std::map<std::string, std::string> extra;
};
std::string to_text(const ShardFileTable& table);
ShardFileTable parse_table(std::string_view text, const std::string& where);

// [Note: manifest] JSON whose first line holds the checksum of the rest. parse_manifest() checks it
// and then the range of every number: it rejects values that the files could not hold. It throws
// DataError. to_text() throws UsageError for counts that parse_manifest() would reject.
std::string to_text(const Manifest& manifest);
Manifest parse_manifest(std::string_view text, const std::string& where);

// Throws DataError unless every parameter has a state, and every state it has is complete. Call it
// only after checking the sizes of the files: it allocates memory for every run.
void check_complete(const Manifest& manifest, const std::string& where);
// Returns "elements 10 to 19 and 4 more runs".
std::string describe(const std::vector<Run>& runs);

}  // namespace tessera::checkpoint
