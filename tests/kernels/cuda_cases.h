// Shapes, types and alignments for the tests of the CUDA layers.
#pragma once

#include "tests/kernels/device.h"

#include "tessera/core/errors.h"

namespace tessera::kernels::cuda {

struct Case {
  DType type, other;  // type of matrices; type of weights and biases
  std::size_t rows, cols;
  std::size_t shift;  // elements after an aligned address
};

template <class Body>
void each_case(Body&& f) {
  constexpr std::size_t shapes[][2] = {
      {0, 16},     {1, 1},     {1, 8},     {3, 5},     {7, 24},    {33, 100},  {64, 768},
      {130, 1600}, {5, 1601},  {9, 2048},  {6, 3072},  {11, 4096}, {4, 6400},  {5, 8192},
      {3, 14336},  {2, 16384}, {3, 20000}, {2, 40001}, {2500, 40}, {3001, 128}};
  std::mt19937 random(5);
  int turn = 0;
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    for (const auto& shape : shapes) {
      Case c{type, DType::f32, shape[0], shape[1], 0};
      // Weights of the same type, of f32, and occasionally of the third type.
      if (turn % 2 == 0) c.other = type;
      if (turn % 7 == 3) c.other = type == DType::f16 ? DType::bf16 : DType::f16;
      if (turn++ % 5 == 4) c.shift = 1;
      SCOPED_TRACE(testing::Message() << name(c.type) << ", weights " << name(c.other) << ", ["
                                      << c.rows << ", " << c.cols << "], shift " << c.shift);
      f(c, random);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

// Calls f(array, sink, previous contents) for gradients of each type that are written and added.
template <class Body>
void each_sink(std::size_t n, std::mt19937& random, Body&& f) {
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    for (const bool add : {false, true}) {
      DeviceArray array = normal_array(type, n, random);
      std::vector<double> before(n);
      for (std::size_t i = 0; add && i < n; ++i) before[i] = array[i];
      f(array, Sink{array.data(), type, add}, before);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

inline void add_to(std::vector<double>& to, const std::vector<double>& what) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += what[i];
}

}  // namespace tessera::kernels::cuda
