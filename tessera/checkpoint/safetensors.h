#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/checkpoint/convert_dtype.h"
#include "tessera/checkpoint/file_system.h"

namespace tessera::checkpoint {

// [Note: safetensors] Layout of a file: eight bytes with the length n of the header, little-endian;
// n bytes of JSON, padded with spaces, an object with the dtype, shape and data_offsets of each
// tensor (and "__metadata__", strings by name); then the bytes of the tensors, row-major and
// little-endian, without gaps or overlaps. data_offsets count from the end of the header.
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
  std::vector<TensorEntry> tensors;  // sorted by offset
  std::int64_t data_begin = 0;       // offset of the first tensor in the file
  std::int64_t file_bytes() const {
    return data_begin + (tensors.empty() ? 0 : tensors.back().end);
  }
  const TensorEntry* find(std::string_view name) const;  // null if there is none
};

inline constexpr std::int64_t kLengthBytes = 8;
// Limit of the reference implementation.
inline constexpr std::int64_t kMaxHeaderBytes = 100'000'000;
// The data starts at a multiple of this, so that large writes are aligned.
inline constexpr std::int64_t kDataAlign = 4096;

// Returns the number of elements, or -1 if it overflows.
std::int64_t elements_of(const std::vector<std::int64_t>& shape);

// Parses the JSON of a header for a file with `data_bytes` of data. `where` names the file in
// errors. Strict: throws DataError for any violation of the format.
Header parse_header(std::string_view json, std::int64_t data_bytes, const std::string& where);
// Reads the header of a file. `raw`, if given, receives all bytes before the data.
Header read_header(File& file, const std::string& where, std::string* raw = nullptr);

// Returns all bytes before the data, for consecutive tensors that start at offset 0.
std::string header_bytes(const std::vector<TensorEntry>& tensors,
                         const std::map<std::string, std::string>& metadata);

}  // namespace tessera::checkpoint
