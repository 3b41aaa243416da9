#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/checkpoint/dtype.h"
#include "tessera/checkpoint/files.h"

namespace tessera::checkpoint {

// [Note: safetensors] A file is: eight bytes with the header's length n, little-endian; n bytes of
// JSON, an object that gives each tensor's dtype, shape and data_offsets (and "__metadata__", texts
// by name), padded with spaces; then the tensors' bytes, row-major, little-endian, without gaps or
// overlaps. data_offsets count from the end of the header.
struct TensorEntry {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
  std::int64_t begin = 0, end = 0;  // data_offsets

  std::int64_t bytes() const { return end - begin; }
  friend bool operator==(const TensorEntry&, const TensorEntry&) = default;
};

struct Header {
  std::map<std::string, std::string> metadata;
  std::vector<TensorEntry> tensors;  // by offset
  std::int64_t data_begin = 0;       // where the tensors begin in the file
  std::int64_t file_bytes() const {
    return data_begin + (tensors.empty() ? 0 : tensors.back().end);
  }
  const TensorEntry* find(std::string_view name) const;  // null if there is none
};

inline constexpr std::int64_t kLengthBytes = 8;
// Readers of others refuse longer headers, so ours does too.
inline constexpr std::int64_t kMostHeaderBytes = 100'000'000;
// Data begin at a multiple of this, so that large writes are aligned.
inline constexpr std::int64_t kDataAlign = 4096;

// The number of elements, or -1 if it does not fit.
std::int64_t elements_of(const std::vector<std::int64_t>& shape);

// Reads the header's JSON for a file whose data have `data_bytes`. `where` names the file in
// errors. Throws DataError at the slightest doubt.
Header parse_header(std::string_view json, std::int64_t data_bytes, const std::string& where);
// Reads the beginning of a file; `raw`, if given, gets all bytes before the data.
Header read_header(File& file, const std::string& where, std::string* raw = nullptr);

// All bytes before the data, for tensors that follow one another from offset 0.
std::string header_bytes(const std::vector<TensorEntry>& tensors,
                         const std::map<std::string, std::string>& metadata);

}  // namespace tessera::checkpoint
