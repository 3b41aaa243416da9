// Folder::read(): a request becomes jobs of a few megabytes, which threads process in order.

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>

#include "tessera/checkpoint/convert_dtype.h"
#include "tessera/core/errors.h"
#include "tessera/core/index.h"
#include "tessera/core/text.h"
#include "tessera/huggingface/model_folder.h"

namespace tessera::huggingface {
namespace {

using checkpoint::bytes_of;

constexpr std::int64_t kJobBytes = std::int64_t{4} << 20;
constexpr std::int64_t kTransposedBytes = std::int64_t{2} << 20;
constexpr std::int64_t kSliceBytes = 256 << 10;
// A gap of at most this size is cheaper to read than a second call.
constexpr std::int64_t kGapBytes = 16 << 10;
constexpr unsigned kMaxThreads = 4;

void convert_all(DType from, const std::byte* source, DType to, std::byte* target,
                 std::int64_t count) {
  if (from == DType::bf16 && to == DType::f32) {  // the usual case, vectorized by the compiler
    for (std::int64_t i = 0; i < count; ++i) {
      std::uint16_t half;
      std::memcpy(&half, source + 2 * i, 2);
      const std::uint32_t bits = std::uint32_t{half} << 16;
      std::memcpy(target + 4 * i, &bits, 4);
    }
    return;
  }
  checkpoint::convert(from, source, to, target, count, checkpoint::Rounding::nearest);
}

// Rows [i0, i1) and columns [j0, j1) of a source become columns and rows of the target:
// target[j · stride + i] = source[i · width + j].
struct Transposed {
  const std::byte* source;
  std::int64_t width;
  std::byte* target;
  std::int64_t stride;
};

template <typename T>
void transpose_scalar(const Transposed& t, std::int64_t i0, std::int64_t i1, std::int64_t j0,
                      std::int64_t j1) {
  constexpr std::int64_t kBlock = 16, kSize = sizeof(T);
  for (std::int64_t i = i0; i < i1; i += kBlock) {
    for (std::int64_t j = j0; j < j1; ++j) {
      T line[kBlock];
      const std::int64_t count = std::min(kBlock, i1 - i);
      for (std::int64_t k = 0; k < count; ++k) {
        std::memcpy(line + k, t.source + ((i + k) * t.width + j) * kSize, sizeof(T));
      }
      std::memcpy(t.target + (j * t.stride + i) * kSize, line, as_size(count * kSize));
    }
  }
}

using Four = std::uint32_t __attribute__((vector_size(16)));

// 16 rows and 4 columns of 4 bytes at once, so that whole cache lines are written.
void transpose_16_by_4(const Transposed& t, std::int64_t i, std::int64_t j) {
  Four out[4][4];
  for (std::int64_t part = 0; part < 4; ++part) {
    Four row[4];
    for (std::int64_t k = 0; k < 4; ++k) {
      std::memcpy(&row[k], t.source + ((i + 4 * part + k) * t.width + j) * 4, sizeof(Four));
    }
    const Four a = __builtin_shufflevector(row[0], row[1], 0, 4, 1, 5);
    const Four b = __builtin_shufflevector(row[0], row[1], 2, 6, 3, 7);
    const Four c = __builtin_shufflevector(row[2], row[3], 0, 4, 1, 5);
    const Four d = __builtin_shufflevector(row[2], row[3], 2, 6, 3, 7);
    out[0][part] = __builtin_shufflevector(a, c, 0, 1, 4, 5);
    out[1][part] = __builtin_shufflevector(a, c, 2, 3, 6, 7);
    out[2][part] = __builtin_shufflevector(b, d, 0, 1, 4, 5);
    out[3][part] = __builtin_shufflevector(b, d, 2, 3, 6, 7);
  }
  for (std::int64_t k = 0; k < 4; ++k) {
    std::memcpy(t.target + ((j + k) * t.stride + i) * 4, out[k], sizeof out[k]);
  }
}

void transpose_words(const Transposed& t, std::int64_t rows, std::int64_t columns) {
  constexpr std::int64_t kPanel = 64;  // rows of the target, each on its own pages
  const std::int64_t i1 = rows / 16 * 16, j1 = columns / 4 * 4;
  for (std::int64_t panel = 0; panel < j1; panel += kPanel) {
    for (std::int64_t i = 0; i < i1; i += 16) {
      for (std::int64_t j = panel; j < std::min(j1, panel + kPanel); j += 4) {
        transpose_16_by_4(t, i, j);
      }
    }
  }
  transpose_scalar<std::uint32_t>(t, i1, rows, 0, j1);
  transpose_scalar<std::uint32_t>(t, 0, rows, j1, columns);
}

}  // namespace

// Elements of a tensor and their destination. Plain: `count` contiguous elements from `from`.
// Transposed: rows [from, from + rows) of the tensor, `count` elements of each from `column`;
// element (i, j) of these goes to local + j · stride + i.
struct Folder::Job {
  const OpenFile* file = nullptr;
  const checkpoint::TensorEntry* entry = nullptr;
  std::int64_t from = 0, count = 0, local = 0;
  bool transposed = false;
  std::int64_t rows = 0, column = 0, stride = 0;
};

class Folder::Plan {
 public:
  Plan(const Folder& folder, const ParamPieces& param) : folder_(folder), param_(param) {
    for (std::size_t d = 1; d < param.shape.size(); ++d) width_ *= param.shape[d];
  }

  void add(const Run& run) {
    if (run.whole < 0 || run.count < 0 || run.whole + run.count > param_.shape[0] * width_) {
      throw UsageError(str("parameter ", quote(param_.param), " has ", param_.shape[0] * width_,
                           " elements; elements ", run.whole, " to ", run.whole + run.count,
                           " were requested"));
    }
    for (const Piece& piece : param_.pieces) {
      const std::int64_t begin = std::max(run.whole, piece.row * width_);
      const std::int64_t end = std::min(run.whole + run.count, (piece.row + piece.rows) * width_);
      if (begin >= end) continue;
      const std::int64_t at = begin - piece.row * width_, local = run.local + begin - run.whole;
      if (piece.transposed) {
        add_transposed(piece, at, end - begin, local);
      } else {
        add_plain(piece, at, end - begin, local);
      }
    }
  }
  std::vector<Job> finish() {
    flush();
    return std::move(jobs_);
  }

 private:
  // Elements [row, row + rows) × [column, column + columns) of a piece, in Tessera's layout.
  struct Rectangle {
    const Piece* piece = nullptr;
    std::int64_t row = 0, rows = 0, column = 0, columns = 0, local = 0, stride = 0;
  };

  Job job_of(const Piece& piece) const {
    const TensorPlace& place = folder_.tensors_.at(piece.tensor);
    Job job;
    job.file = &folder_.files_[place.file];
    job.entry = place.entry;
    return job;
  }

  void add_plain(const Piece& piece, std::int64_t at, std::int64_t count, std::int64_t local) {
    Job job = job_of(piece);
    const std::int64_t most = kJobBytes / bytes_of(job.entry->dtype);
    for (std::int64_t done = 0; done < count; done += most) {
      job.from = piece.from + at + done;
      job.count = std::min(most, count - done);
      job.local = local + done;
      jobs_.push_back(job);
    }
  }

  // Splits into the rest of a row, whole rows, and the beginning of a row.
  void add_transposed(const Piece& piece, std::int64_t at, std::int64_t count, std::int64_t local) {
    while (count > 0) {
      const std::int64_t column = at % width_;
      const std::int64_t rows = column == 0 ? std::max<std::int64_t>(1, count / width_) : 1;
      const std::int64_t columns = std::min(count, width_ - column);
      const std::int64_t taken = rows == 1 ? columns : rows * width_;
      add({&piece, at / width_, rows, column, columns, local, width_});
      at += taken;
      local += taken;
      count -= taken;
    }
  }

  // A rank's shard of some columns arrives row by row; adjacent rows are merged into one read.
  void add(const Rectangle& next) {
    const bool below = last_.piece == next.piece && last_.column == next.column &&
                       last_.columns == next.columns && last_.row + last_.rows == next.row;
    const std::int64_t stride = last_.rows > 0 ? (next.local - last_.local) / last_.rows : 0;
    const bool evenly = next.local - last_.local == stride * last_.rows &&
                        (last_.rows == 1 || last_.stride == stride) &&
                        (next.rows == 1 || next.stride == stride);
    if (below && evenly) {
      last_.rows += next.rows;
      last_.stride = stride;
      return;
    }
    flush();
    last_ = next;
  }

  void flush() {
    if (last_.piece == nullptr) return;
    Job job = job_of(*last_.piece);
    job.transposed = true;
    job.column = last_.row;
    job.count = last_.rows;
    job.stride = last_.stride;
    const std::int64_t row_bytes = last_.piece->rows * bytes_of(job.entry->dtype);
    const std::int64_t most = std::max<std::int64_t>(1, kTransposedBytes / row_bytes);
    for (std::int64_t done = 0; done < last_.columns; done += most) {
      job.from = last_.column + done;
      job.rows = std::min(most, last_.columns - done);
      job.local = last_.local + done;
      jobs_.push_back(job);
    }
    last_ = {};
  }

  const Folder& folder_;
  const ParamPieces& param_;
  std::int64_t width_ = 1;  // of a row of the parameter
  std::vector<Job> jobs_;
  Rectangle last_;
};

void Folder::run(const Job& job, DType as, std::byte* into, std::vector<std::byte>& raw,
                 std::vector<std::byte>& converted) const {
  const DType dtype = job.entry->dtype;
  const std::int64_t size = bytes_of(dtype), to_size = bytes_of(as);
  const std::int64_t at = job.file->header.data_begin + job.entry->begin;
  const auto ensure_size = [](std::vector<std::byte>& memory, std::int64_t bytes) {
    if (as_size(bytes) > memory.size()) memory.resize(as_size(bytes));
    return memory.data();
  };
  if (!job.transposed) {
    std::byte* const target = into + job.local * to_size;
    if (dtype == as) {
      job.file->file->read(at + job.from * size, target, job.count * size);
      return;
    }
    // In small slices, which are still in cache when they are converted.
    const std::int64_t most = kSliceBytes / size;
    std::byte* const buffer = ensure_size(raw, std::min(most, job.count) * size);
    for (std::int64_t done = 0; done < job.count; done += most) {
      const std::int64_t count = std::min(most, job.count - done);
      job.file->file->read(at + (job.from + done) * size, buffer, count * size);
      convert_all(dtype, buffer, as, target + done * to_size, count);
    }
    return;
  }
  const std::int64_t width = job.entry->shape[1];  // of a row of the tensor
  const std::int64_t first = at + (job.from * width + job.column) * size;
  std::int64_t stride = job.count;  // of the rows in the buffer
  std::byte* buffer = nullptr;
  if ((width - job.count) * size <= kGapBytes) {
    stride = width;
    const std::int64_t elements = (job.rows - 1) * width + job.count;
    buffer = ensure_size(raw, elements * size);
    job.file->file->read(first, buffer, elements * size);
  } else {
    buffer = ensure_size(raw, job.rows * job.count * size);
    for (std::int64_t row = 0; row < job.rows; ++row) {
      job.file->file->read(first + row * width * size, buffer + row * job.count * size,
                           job.count * size);
    }
  }
  if (dtype != as) {
    const std::int64_t elements = (job.rows - 1) * stride + job.count;
    std::byte* const other = ensure_size(converted, elements * to_size);
    convert_all(dtype, buffer, as, other, elements);
    buffer = other;
  }
  std::byte* const target = into + job.local * to_size;
  const Transposed t{buffer, stride, target, job.stride};
  if (to_size == 4) {
    transpose_words(t, job.rows, job.count);
  } else {
    transpose_scalar<std::uint16_t>(t, 0, job.rows, 0, job.count);
  }
}

void Folder::read(const std::string& param, const std::vector<Run>& runs, DType as,
                  std::byte* into) const {
  shape_of(param);  // throws for an unknown parameter
  Plan plan(*this, params_.at(param));
  for (const Run& each : runs) plan.add(each);
  const std::vector<Job> jobs = plan.finish();
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;
  const auto work = [&] {
    std::vector<std::byte> raw, converted;
    try {
      for (std::size_t i = next++; i < jobs.size(); i = next++) {
        run(jobs[i], as, into, raw, converted);
      }
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
      next = jobs.size();
    }
  };
  // One more thread for every few megabytes.
  std::int64_t elements = 0;
  for (const Job& job : jobs) elements += job.count * std::max<std::int64_t>(1, job.rows);
  const auto useful = static_cast<unsigned>(std::min<std::int64_t>(elements * 4 / kJobBytes, 64));
  const unsigned count = std::min({kMaxThreads, std::thread::hardware_concurrency(), useful});
  std::vector<std::thread> threads;
  for (unsigned i = 1; i < count; ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace tessera::huggingface
