#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// [Note: gradient compression] Encoding of gradients that are sent between replicas. bf16, fp16:
// fp32 gradients are rounded to 16 bits for sending and converted back to fp32 on arrival.
// powersgd: a matrix M is sent as P·Qᵀ of low rank (Vogels et al. 2019), and the error is added to
// the rank's next gradient (error feedback). The engine and the planner both use these rules.
enum class GradCompression : std::uint8_t { none, bf16, fp16, powersgd };
// Names accepted by parse_grad_compression().
const std::vector<std::string>& grad_compression_names();
// Returns the name used on the command line.
std::string_view name(GradCompression compression);
GradCompression parse_grad_compression(std::string_view text);  // throws UsageError

// Options of PowerSGD.
struct PowerSgd {
  int rank = 4;                     // columns of P and Q
  std::int64_t warm_up_steps = 10;  // first steps of a run; they send uncompressed gradients
  // Minimum compression ratio in elements. A matrix that does not reach it is sent uncompressed.
  double least_saving = 2;

  friend bool operator==(const PowerSgd&, const PowerSgd&) = default;
};

// Returns the bytes sent for each gradient element that is stored in `kept` bytes.
constexpr int traveling_grad(int kept, GradCompression compression) {
  const bool narrow = compression == GradCompression::bf16 || compression == GradCompression::fp16;
  return narrow && kept == 4 ? 2 : kept;
}

// Returns the rank at which PowerSGD sends a matrix. 0: it is sent uncompressed.
constexpr std::int64_t power_sgd_rank(std::int64_t rows, std::int64_t columns,
                                      const PowerSgd& how) {
  const std::int64_t rank = std::min({std::int64_t{how.rank}, rows, columns});
  const auto low = static_cast<double>(rank * (rows + columns));
  return rank > 0 && low * how.least_saving <= static_cast<double>(rows * columns) ? rank : 0;
}

}  // namespace tessera
