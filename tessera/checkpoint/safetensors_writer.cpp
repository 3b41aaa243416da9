#include "tessera/checkpoint/safetensors_writer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <future>
#include <memory>

#include "tessera/checkpoint/buffer.h"
#include "tessera/checkpoint/checksum.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::checkpoint {
namespace {

// Double-buffered writer: one buffer is filled while the other is written. All writes except the
// last have the size of a buffer, so that they are page-aligned.
class Stream {
 public:
  Stream(File& file, std::int64_t buffer_bytes, const Charge& charge)
      : file_(file), bytes_(buffer_bytes), buffers_{Buffer(charge), Buffer(charge)} {}
  ~Stream() {
    if (writing_.valid()) writing_.wait();
  }

  // Position for the next bytes, and the space left there.
  std::byte* next() { return buffers_[filling_].get(bytes_) + filled_; }
  std::int64_t room() const { return bytes_ - filled_; }
  // Records that `bytes` were put there.
  void advance(std::int64_t bytes) {
    filled_ += bytes;
    if (filled_ == bytes_) flush();
  }
  void flush() {
    finish();
    if (filled_ == 0) return;
    writing_ =
        std::async(std::launch::async, [this, from = buffers_[filling_].get(bytes_), at = at_,
                                        bytes = filled_] { file_.write(at, from, bytes); });
    at_ += filled_;
    filled_ = 0;
    filling_ = 1 - filling_;
  }
  // Waits for the last write. Throws its error.
  void finish() {
    if (writing_.valid()) writing_.get();
  }

 private:
  File& file_;
  const std::int64_t bytes_;
  std::array<Buffer, 2> buffers_;
  std::size_t filling_ = 0;
  std::int64_t at_ = 0;
  std::int64_t filled_ = 0;
  std::future<void> writing_;
};

// Computes the checksums of the blocks of a tensor that arrives in chunks of any size.
class BlockSums {
 public:
  explicit BlockSums(std::vector<std::uint32_t>& out) : out_(out) {}
  void add(const std::byte* data, std::int64_t bytes) {
    while (bytes > 0) {
      std::int64_t n = bytes;
      if (done_ == 0 && bytes >= kBlockBytes) {
        n -= n % kBlockBytes;
        crc32c_blocks(data, n, out_);
      } else {
        n = std::min(n, kBlockBytes - done_);
        if (done_ == 0) out_.push_back(0);
        out_.back() = crc32c(data, static_cast<std::size_t>(n), out_.back());
        done_ = (done_ + n) % kBlockBytes;
      }
      data += n;
      bytes -= n;
    }
  }

 private:
  std::vector<std::uint32_t>& out_;
  std::int64_t done_ = 0;  // bytes of the last block; 0: it is complete
};

}  // namespace

WrittenFile write_safetensors(FileSystem& files, const std::string& path,
                              std::vector<Outgoing>& tensors,
                              const std::map<std::string, std::string>& metadata,
                              const Charge& charge) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const Outgoing& a, const Outgoing& b) {
    return bytes_of(a.entry.dtype) > bytes_of(b.entry.dtype);
  });
  std::vector<TensorEntry> entries;
  std::int64_t at = 0, buffer_bytes = kLeastBufferBytes;
  for (Outgoing& tensor : tensors) {
    const std::int64_t elements = elements_of(tensor.entry.shape);
    std::int64_t bytes = 0;
    tensor.entry.begin = at;
    if (elements < 0 || __builtin_mul_overflow(elements, bytes_of(tensor.entry.dtype), &bytes) ||
        __builtin_add_overflow(at, bytes, &at)) {
      throw UsageError(str("tensor ", quote(tensor.entry.name), " is too large for a file"));
    }
    tensor.entry.end = at;
    buffer_bytes = std::max(buffer_bytes, std::min(bytes, kWriteBytes));
    entries.push_back(tensor.entry);
  }
  // Rounds down to whole pages, so that writes stay aligned.
  buffer_bytes -= buffer_bytes % kPageBytes;
  const std::string header = header_bytes(entries, metadata);
  WrittenFile written;
  written.header_bytes = static_cast<std::int64_t>(header.size());
  written.header_checksum = crc32c(header);
  written.bytes = written.header_bytes + at;

  const std::unique_ptr<File> file = files.create(path, written.bytes);
  Stream stream(*file, buffer_bytes, charge);
  for (std::int64_t done = 0; done < written.header_bytes;) {
    const std::int64_t bytes = std::min(stream.room(), written.header_bytes - done);
    std::memcpy(stream.next(), header.data() + done, static_cast<std::size_t>(bytes));
    stream.advance(bytes);
    done += bytes;
  }
  for (const Outgoing& tensor : tensors) {
    BlockSums sums(written.checksums.emplace_back());
    const std::int64_t size = tensor.entry.bytes();
    for (std::int64_t offset = 0; offset < size;) {
      const std::int64_t bytes = std::min(stream.room(), size - offset);
      std::byte* const into = stream.next();
      const std::byte* data = tensor.source(offset, bytes, into);
      if (data != into) std::memcpy(into, data, static_cast<std::size_t>(bytes));
      sums.add(into, bytes);
      stream.advance(bytes);
      offset += bytes;
    }
  }
  stream.flush();
  stream.finish();
  file->sync();
  return written;
}

}  // namespace tessera::checkpoint
