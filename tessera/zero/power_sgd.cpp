#include "tessera/zero/power_sgd.h"

#include <ATen/ops/mm.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "tessera/core/philox.h"
#include "tessera/core/shard.h"

namespace tessera::zero {
namespace {

// Dims of a parameter as a matrix in memory order. A transposed parameter is compressed as its
// transpose, which is equivalent.
std::pair<std::int64_t, std::int64_t> rows_and_columns(const Param& param) {
  if (param.sizes.size() < 2 || param.numel == 0) return {0, 0};
  std::size_t outer = 0;
  for (std::size_t i = 1; i < param.sizes.size(); ++i) {
    if (param.strides[i] > param.strides[outer]) outer = i;
  }
  return {param.sizes[outer], param.numel / param.sizes[outer]};
}

double dot(const double* a, const double* b, std::int64_t count) {
  double sum = 0;
  for (std::int64_t i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

// Makes column c orthogonal to the columns before it, with unit length. Returns false if it depends
// on them linearly.
bool orthonormalize_column(std::vector<double>& columns, std::int64_t rows, std::int64_t c) {
  double* const x = columns.data() + c * rows;
  const double before = std::sqrt(dot(x, x, rows));
  if (!(before > 0)) return false;
  // Twice: the second round removes components that rounding left in the first.
  for (int round = 0; round < 2; ++round) {
    for (std::int64_t other = 0; other < c; ++other) {
      const double* const y = columns.data() + other * rows;
      const double along = dot(x, y, rows);
      for (std::int64_t i = 0; i < rows; ++i) x[i] -= along * y[i];
    }
  }
  const double left = std::sqrt(dot(x, x, rows));
  if (!(left > 1e-6 * before)) return false;
  for (std::int64_t i = 0; i < rows; ++i) x[i] /= left;
  return true;
}

}  // namespace

void orthonormalize(const at::Tensor& x, const Redraw* redraw) {
  const at::Tensor host = x.is_cpu() && x.is_contiguous() ? x : x.to(at::kCPU).contiguous();
  const std::int64_t rows = host.size(0), rank = host.size(1);
  auto* const values = host.data_ptr<float>();
  std::vector<double> columns(static_cast<std::size_t>(rows * rank));
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t c = 0; c < rank; ++c) {
      const double value = values[i * rank + c];
      if (!std::isfinite(value)) return;
      columns[static_cast<std::size_t>(c * rows + i)] = value;
    }
  }
  for (std::int64_t c = 0; c < rank; ++c) {
    bool good = orthonormalize_column(columns, rows, c);
    double* const column = columns.data() + c * rows;
    for (int attempt = 0; !good && redraw != nullptr && attempt < 3; ++attempt) {
      const Philox random(redraw->seed, redraw->stream);
      const auto from = static_cast<std::uint64_t>((attempt * rank + c) * rows);
      for (std::int64_t i = 0; i < rows; ++i) {
        column[i] = random.normal(from + static_cast<std::uint64_t>(i));
      }
      good = orthonormalize_column(columns, rows, c);
    }
    if (!good) std::fill_n(column, rows, 0.0);
  }
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t c = 0; c < rank; ++c) {
      values[i * rank + c] = static_cast<float>(columns[static_cast<std::size_t>(c * rows + i)]);
    }
  }
  if (!host.is_same(x)) x.copy_(host);
}

LowRankGradients::LowRankGradients(const Plan& plan, const PowerSgd& how, std::uint64_t seed,
                                   comm::Group group, const Buffers& buffers,
                                   const std::vector<Buffer>& grads)
    : group_(std::move(group)), seed_(seed), buckets_(plan.buckets.size()) {
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    const Bucket& bucket = plan.buckets[b];
    const auto space = static_cast<std::size_t>(bucket.range.space);
    if (plan.spaces[space].grad_dtype != at::kFloat) continue;
    lay_out(buckets_[b], bucket, plan, how, buffers, grads[space].tensor);
  }
}

void LowRankGradients::lay_out(Compressed& bucket, const Bucket& plan, const Plan& all,
                               const PowerSgd& how, const Buffers& buffers,
                               const at::Tensor& grads) {
  struct Place {
    int param = 0;
    std::int64_t rows = 0, columns = 0, rank = 0, first = 0, second = 0, error = 0;
  };
  std::vector<Place> places;
  std::int64_t first = 0, second = 0, errors = 0;
  const int ranks = all.space_of(plan.range).ranks();
  const auto padded = [&](std::int64_t count) { return shard_size(count, ranks) * ranks; };
  for (const int index : plan.range.params) {
    const Param& param = all.params[static_cast<std::size_t>(index)];
    const auto [rows, columns] = rows_and_columns(param);
    Place place{index, rows, columns, power_sgd_rank(rows, columns, how), first, second, errors};
    if (place.rank > 0) {
      first += padded(rows * place.rank);
      second += padded(columns * place.rank);
      errors += rows * columns;
    } else {
      first += padded(param.numel);
    }
    places.push_back(place);
  }
  if (errors == 0) return;
  const auto options = at::device(grads.device()).dtype(at::kFloat);
  bucket.first = buffers.exposed(group_, first, options, MemoryCategory::buffers);
  bucket.second = buffers.exposed(group_, second, options, MemoryCategory::buffers);
  bucket.errors = buffers.own(errors, options, MemoryCategory::buffers);
  bucket.label = plan.range.label;
  for (const Place& place : places) {
    const Param& param = all.params[static_cast<std::size_t>(place.param)];
    const at::Tensor grad = grads.narrow(0, param.offset, param.numel);
    const auto part = [](const Buffer& of, std::int64_t at, std::int64_t rows,
                         std::int64_t columns) {
      return of.tensor.narrow(0, at, rows * columns).view({rows, columns});
    };
    if (place.rank == 0) {
      bucket.plain.push_back({grad, bucket.first.tensor.narrow(0, place.first, param.numel)});
      continue;
    }
    bucket.matrices.push_back({grad.view({place.rows, place.columns}),
                               part(bucket.errors, place.error, place.rows, place.columns),
                               part(bucket.first, place.first, place.rows, place.rank),
                               part(bucket.second, place.second, place.columns, place.rank),
                               stream_of(param.name), place.param});
  }
}

comm::Work LowRankGradients::all_reduce(const at::Tensor& x, const Compressed& bucket,
                                        const char* what) const {
  comm::Call call;
  call.label = bucket.label + what;
  return group_.all_reduce(x, call);
}

void LowRankGradients::start(int index) {
  const at::NoGradGuard no_grad;
  Compressed& bucket = buckets_[static_cast<std::size_t>(index)];
  for (Matrix& matrix : bucket.matrices) {
    matrix.error.add_(matrix.grad);
    const Redraw redraw{seed_, matrix.stream};
    orthonormalize(matrix.right, &redraw);
    at::Tensor left = matrix.left;
    at::mm_out(left, matrix.error, matrix.right);
  }
  for (const Plain& plain : bucket.plain) plain.place.copy_(plain.grad);
  bucket.work = all_reduce(bucket.first.tensor, bucket, " (P)");
  bucket.started = true;
}

void LowRankGradients::finish(Stopwatch& waiting) {
  const at::NoGradGuard no_grad;
  for (Compressed& bucket : buckets_) {
    if (!bucket.started) continue;
    waiting.time([&] { bucket.work.wait(); });
    for (const Matrix& matrix : bucket.matrices) {
      orthonormalize(matrix.left, nullptr);
      at::Tensor right = matrix.right;
      at::mm_out(right, matrix.error.t(), matrix.left);
      matrix.error.addmm_(matrix.left, matrix.right.t(), 1, -1);
    }
    bucket.work = all_reduce(bucket.second.tensor, bucket, " (Q)");
  }
  for (Compressed& bucket : buckets_) {
    if (!std::exchange(bucket.started, false)) continue;
    waiting.time([&] { bucket.work.wait(); });
    bucket.work = {};
    for (const Matrix& matrix : bucket.matrices) {
      at::Tensor grad = matrix.grad;
      at::mm_out(grad, matrix.left, matrix.right.t());
    }
    for (const Plain& plain : bucket.plain) plain.grad.copy_(plain.place);
  }
}

void LowRankGradients::forget() {
  for (Compressed& bucket : buckets_) {
    if (bucket.matrices.empty()) continue;
    bucket.errors.tensor.zero_();
    bucket.second.tensor.zero_();
  }
}

std::vector<LowRankGradients::State> LowRankGradients::states() const {
  std::vector<State> all;
  for (const Compressed& bucket : buckets_) {
    for (const Matrix& matrix : bucket.matrices) {
      all.push_back({matrix.param, matrix.error, matrix.right});
    }
  }
  return all;
}

std::int64_t LowRankGradients::traveling_elements(int index) const {
  const Compressed& bucket = buckets_[static_cast<std::size_t>(index)];
  return bucket.first.tensor.numel() + bucket.second.tensor.numel();
}

}  // namespace tessera::zero
