#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/checkpoint/shard.h"
#include "tessera/core/axes.h"
#include "tessera/core/param_spec.h"

namespace tessera::checkpoint {

// Steps, samples, elements and bytes are at most this, here and in files: sums and small multiples
// of them do not overflow, and every JSON reader has such numbers exactly.
inline constexpr std::int64_t kMostCount = std::int64_t{1} << 53;
inline constexpr std::int64_t kMostRanks = 1 << 24;
// Stretches of elements of one state over all files: so much memory it takes to find one's way in
// them.
inline constexpr std::int64_t kMostRuns = 1 << 24;

// What a run has to know, besides its tensors, to go on. The same on every rank but for `params`,
// of which each rank gives those it knows, so that together they are the model, and `extra`, of
// which the first rank's counts where several give one.
struct Description {
  std::int64_t step = 0;     // optimizer steps done
  std::int64_t samples = 0;  // samples taken from the data, over all ranks
  std::uint64_t seed = 0;    // all random numbers follow from it and from where they are used
  Axes mesh;                 // that saved; only for people, loading does not depend on it
  int stage = 0;
  std::string layout;        // StateLayout::name
  std::string model = "{}";  // a JSON object: the shape of the model
  std::map<std::string, std::string> extra;
  std::vector<ParamSpec> params;
};

// Throws UsageError for a step or samples that no checkpoint can hold.
void check_counts(const Description& about);

// A tensor of a shard file: which elements of which state it has, and its checksums by block.
struct StoredTensor {
  std::string name;  // in the file
  std::string param;
  std::string state;
  DType dtype = DType::f32;
  std::vector<Stripe> stripes;
  std::vector<std::uint32_t> checksums;

  std::int64_t elements() const;
};
std::int64_t stretches_of(const StoredTensor& tensor);  // Stripes taken apart
struct StoredFile {
  std::string name;
  std::int64_t bytes = 0;
  std::int64_t header_bytes = 0;  // all before the data
  std::uint32_t header_checksum = 0;
  std::vector<StoredTensor> tensors;
};
struct Manifest {
  Description about;
  std::vector<StoredFile> files;
};

// What one rank sends to rank 0: its shard file, and what it knows of the model.
struct ShardFileTable {
  StoredFile file;
  std::vector<ParamSpec> params;
  std::map<std::string, std::string> extra;
};
std::string to_text(const ShardFileTable& table);
ShardFileTable parse_table(std::string_view text, const std::string& where);

// [Note: manifest] JSON whose first line holds the checksum of all that follows it. Reading checks
// it, and then every number: nothing a manifest says is believed that its files could not hold.
// Throws DataError.
// Writing throws UsageError for what reading would refuse of the counts.
std::string to_text(const Manifest& manifest);
Manifest parse_manifest(std::string_view text, const std::string& where);

// Throws DataError unless every parameter has a state, and every state it has is complete. Not
// before the files' sizes are known to be true: it takes memory for every stretch.
void check_complete(const Manifest& manifest, const std::string& where);
// "elements 10 to 19 and 4 more stretches"
std::string describe(const std::vector<Run>& runs);

}  // namespace tessera::checkpoint
