#include "tessera/checkpoint/shard_writer.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "tessera/checkpoint/buffer.h"
#include "tessera/checkpoint/checksum.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::checkpoint {
namespace {

// Collects small stretches into large writes; large ones pass through.
class Stream {
 public:
  Stream(File& file, std::int64_t buffer_bytes, const Charge& charge)
      : file_(file), bytes_(buffer_bytes), buffer_(charge) {}

  void put(const std::byte* data, std::int64_t bytes) {
    if (filled_ == 0 && bytes >= bytes_) {
      file_.write(at_, data, bytes);
      at_ += bytes;
      return;
    }
    while (bytes > 0) {
      const std::int64_t n = std::min(bytes, bytes_ - filled_);
      std::memcpy(buffer_.get(bytes_) + filled_, data, static_cast<std::size_t>(n));
      filled_ += n;
      data += n;
      bytes -= n;
      if (filled_ == bytes_) flush();
    }
  }
  void flush() {
    if (filled_ == 0) return;
    file_.write(at_, buffer_.get(bytes_), filled_);
    at_ += filled_;
    filled_ = 0;
  }

 private:
  File& file_;
  const std::int64_t bytes_;
  Buffer buffer_;
  std::int64_t at_ = 0;
  std::int64_t filled_ = 0;
};

}  // namespace

WrittenFile write_safetensors(FileSystem& files, const std::string& path,
                              std::vector<Outgoing>& tensors,
                              const std::map<std::string, std::string>& metadata,
                              const Charge& charge) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const Outgoing& a, const Outgoing& b) {
    return size_of(a.entry.dtype) > size_of(b.entry.dtype);
  });
  std::vector<TensorEntry> entries;
  std::int64_t at = 0, buffer_bytes = kLeastBufferBytes;
  for (Outgoing& tensor : tensors) {
    const std::int64_t elements = elements_of(tensor.entry.shape);
    std::int64_t bytes = 0;
    tensor.entry.begin = at;
    if (elements < 0 || __builtin_mul_overflow(elements, size_of(tensor.entry.dtype), &bytes) ||
        __builtin_add_overflow(at, bytes, &at)) {
      throw UsageError(str("tensor ", quote(tensor.entry.name), " is too large for a file"));
    }
    tensor.entry.end = at;
    buffer_bytes = std::max(buffer_bytes, std::min(bytes, kWriteBytes));
    entries.push_back(tensor.entry);
  }
  const std::string header = header_bytes(entries, metadata);
  WrittenFile written;
  written.header_bytes = static_cast<std::int64_t>(header.size());
  written.header_checksum = crc32c(header);
  written.bytes = written.header_bytes + at;

  const std::unique_ptr<File> file = files.create(path, written.bytes);
  Stream stream(*file, buffer_bytes, charge);
  Buffer staging(charge);
  const auto* header_data = reinterpret_cast<const std::byte*>(header.data());
  for (std::int64_t done = 0; done < written.header_bytes; done += kWriteBytes) {
    stream.put(header_data + done, std::min(kWriteBytes, written.header_bytes - done));
  }
  for (const Outgoing& tensor : tensors) {
    const std::int64_t size = tensor.entry.bytes();
    std::vector<std::uint32_t>& checksums = written.checksums.emplace_back();
    // Large tensors go to the file from where they lie.
    if (size >= buffer_bytes) stream.flush();
    for (std::int64_t offset = 0; offset < size; offset += kWriteBytes) {
      const std::int64_t bytes = std::min(kWriteBytes, size - offset);
      const std::byte* data = tensor.source(offset, bytes, staging.get(buffer_bytes));
      crc32c_blocks(data, bytes, checksums);
      stream.put(data, bytes);
    }
  }
  stream.flush();
  file->sync();
  return written;
}

}  // namespace tessera::checkpoint
