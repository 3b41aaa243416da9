// Measures GPU kernels relative to memory bandwidth. Each file with kernels of one kind has a
// function that takes a Roofline; cuda_roofline.cpp calls them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/kernels/cuda/cuda.h"

namespace tessera::roofline {

using kernels::cuda::Stream;

struct Measured {
  std::string kernel, size;
  double bytes = 0;  // minimum read and written
  double flops = 0;  // 0: bound by memory
  double seconds = 0;
};

class Roofline {
 public:
  Roofline();
  ~Roofline();

  // Returns device memory until the next forget(): small positive numbers in any type, or zeros.
  void* memory(std::size_t bytes, bool zeros = false);
  void forget();

  // Records the median of 20 runs after a warm-up of 3, each with cold caches.
  void measure(const std::string& kernel, const std::string& size, double bytes, double flops,
               const std::function<void(Stream)>& run);

  double copy_bandwidth() const { return copy_; }  // bytes read and written per second
  std::string device() const;
  const std::vector<Measured>& all() const { return all_; }

 private:
  double median_seconds(const std::function<void(Stream)>& run);

  Stream stream_ = nullptr;
  void* flush_ = nullptr;
  double copy_ = 0;
  std::vector<void*> memory_;
  std::vector<Measured> all_;
};

void measure_layers(Roofline& roofline);

}  // namespace tessera::roofline
