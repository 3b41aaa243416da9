// Memory of a GPU for the tests of its kernels, without torch.
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

// Null if kernels can be run here; otherwise why not.
const char* gpu_problem();
#define TESSERA_NEEDS_GPU()                              \
  if (const char* problem = gpu_problem()) {             \
    GTEST_SKIP() << "skipped: no GPU test: " << problem; \
  }

// Device memory and what the host has seen of it. Guard bytes before and behind, that no kernel may
// touch; kernels get the address `shift` elements behind an aligned one.
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
  // On the host's copy.
  double operator[](std::size_t i) const;
  void set(std::size_t i, double value);
  void upload();    // all of it, the guards too
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

// Uploaded; each element rounded to its type.
DeviceArray normal_array(DType type, std::size_t n, std::mt19937& random, double scale = 1,
                         std::size_t shift = 0);

// Captures `work` on a stream of its own into a graph, and runs that so many times.
void through_graph(const std::function<void(Stream)>& work, int times);

// Waits for the device, and throws if anything went wrong there.
void synchronize();

// Half a unit in the last place, and a little.
inline double rounding(DType type) {
  return type == DType::bf16 ? 0x1.1p-8 : type == DType::f16 ? 0x1.1p-11 : 0x1.1p-24;
}

// Downloads `got`, which may be off by `relative` of the wanted value or of `unit` (the size of the
// numbers it was made of), whichever is larger, before it is rounded.
void expect_close(DeviceArray& got, const std::vector<double>& wanted, double relative, double unit,
                  const char* what);

}  // namespace tessera::kernels::cuda
