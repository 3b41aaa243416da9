#include "tessera/nn/matmul_precision.h"

#include <ATen/Context.h>

#include <atomic>
#include <mutex>

namespace tessera::nn {
namespace {

std::mutex tf32_mutex;
int tf32_scopes = 0;       // objects with `high`
bool tf32_before = false;  // LibTorch's setting before the first of them

std::atomic<int> fp8_scopes = 0;

}  // namespace

MatmulPrecisionScope::MatmulPrecisionScope(MatmulPrecision precision)
    : high_(precision == MatmulPrecision::high) {
  if (!high_) return;
  const std::lock_guard lock(tf32_mutex);
  if (tf32_scopes++ > 0) return;
  tf32_before = at::globalContext().allowTF32CuBLAS();
  at::globalContext().setAllowTF32CuBLAS(true);
}

MatmulPrecisionScope::~MatmulPrecisionScope() {
  if (!high_) return;
  const std::lock_guard lock(tf32_mutex);
  if (--tf32_scopes == 0) at::globalContext().setAllowTF32CuBLAS(tf32_before);
}

bool allows_tf32() {
  const std::lock_guard lock(tf32_mutex);
  return tf32_scopes > 0;
}

PrecisionScope::PrecisionScope(Precision precision) : fp8_(precision == Precision::fp8) {
  if (fp8_) ++fp8_scopes;
}
PrecisionScope::~PrecisionScope() {
  if (fp8_) --fp8_scopes;
}

bool computes_in_fp8() { return fp8_scopes > 0; }

}  // namespace tessera::nn
