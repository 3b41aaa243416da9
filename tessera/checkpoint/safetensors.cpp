#include "tessera/checkpoint/safetensors.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>

#include "tessera/core/errors.h"
#include "tessera/core/strict_json.h"
#include "tessera/core/text.h"

namespace tessera::checkpoint {

const TensorEntry* Header::find(std::string_view wanted) const {
  for (const TensorEntry& tensor : tensors) {
    if (tensor.name == wanted) return &tensor;
  }
  return nullptr;
}

std::int64_t elements_of(const std::vector<std::int64_t>& shape) {
  // A size of zero makes the product zero, even if the other sizes overflow.
  std::int64_t product = 1;
  bool fits = true;
  for (const std::int64_t size : shape) {
    if (size < 0) return -1;
    if (size == 0) return 0;
    if (fits) fits = !__builtin_mul_overflow(product, size, &product);
  }
  return fits ? product : -1;
}

Header read_header(File& file, const std::string& where, std::string* raw) {
  const std::int64_t size = file.size();
  if (size < kLengthBytes) {
    throw DataError(
        str(where, " has ", size,
            " bytes, too few for a safetensors file: it was truncated or is another kind of file"));
  }
  std::byte length_bytes[kLengthBytes];
  file.read(0, length_bytes, kLengthBytes);
  std::uint64_t length = 0;
  for (int i = 0; i < kLengthBytes; ++i) {
    length |= std::to_integer<std::uint64_t>(length_bytes[i]) << (8 * i);
  }
  if (length > static_cast<std::uint64_t>(kMaxHeaderBytes) ||
      static_cast<std::int64_t>(length) > size - kLengthBytes) {
    throw DataError(str(where, ": the first eight bytes give a header of ", length,
                        " bytes, but the file has ", size, " bytes and a header at most ",
                        kMaxHeaderBytes, ": it was truncated or is not a safetensors file"));
  }
  std::string bytes(static_cast<std::size_t>(length) + kLengthBytes, '\0');
  std::copy(length_bytes, length_bytes + kLengthBytes, reinterpret_cast<std::byte*>(bytes.data()));
  file.read(kLengthBytes, reinterpret_cast<std::byte*>(bytes.data()) + kLengthBytes,
            static_cast<std::int64_t>(length));
  const auto data_begin = static_cast<std::int64_t>(bytes.size());
  Header header =
      parse_header(std::string_view(bytes).substr(kLengthBytes), size - data_begin, where);
  header.data_begin = data_begin;
  if (raw != nullptr) *raw = std::move(bytes);
  return header;
}

namespace {

using Json = nlohmann::json;

std::int64_t size_from(const Json& value, const std::string& what) {
  if (!value.is_number_integer() ||
      (value.is_number_unsigned() &&
       value.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX)) ||
      value.get<std::int64_t>() < 0) {
    throw DataError(str(what, " is ", quote(value.dump(-1, ' ', true)),
                        "; must be a whole number from 0 to 2^63 - 1"));
  }
  return value.get<std::int64_t>();
}

TensorEntry entry_from(const std::string& name, const Json& value, const std::string& where) {
  const std::string what = str(where, ": tensor ", quote(name));
  if (!value.is_object()) throw DataError(what + " must be described by an object");
  for (const auto& item : value.items()) {
    if (item.key() != "dtype" && item.key() != "shape" && item.key() != "data_offsets") {
      throw DataError(str(what, " has ", quote(item.key()), ", which is not part of the format"));
    }
  }
  const auto field = [&](const char* key) -> const Json& {
    const auto found = value.find(key);
    if (found == value.end()) throw DataError(str(what, " has no ", key));
    return *found;
  };
  TensorEntry entry;
  entry.name = name;
  const Json& dtype = field("dtype");
  // find_dtype() accepts more spellings than the format.
  const auto known =
      dtype.is_string() ? find_dtype(dtype.get_ref<const std::string&>()) : std::optional<DType>{};
  if (!known || stored_name(*known) != dtype.get_ref<const std::string&>()) {
    throw DataError(
        str(what, " has the dtype ", quote(dtype.dump(-1, ' ', true)), ", which is not supported"));
  }
  entry.dtype = *known;
  const Json& shape = field("shape");
  if (!shape.is_array()) throw DataError(what + " has a shape that is not a list");
  for (const Json& size : shape) entry.shape.push_back(size_from(size, what + ": a size"));
  const Json& offsets = field("data_offsets");
  if (!offsets.is_array() || offsets.size() != 2) {
    throw DataError(what + " has data_offsets that are not a list of two numbers");
  }
  entry.begin = size_from(offsets[0], what + ": data_offsets[0]");
  entry.end = size_from(offsets[1], what + ": data_offsets[1]");
  const std::int64_t elements = elements_of(entry.shape);
  std::int64_t bytes = 0;
  if (elements < 0 || __builtin_mul_overflow(elements, bytes_of(entry.dtype), &bytes)) {
    throw DataError(what + " has a shape with more bytes than a file can hold");
  }
  if (entry.end < entry.begin || entry.bytes() != bytes) {
    throw DataError(str(what, " is at bytes ", entry.begin, " to ", entry.end,
                        " of the data, but its dtype and shape take ", bytes, " bytes"));
  }
  return entry;
}

}  // namespace

Header parse_header(std::string_view json, std::int64_t data_bytes, const std::string& where) {
  if (json.empty() || json.front() != '{') {
    throw DataError(where + ": the header does not begin with {: this is not a safetensors file");
  }
  const Json root = parse_strictly(json, 3, where + ": the header");
  Header header;
  for (const auto& item : root.items()) {
    if (item.key() == "__metadata__") {
      if (!item.value().is_object()) throw DataError(where + ": __metadata__ is not an object");
      for (const auto& text : item.value().items()) {
        if (!text.value().is_string()) {
          throw DataError(
              str(where, ": __metadata__ has ", quote(text.key()), ", which is not a string"));
        }
        header.metadata[text.key()] = text.value().get<std::string>();
      }
    } else {
      header.tensors.push_back(entry_from(item.key(), item.value(), where));
    }
  }
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const TensorEntry& a, const TensorEntry& b) {
              return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
            });
  std::int64_t at = 0;
  for (const TensorEntry& tensor : header.tensors) {
    if (tensor.begin != at) {
      throw DataError(str(where, ": tensor ", quote(tensor.name), " begins at byte ", tensor.begin,
                          " of the data, but the one before ends at ", at,
                          tensor.begin < at ? ": they overlap" : ": there is a gap"));
    }
    at = tensor.end;
  }
  if (at != data_bytes) {
    throw DataError(str(where, ": the tensors take ", at, " bytes, but the file has ", data_bytes,
                        " for them"));
  }
  return header;
}

std::string header_bytes(const std::vector<TensorEntry>& tensors,
                         const std::map<std::string, std::string>& metadata) {
  std::string json;
  try {
    // The object is written by hand to keep the tensors in the order of the file.
    json = "{";
    if (!metadata.empty()) json += "\"__metadata__\":" + Json(metadata).dump();
    for (const TensorEntry& tensor : tensors) {
      if (json.size() > 1) json += ",";
      json += str(Json(tensor.name).dump(), ":{\"dtype\":\"", stored_name(tensor.dtype),
                  "\",\"shape\":", Json(tensor.shape).dump(), ",\"data_offsets\":[", tensor.begin,
                  ",", tensor.end, "]}");
    }
    json += "}";
  } catch (const Json::exception& error) {
    throw UsageError(str("a name cannot be written as JSON: ", error.what()));
  }
  const auto used = static_cast<std::int64_t>(json.size()) + kLengthBytes;
  json.append(static_cast<std::size_t>((kDataAlign - used % kDataAlign) % kDataAlign), ' ');
  if (static_cast<std::int64_t>(json.size()) > kMaxHeaderBytes) {
    throw UsageError(str("a file with ", tensors.size(), " tensors needs a header of ", json.size(),
                         " bytes, but readers accept ", kMaxHeaderBytes,
                         "; distribute them over more files"));
  }
  std::string bytes;
  for (int i = 0; i < kLengthBytes; ++i) {
    bytes += static_cast<char>((json.size() >> (8 * i)) & 0xffu);
  }
  return bytes + json;
}

}  // namespace tessera::checkpoint
