#include "tessera/comm/nccl/ordered.h"

#include <ATen/ops/full.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>

namespace tessera::comm::nccl {
namespace {

// Bit pattern of a floating-point type as an integer.
struct Bits {
  at::ScalarType type;
  int sign;                // position of the sign bit
  std::int64_t magnitude;  // mask of all bits but the sign
  std::int64_t nan;        // the canonical NaN of results
};

Bits bits_of(at::ScalarType type) {
  switch (type) {
    case at::kDouble: return {at::kLong, 63, 0x7fffffffffffffff, 0x7ff8000000000000};
    case at::kFloat: return {at::kInt, 31, 0x7fffffff, 0x7fc00000};
    case at::kBFloat16: return {at::kShort, 15, 0x7fff, 0x7fc0};
    default: return {at::kShort, 15, 0x7fff, 0x7e00};
  }
}

// Processors and libraries differ in NaN payloads, so NaNs are replaced by the canonical one.
void set_nan(const at::Tensor& out, const at::Tensor& where) {
  const Bits bits = bits_of(out.scalar_type());
  out.view(bits.type).masked_fill_(where, bits.nan);
}

// Divides according to IEEE 754. The divisor is a tensor, because a scalar divisor becomes a
// multiplication by the reciprocal on the GPU.
void divide(const at::Tensor& sum, std::int64_t divisor) {
  if (divisor != 1) sum.div_(at::full({}, divisor, sum.options()));
}

void sum_floats(const at::Tensor& out, const std::vector<at::Tensor>& sources,
                std::int64_t divisor) {
  const bool wide = out.scalar_type() == at::kDouble;
  const at::Tensor sum = sources.front().to(wide ? at::kDouble : at::kFloat, false, /*copy=*/true);
  for (std::size_t s = 1; s < sources.size(); ++s) sum.add_(sources[s]);
  divide(sum, divisor);
  const at::Tensor where = sum.isnan();
  out.copy_(sum);
  set_nan(out, where);
}

void sum_integers(const at::Tensor& out, const std::vector<at::Tensor>& sources,
                  std::int64_t divisor) {
  // An average needs the exact sum; a plain sum wraps the same way in any width.
  const at::ScalarType type = divisor == 1 ? out.scalar_type() : at::kLong;
  const at::Tensor sum = sources.front().to(type, false, /*copy=*/true);
  for (std::size_t s = 1; s < sources.size(); ++s) sum.add_(sources[s]);
  if (divisor != 1) sum.div_(divisor, "trunc");
  out.copy_(sum);
}

// Flips the magnitude bits of negative numbers. The bits of floats then compare as integers like
// the floats themselves, with -0.0 < +0.0. The operation is its own inverse.
void flip_negative(const at::Tensor& bits, const Bits& format) {
  bits.bitwise_xor_(bits.bitwise_right_shift(format.sign).bitwise_and_(format.magnitude));
}

void extreme(const at::Tensor& out, const std::vector<at::Tensor>& sources, ReduceOp op) {
  const bool floating = out.is_floating_point();
  const Bits format = bits_of(out.scalar_type());
  at::Tensor best, nan;
  for (const at::Tensor& source : sources) {
    at::Tensor next = source;
    if (floating) {
      next = source.view(format.type).clone();
      flip_negative(next, format);
      const at::Tensor here = source.isnan();
      nan = nan.defined() ? nan.logical_or_(here) : here;
    }
    if (best.defined()) {
      best = op == ReduceOp::min ? at::minimum(best, next) : at::maximum(best, next);
    } else {
      best = next;
    }
  }
  if (!floating) {
    out.copy_(best);
    return;
  }
  flip_negative(best, format);
  out.view(format.type).copy_(best);
  set_nan(out, nan);
}

}  // namespace

void reduce_in_order(const at::Tensor& out, const std::vector<at::Tensor>& sources, ReduceOp op,
                     std::int64_t divisor) {
  if (out.numel() == 0) return;
  if (sources.size() == 1 && divisor == 1) {
    out.copy_(sources.front());
  } else if (op == ReduceOp::min || op == ReduceOp::max) {
    extreme(out, sources, op);
  } else if (out.is_floating_point()) {
    sum_floats(out, sources, divisor);
  } else {
    sum_integers(out, sources, divisor);
  }
}

}  // namespace tessera::comm::nccl
