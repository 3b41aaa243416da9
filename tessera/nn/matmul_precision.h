#pragma once

#include "tessera/core/run_options.h"

namespace tessera::nn {

// Precision of fp32 matrix products on GPUs while the object lives. `high`: Tessera's and
// LibTorch's products may round their inputs to TF32. `highest` changes nothing. Applies to the
// whole process, because LibTorch's setting does; objects in several threads are allowed.
class MatmulPrecisionScope {
 public:
  explicit MatmulPrecisionScope(MatmulPrecision precision);
  ~MatmulPrecisionScope();
  MatmulPrecisionScope(const MatmulPrecisionScope&) = delete;
  MatmulPrecisionScope& operator=(const MatmulPrecisionScope&) = delete;

 private:
  bool high_;
};

// Returns whether an object with `high` lives.
bool allows_tf32();

// Precision of the linears of transformer blocks on GPUs that are called while the object lives:
// [Note: fp8 linears]. Applies to the whole process. `layout` changes nothing.
class PrecisionScope {
 public:
  explicit PrecisionScope(Precision precision);
  ~PrecisionScope();
  PrecisionScope(const PrecisionScope&) = delete;
  PrecisionScope& operator=(const PrecisionScope&) = delete;

 private:
  bool fp8_;
};

// Returns whether an object with `fp8` lives.
bool computes_in_fp8();

}  // namespace tessera::nn
