#include "tessera/tensor_parallel/overlap.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "tessera/nn/matmul.h"
#include "tessera/nn/recompute.h"

namespace tessera::tensor_parallel {
namespace {

// A product is sent in at most kMaxPieces pieces of at least kMinRows rows: smaller pieces cost
// more than they hide.
constexpr std::int64_t kMaxPieces = 4;
constexpr std::int64_t kMinRows = 64;

// Splits [0, total) into pieces of about equal length, all but the last a multiple of `unit`.
struct Piece {
  std::int64_t begin = 0, length = 0;
};
std::vector<Piece> split_range(std::int64_t total, std::int64_t count, std::int64_t unit) {
  const std::int64_t each = ((total + count - 1) / count + unit - 1) / unit * unit;
  std::vector<Piece> pieces;
  for (std::int64_t begin = 0; begin < total; begin += each) {
    pieces.push_back({begin, std::min(each, total - begin)});
  }
  return pieces;
}
std::int64_t piece_count(std::int64_t rows) {
  return std::clamp<std::int64_t>(rows / kMinRows, 1, kMaxPieces);
}

// Multiplies this rank's rows of every sequence while those of the other ranks arrive in `whole`.
void multiply_arriving(const Axis& axis, const at::Tensor& part, const Pending& whole,
                       nn::GemmByRows& product) {
  const at::Tensor own = matrix(part);
  const std::int64_t tokens = part.size(-2), every = tokens * axis.size();
  const std::int64_t sequences = own.size(0) / tokens, first = axis.rank() * tokens;
  for (std::int64_t i = 0; i < sequences; ++i) {
    product.multiply(i * every + first, own.narrow(0, i * tokens, tokens));
  }
  const at::Tensor all = matrix(whole.wait());
  // From the end of this rank's rows to their beginning in the next sequence.
  for (std::int64_t i = 0; i <= sequences; ++i) {
    const std::int64_t begin = i == 0 ? 0 : (i - 1) * every + first + tokens;
    const std::int64_t end = i == sequences ? sequences * every : i * every + first;
    product.multiply(begin, all.narrow(0, begin, end - begin));
  }
}

// Splits all rows into pieces and sums each in place.
at::Tensor matmul_all_reduce(const Axis& axis, const at::Tensor& rows, const at::Tensor& w,
                             const at::Tensor& b, const std::string& label) {
  nn::GemmByRows product(rows.size(0), w, b);
  const at::Tensor& made = product.unrounded();
  const at::Tensor out =
      made.scalar_type() == rows.scalar_type() ? made : at::empty(made.sizes(), rows.options());
  std::vector<Pending> parts;
  for (const Piece& piece : split_range(rows.size(0), piece_count(rows.size(0)), axis.size())) {
    product.multiply(piece.begin, rows.narrow(0, piece.begin, piece.length));
    parts.push_back(start_all_reduce(axis.group, product.rows(piece.begin, piece.length), label,
                                     out.narrow(0, piece.begin, piece.length)));
  }
  for (const Pending& part : parts) part.wait();
  return out;
}

// Sends several whole sequences at a time; or, for a single sequence, pieces of every rank's
// tokens.
at::Tensor matmul_reduce_scatter(const Axis& axis, const at::Tensor& rows, std::int64_t tokens,
                                 const at::Tensor& w, const at::Tensor& b,
                                 const std::string& label) {
  const std::int64_t ranks = axis.size(), own = tokens / ranks, width = w.size(0);
  const std::int64_t sequences = rows.size(0) / tokens;
  nn::GemmByRows product(rows.size(0), w, b);
  const at::Tensor out = at::empty({sequences * own, width}, rows.options());
  std::vector<Pending> parts;
  const auto send = [&](std::int64_t begin, std::int64_t count, std::int64_t each) {
    const at::Tensor made = product.rows(begin, count).view({count / each, each, width});
    parts.push_back(
        start_reduce_scatter(axis.group, made, label, out.narrow(0, begin / ranks, count / ranks)));
  };
  if (sequences > 1) {
    for (const Piece& piece :
         split_range(sequences, std::min(sequences, piece_count(rows.size(0))), 1)) {
      const std::int64_t begin = piece.begin * tokens, count = piece.length * tokens;
      product.multiply(begin, rows.narrow(0, begin, count));
      send(begin, count, tokens);
    }
  } else {
    for (const Piece& piece : split_range(own, piece_count(own), 1)) {
      const std::int64_t begin = piece.begin * ranks, count = piece.length * ranks;
      for (std::int64_t r = 0; r < ranks; ++r) {
        product.multiply(begin + r * piece.length,
                         rows.narrow(0, r * own + piece.begin, piece.length));
      }
      send(begin, count, count);
    }
  }
  for (const Pending& part : parts) part.wait();
  return out;
}

}  // namespace

bool overlaps(const Axis& axis, const at::Tensor& x, const at::Tensor& w) {
  return axis.overlap && axis.size() > 1 && x.scalar_type() == w.scalar_type() && x.numel() > 0 &&
         x.dim() > 1;
}

Gathered gather_matmul(const Axis& axis, const at::Tensor& x, const at::Tensor& w,
                       const at::Tensor& b, const std::string& label, bool unrounded) {
  auto made =
      nn::keep_in_selective("copy to region · wᵀ", {x, w, b}, [&]() -> std::vector<at::Tensor> {
        const std::int64_t rows = x.numel() / x.size(-1) * (axis.sequence ? axis.size() : 1);
        // Starts the collective first, because the weight may have to be converted.
        const Pending whole = axis.sequence ? start_all_gather(axis.group, x, label) : Pending();
        nn::GemmByRows product(rows, w, b);
        if (axis.sequence) {
          multiply_arriving(axis, x, whole, product);
        } else {
          product.multiply(0, matrix(x));
        }
        std::vector<at::Tensor> results = {unrounded ? product.unrounded() : product.result()};
        if (axis.sequence) results.push_back(whole.result);
        return results;
      });
  return {matrix(axis.sequence ? made[1] : x), made[0]};
}

Pending start_input_gradient(const Axis& axis, const at::Tensor& dx, const std::string& label) {
  const std::string backward = label + " backward";
  return axis.sequence ? start_reduce_scatter(axis.group, dx, backward)
                       : start_all_reduce(axis.group, dx.contiguous(), backward);
}

at::Tensor matmul_reduce(const Axis& axis, const at::Tensor& x, const at::Tensor& w,
                         const at::Tensor& b, const std::string& label) {
  std::vector<std::int64_t> sizes = x.sizes().vec();
  sizes.back() = w.size(0);
  if (!axis.sequence) return matmul_all_reduce(axis, matrix(x), w, b, label).view(sizes);
  const std::int64_t own = own_tokens(axis.group, x, label);
  sizes[sizes.size() - 2] = own;
  return matmul_reduce_scatter(axis, matrix(x), x.size(-2), w, b, label).view(sizes);
}

RowGradients gather_matmul_backward(const Axis& axis, const at::Tensor& part, const at::Tensor& w,
                                    bool want_x, const std::string& label) {
  const Pending whole = start_all_gather(axis.group, part, label + " backward");
  if (!want_x) return {matrix(whole.wait()), {}};
  const std::int64_t rows = part.numel() / part.size(-1) * axis.size();
  nn::GemmByRows product(rows, w.t());
  multiply_arriving(axis, part, whole, product);
  return {matrix(whole.result), product.result()};
}

}  // namespace tessera::tensor_parallel
