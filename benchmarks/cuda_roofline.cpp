// Prints the time of each GPU kernel and the fraction of memory bandwidth that it reaches. Run by
// hand on a GPU:
//   build/bin/cuda_roofline [--json]
#include <cstdio>
#include <cstring>
#include <exception>

#include "benchmarks/roofline.h"

namespace tessera::roofline {
namespace {

void print_table(const Roofline& roofline) {
  std::printf("%s, device copy %.0f GB/s (read and written)\n\n", roofline.device().c_str(),
              roofline.copy_bandwidth() / 1e9);
  std::printf(
      "| kernel | size | µs | MB | GB/s | of copy | TFLOP/s |\n|---|---|--:|--:|--:|--:|--:|\n");
  for (const Measured& m : roofline.all()) {
    const double speed = m.bytes / m.seconds;
    std::printf("| %s | %s | %.1f | %.1f | %.0f | %.0f%% | ", m.kernel.c_str(), m.size.c_str(),
                1e6 * m.seconds, m.bytes / 1e6, speed / 1e9,
                100 * speed / roofline.copy_bandwidth());
    m.flops > 0 ? std::printf("%.0f |\n", m.flops / m.seconds / 1e12) : std::printf("|\n");
  }
}

void print_json(const Roofline& roofline) {
  std::printf("{\"device\": \"%s\", \"copy_bytes_per_second\": %.6g, \"kernels\": [",
              roofline.device().c_str(), roofline.copy_bandwidth());
  const char* between = "\n";
  for (const Measured& m : roofline.all()) {
    std::printf(
        "%s  {\"kernel\": \"%s\", \"size\": \"%s\", \"seconds\": %.6g, \"bytes\": %.0f, "
        "\"flops\": %.0f}",
        between, m.kernel.c_str(), m.size.c_str(), m.seconds, m.bytes, m.flops);
    between = ",\n";
  }
  std::printf("\n]}\n");
}

}  // namespace
}  // namespace tessera::roofline

int main(int argc, char** argv) {
  const bool json = argc == 2 && std::strcmp(argv[1], "--json") == 0;
  if (argc > 1 && !json) {
    std::fprintf(stderr, "cuda_roofline: \"%s\": must be --json or nothing\n", argv[1]);
    return 2;
  }
  try {
    tessera::roofline::Roofline roofline;
    tessera::roofline::measure_layers(roofline);
    json ? tessera::roofline::print_json(roofline) : tessera::roofline::print_table(roofline);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
