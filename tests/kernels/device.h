// Device memory for tests of the CUDA kernels, without torch.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "tessera/core/half.h"
#include "tessera/kernels/cuda/cuda.h"

namespace tessera::kernels::cuda {

// Returns null if CUDA kernels can run here, otherwise the reason they cannot.
const char* gpu_problem();
#define TESSERA_NEEDS_GPU()                              \
  if (const char* problem = gpu_problem()) {             \
    GTEST_SKIP() << "skipped: no GPU test: " << problem; \
  }

// Device memory with a host copy. It has guard bytes at both ends, which no kernel may write;
// data() is `shift` elements after an aligned address.
class DeviceArray {
 public:
  DeviceArray(DType type, std::size_t n, std::size_t shift = 0);
  ~DeviceArray();
  DeviceArray(const DeviceArray& other);
  DeviceArray& operator=(const DeviceArray&) = delete;

  DType type() const { return type_; }
  std::size_t size() const { return n_; }
  void* data() const { return device_ + begin(); }
  template <class T>
  T* as() const {
    return static_cast<T*>(data());
  }
  // Accesses the host copy.
  double operator[](std::size_t i) const;
  void set(std::size_t i, double value);
  void upload();    // everything, including the guards
  void download();  // waits for the device
  bool guarded() const;
  bool operator==(const DeviceArray& other) const { return bytes_ == other.bytes_; }

 private:
  static constexpr std::size_t kGuard = 256;
  std::size_t begin() const { return kGuard + shift_ * size_of(type_); }

  DType type_;
  std::size_t n_, shift_;
  std::vector<unsigned char> bytes_;
  unsigned char* device_ = nullptr;
};

// Returns an uploaded array of normal numbers, each rounded to `type`.
DeviceArray normal_array(DType type, std::size_t n, std::mt19937& random, double scale = 1,
                         std::size_t shift = 0);

// Captures `work` on its own stream into a graph and launches that `times` times.
void through_graph(const std::function<void(Stream)>& work, int times);

// Waits for the device and throws if an error occurred there.
void synchronize();

// Half a unit in the last place, plus a margin.
inline double rounding(DType type) {
  return type == DType::bf16 ? 0x1.1p-8 : type == DType::f16 ? 0x1.1p-11 : 0x1.1p-24;
}

// Downloads `got` and compares. Before rounding, it may differ by `relative` of the larger of the
// expected value and `unit` (the magnitude of the numbers it was computed from).
void expect_close(DeviceArray& got, const std::vector<double>& wanted, double relative, double unit,
                  const char* what);

}  // namespace tessera::kernels::cuda
