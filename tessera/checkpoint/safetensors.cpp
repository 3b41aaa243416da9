#include "tessera/checkpoint/safetensors.h"

#include <algorithm>

#include "tessera/core/errors.h"
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
  if (length > static_cast<std::uint64_t>(kMostHeaderBytes) ||
      static_cast<std::int64_t>(length) > size - kLengthBytes) {
    throw DataError(str(where, ": the first eight bytes give a header of ", length,
                        " bytes, but the file has ", size, " bytes and a header at most ",
                        kMostHeaderBytes, ": it was truncated or is not a safetensors file"));
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

}  // namespace tessera::checkpoint
