// How Folder reads: what is wanted of a parameter becomes jobs of a few megabytes, which threads
// take one after the other.

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>

#include "tessera/checkpoint/dtype.h"
#include "tessera/core/errors.h"
#include "tessera/core/index.h"
#include "tessera/core/text.h"
#include "tessera/huggingface/folder.h"

namespace tessera::huggingface {
namespace {

using checkpoint::bytes_of;

constexpr std::int64_t kJobBytes = std::int64_t{4} << 20;
// Below that, a gap between two stretches costs less to read than a second call.
constexpr std::int64_t kGapBytes = 16 << 10;
constexpr unsigned kMostThreads = 4;

void convert_all(DType from, const std::byte* source, DType to, std::byte* target,
                 std::int64_t count) {
  if (from == DType::bf16 && to == DType::f32) {  // the usual case, and simple enough for vectors
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

// target[j · stride + i] = source[i · width + j]: rows of the source become columns of the target.
template <typename T>
void transpose(const std::byte* source, std::int64_t rows, std::int64_t width, std::int64_t columns,
               std::byte* target, std::int64_t stride) {
  constexpr std::int64_t kTile = 32;  // both sides of one stay in the nearest cache
  for (std::int64_t i0 = 0; i0 < rows; i0 += kTile) {
    for (std::int64_t j0 = 0; j0 < columns; j0 += kTile) {
      const std::int64_t i1 = std::min(rows, i0 + kTile), j1 = std::min(columns, j0 + kTile);
      for (std::int64_t j = j0; j < j1; ++j) {
        for (std::int64_t i = i0; i < i1; ++i) {
          std::memcpy(target + (j * stride + i) * std::int64_t{sizeof(T)},
                      source + (i * width + j) * std::int64_t{sizeof(T)}, sizeof(T));
        }
      }
    }
  }
}

}  // namespace

// Elements of a tensor and where they go. Plain: `count` in a row from element `from`. Transposed:
// rows [from, from + rows) of the tensor, of each `count` elements from `column` on; element (i, j)
// of these goes to local + j · stride + i.
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
                           " were asked for"));
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
  // Elements [row, row + rows) × [column, column + columns) of a piece, as ours has it.
  struct Rectangle {
    const Piece* piece = nullptr;
    std::int64_t row = 0, rows = 0, column = 0, columns = 0, local = 0, stride = 0;
  };

  Job job_of(const Piece& piece) const {
    const Place& place = folder_.tensors_.at(piece.tensor);
    Job job;
    job.file = &folder_.files_[place.file];
    job.entry = place.entry;
    return job;
  }

  void add_plain(const Piece& piece, std::int64_t at, std::int64_t count, std::int64_t local) {
    Job job = job_of(piece);
    const std::int64_t most = kJobBytes / bytes_of(job.entry->dtype);
    for (std::int64_t done = 0; done < count; done += most) {
      job.from = at + done;
      job.count = std::min(most, count - done);
      job.local = local + done;
      jobs_.push_back(job);
    }
  }

  // By rows: the rest of one, whole ones, the beginning of one.
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

  // What a rank has of some columns comes row by row, and is read together.
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
    const std::int64_t most = std::max<std::int64_t>(1, kJobBytes / row_bytes);
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
  const auto room = [](std::vector<std::byte>& memory, std::int64_t bytes) {
    if (as_size(bytes) > memory.size()) memory.resize(as_size(bytes));
    return memory.data();
  };
  if (!job.transposed) {
    std::byte* const target = into + job.local * to_size;
    if (dtype == as) {
      job.file->file->read(at + job.from * size, target, job.count * size);
      return;
    }
    std::byte* const buffer = room(raw, job.count * size);
    job.file->file->read(at + job.from * size, buffer, job.count * size);
    convert_all(dtype, buffer, as, target, job.count);
    return;
  }
  const std::int64_t width = job.entry->shape[1];  // of a row of the tensor
  const std::int64_t first = at + (job.from * width + job.column) * size;
  std::int64_t stride = job.count;  // of the rows in the buffer
  std::byte* buffer = nullptr;
  if ((width - job.count) * size <= kGapBytes) {
    stride = width;
    const std::int64_t elements = (job.rows - 1) * width + job.count;
    buffer = room(raw, elements * size);
    job.file->file->read(first, buffer, elements * size);
  } else {
    buffer = room(raw, job.rows * job.count * size);
    for (std::int64_t row = 0; row < job.rows; ++row) {
      job.file->file->read(first + row * width * size, buffer + row * job.count * size,
                           job.count * size);
    }
  }
  if (dtype != as) {
    const std::int64_t elements = (job.rows - 1) * stride + job.count;
    std::byte* const other = room(converted, elements * to_size);
    convert_all(dtype, buffer, as, other, elements);
    buffer = other;
  }
  std::byte* const target = into + job.local * to_size;
  if (to_size == 4) {
    transpose<std::uint32_t>(buffer, job.rows, stride, job.count, target, job.stride);
  } else {
    transpose<std::uint16_t>(buffer, job.rows, stride, job.count, target, job.stride);
  }
}

void Folder::read(const std::string& param, const std::vector<Run>& runs, DType as,
                  std::byte* into) const {
  shape_of(param);  // throws for one that is not here
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
  // A thread more for every few megabytes.
  std::int64_t elements = 0;
  for (const Job& job : jobs) elements += job.count * std::max<std::int64_t>(1, job.rows);
  const auto useful = static_cast<unsigned>(std::min<std::int64_t>(elements * 4 / kJobBytes, 64));
  const unsigned count = std::min({kMostThreads, std::thread::hardware_concurrency(), useful});
  std::vector<std::thread> threads;
  for (unsigned i = 1; i < count; ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace tessera::huggingface
