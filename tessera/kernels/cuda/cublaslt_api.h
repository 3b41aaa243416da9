#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "tessera/kernels/cuda/cuda.h"

// Declarations of the part of cuBLASLt's C interface that Tessera uses. It is the same in versions
// 12 and 13. Declaring it here needs neither its headers nor a link dependency. Matrices are
// column-major.
namespace tessera::kernels::cuda::lt {

using Handle = struct OpaqueHandle*;
using Operation = struct OpaqueOperation*;
using Layout = struct OpaqueLayout*;
using Preference = struct OpaquePreference*;

enum class Status : int {
  success = 0,
  invalid_value = 7,
  arch_mismatch = 8,
  not_supported = 15,
};

enum class DataType : int { f32 = 0, f16 = 2, bf16 = 14, f8_e4m3 = 28, f8_e5m2 = 29 };
enum class Compute : int { f32 = 68, f32_tf32 = 77 };

enum class OperationField : int {
  transpose_a = 3,  // int32: 0 or 1
  transpose_b = 4,
  epilogue = 7,      // int32
  bias_pointer = 8,  // also the bias gradient
  aux_pointer = 11,  // input of GELU
  aux_stride = 12,   // int64, in elements
  factor_a = 17,     // pointer to a float on the device
  factor_b = 18,
  aux_type = 22,   // int32, a DataType
  fast_sums = 25,  // int8: 0 or 1
  bias_type = 26,  // int32, a DataType
};

enum class PreferenceField : int {
  workspace_bytes = 1,    // uint64
  reduction_schemes = 3,  // uint32, a bit mask
  alignment_a = 5,        // uint32, in bytes
  alignment_b = 6,
  alignment_c = 7,
  alignment_d = 8,
};

// Reduction scheme for a dot product that is computed in parts: in fp32, in the workspace. (The
// other schemes add rounded parts.)
inline constexpr std::uint32_t kReduceInCompute = 2;

inline constexpr std::int32_t kNoEpilogue = 1;
inline constexpr std::int32_t kBias = 4;                    // one value per row of D
inline constexpr std::int32_t kGeluAuxBias = 32 | 128 | 4;  // GELU with tanh
inline constexpr std::int32_t kBiasGradientB = 512;         // sums of B over k, one per column of D

struct Algorithm {
  std::uint64_t data[8];
};

struct Proposal {
  Algorithm algorithm;
  std::size_t workspace;
  Status status;
  float waves;
  int reserved[4];
};
static_assert(sizeof(Proposal) == 96);

struct Api {
  std::size_t (*get_version)();
  const char* (*get_status_string)(Status);
  Status (*create)(Handle*);
  Status (*operation_create)(Operation*, Compute, DataType scale);
  Status (*operation_set)(Operation, OperationField, const void* value, std::size_t bytes);
  Status (*layout_create)(Layout*, DataType, std::uint64_t rows, std::uint64_t cols,
                          std::int64_t stride);
  Status (*preference_create)(Preference*);
  Status (*preference_set)(Preference, PreferenceField, const void* value, std::size_t bytes);
  Status (*preference_destroy)(Preference);
  Status (*propose)(Handle, Operation, Layout a, Layout b, Layout c, Layout d, Preference,
                    int wanted, Proposal* proposals, int* got);
  // D = alpha · op(A) · op(B) + beta · C, then the epilogue.
  Status (*matmul)(Handle, Operation, const void* alpha, const void* a, Layout, const void* b,
                   Layout, const void* beta, const void* c, Layout, void* d, Layout,
                   const Algorithm*, void* workspace, std::size_t workspace_bytes, Stream);

  // Throws Error with the name of the call and cuBLASLt's description unless `status` is success.
  void check(Status status, const char* call) const;
};

struct Library {
  bool loaded = false;
  std::string problem;  // the reason it is not loaded
  Api api{};
};

// Returns the cuBLASLt of this process: the one loaded by LibTorch, otherwise the dynamic loader's.
const Library& library();

}  // namespace tessera::kernels::cuda::lt
