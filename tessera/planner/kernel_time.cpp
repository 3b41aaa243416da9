#include "tessera/planner/kernel_time.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tessera::planner {
namespace {

// Rows and columns of a tile, and what it makes of a unit's peak, relative to the largest.
struct Tile {
  double rows, columns, efficiency;
};
constexpr Tile kTiles[] = {
    {256, 128, 1}, {128, 256, 1}, {128, 128, 0.95}, {128, 64, 0.9}, {64, 128, 0.9}};
constexpr double kFill = 30;      // columns of k, see [Note: kernels]
constexpr double kOverlap = 3.7;  // see [Note: host and device]

double peak(const Hardware& hardware, int element) {
  return element >= 4 ? hardware.peak_fp32 : hardware.peak_16bit;
}

}  // namespace

double product_time(const Hardware& hardware, int element, double m, double n, double k,
                    double batch) {
  const double units = hardware.units;
  const double rate = peak(hardware, element) * hardware.product_efficiency / units;
  double best = std::numeric_limits<double>::infinity();
  for (const Tile& tile : kTiles) {
    const double tiles = std::ceil(m / tile.rows) * std::ceil(n / tile.columns) * batch;
    const double waves = std::ceil(tiles / units);
    best = std::min(best,
                    waves * 2 * tile.rows * tile.columns * (k + kFill) / (rate * tile.efficiency));
  }
  return std::max(best, pass_time(hardware, element * batch * (m * k + k * n + m * n)));
}

double pass_time(const Hardware& hardware, double bytes) {
  return bytes / (hardware.memory_bandwidth * hardware.memory_efficiency);
}

double fused_attention_time(const Hardware& hardware, int element, double flops) {
  return flops / (peak(hardware, element) * hardware.attention_efficiency);
}

double elapsed(const Hardware& hardware, const Work& work) {
  const double device = work.device + work.launches * hardware.kernel_start;
  const double host = work.launches * hardware.launch;
  const double longer = std::max(host, device);
  if (longer <= 0) return 0;
  const double shorter = std::min(host, device) / longer;
  return longer * std::pow(1 + std::pow(shorter, kOverlap), 1 / kOverlap);
}

}  // namespace tessera::planner
