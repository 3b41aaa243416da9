#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// [Note: gradient compression] How gradients travel between replicas. bf16, fp16: fp32 gradients
// are rounded to 16 bits on their way, and are fp32 again where they arrive. powersgd: a matrix M
// travels as P·Qᵀ of low rank (Vogels et al. 2019), and what that leaves out is added to the
// rank's next gradient. The engine sends by these rules and the planner counts by them.
enum class GradCompression : std::uint8_t { none, bf16, fp16, powersgd };
// What parse_grad_compression() takes.
const std::vector<std::string>& grad_compression_names();
// As the command line spells it.
std::string_view name(GradCompression compression);
GradCompression parse_grad_compression(std::string_view text);  // throws UsageError

// What PowerSGD can be told.
struct PowerSgd {
  int rank = 4;                     // of P and Q
  std::int64_t warm_up_steps = 10;  // first steps of a run, which send whole gradients
  // A matrix that would not travel in this many times fewer elements is sent as it is.
  double least_saving = 2;

  friend bool operator==(const PowerSgd&, const PowerSgd&) = default;
};

// Bytes in which an element of the gradient travels that is kept in so many.
constexpr int traveling_grad(int kept, GradCompression compression) {
  const bool narrow = compression == GradCompression::bf16 || compression == GradCompression::fp16;
  return narrow && kept == 4 ? 2 : kept;
}

// The rank in which PowerSGD sends a matrix; 0: it is sent as it is.
constexpr std::int64_t power_sgd_rank(std::int64_t rows, std::int64_t columns,
                                      const PowerSgd& how) {
  const std::int64_t rank = std::min({std::int64_t{how.rank}, rows, columns});
  const auto low = static_cast<double>(rank * (rows + columns));
  return rank > 0 && low * how.least_saving <= static_cast<double>(rows * columns) ? rank : 0;
}

}  // namespace tessera
