// Stubs that replace the CUDA kernels if nvcc was not found. Every kernel throws.
#include "tessera/core/errors.h"
#include "tessera/kernels/cuda/convert.h"
#include "tessera/kernels/cuda/dropout.h"
#include "tessera/kernels/cuda/experts.h"
#include "tessera/kernels/cuda/fp8.h"
#include "tessera/kernels/cuda/gemm.h"
#include "tessera/kernels/cuda/gemm_runtime.h"
#include "tessera/kernels/cuda/layers.h"
#include "tessera/kernels/cuda/normals.h"
#include "tessera/kernels/cuda/optimizer.h"

namespace tessera::kernels::cuda {
namespace {

constexpr const char* kAbsent =
    "Tessera was built without CUDA kernels because nvcc was not found. Install nvcc "
    "(scripts/setup.sh nvcc) and rebuild, or train on the CPU.";

[[noreturn]] void absent() { throw Error(kAbsent); }

}  // namespace

bool built() { return false; }

// experts.h
void choose_experts(const Router&, const float*, std::int32_t, std::int32_t*, Stream) { absent(); }
void count_experts(const Router&, const std::int32_t*, std::int32_t, std::size_t,
                   unsigned long long*, Stream) {
  absent();
}
void weigh_experts(const Router&, const std::int32_t*, const std::int64_t*, float*, double*,
                   Stream) {
  absent();
}
void weigh_experts_backward(const Router&, const std::int32_t*, const std::int64_t*, const float*,
                            const float*, float*, Stream) {
  absent();
}
std::size_t sort_scratch(const SortPairs&) { absent(); }
void sort_pairs(const SortPairs&, std::int32_t*, std::int32_t*, std::int64_t*, std::int32_t*,
                Stream) {
  absent();
}
void order_pairs(const std::int32_t*, std::size_t, std::int32_t*, Stream) { absent(); }
void gather_rows(const GatherRows&, void*, Stream) { absent(); }
void combine_rows(const CombineRows&, void*, Stream) { absent(); }
void expert_activation(const ExpertActivation&, void*, Stream) { absent(); }
void expert_activation_backward(const ExpertActivation&, const void*, void*, void*, float*,
                                Stream) {
  absent();
}

// layers.h
std::size_t column_scratch(std::size_t, std::size_t) { absent(); }
void norm_forward(const Norm&, void*, void*, float*, float*, Stream) { absent(); }
void norm_recompute(const Norm&, const float*, const float*, void*, Stream) { absent(); }
void norm_backward(const Norm&, const float*, const float*, const void*, const void*, void*, void*,
                   Sink, Sink, float*, float*, Stream) {
  absent();
}
void gelu_forward(const Gelu&, void*, Stream) { absent(); }
void gelu_backward(const Gelu&, const void*, void*, void*, Sink, float*, Stream) { absent(); }
void swiglu_forward(const SwiGlu&, void*, Stream) { absent(); }
void swiglu_backward(const SwiGlu&, const void*, void*, void*, Stream) { absent(); }
void rotary(const Rotary&, void*, Stream) { absent(); }
void side_by_side(const SideBySide&, void*, float*, float*, Stream) { absent(); }
void column_sums(const Columns&, Sink, float*, Stream) { absent(); }
void put_sums(const float*, std::size_t, Sink, Stream) { absent(); }
void cross_entropy(const CrossEntropy&, void*, float*, int*, Stream) { absent(); }
void shard_statistics(const ShardCrossEntropy&, const void*, float*, float*, float*, int*, Stream) {
  absent();
}
void shard_gradient(const ShardCrossEntropy&, void*, const float*, Stream) { absent(); }

// fp8.h
void largest_magnitude(const Magnitudes&, float*, Stream) { absent(); }
void to_fp8(const ToFp8&, void*, void*, float*, Stream) { absent(); }

// gemm.h
const char* gemm_problem() { return kAbsent; }
const char* fp8_problem() { return kAbsent; }
bool gemm(const Gemm&, Workspace, bool, Stream) { absent(); }

// gemm_runtime.h: the only function that others use
bool capturing(Stream) { return false; }

// dropout.h
void dropout(const Dropout&, const void*, void*, Stream) { absent(); }

// convert.h
void convert(const Conversion&, Stream) { absent(); }

// normals.h
void fill_normals(const Normals&, float*, Stream) { absent(); }

// optimizer.h
void sum_of_squares(const SquarePiece*, std::size_t, double*, const double*, const std::uint8_t*,
                    std::size_t, void*, Stream) {
  absent();
}
void add_sums(const void*, int, std::size_t, bool, void*, Stream) { absent(); }
void decide(const rules::Rule&, const Decision&, Stream) { absent(); }
void decide_matrices(const rules::Momentum&, const MatrixDecision&, Stream) { absent(); }
void update(const rules::Rule&, const UpdateTypes&, const UpdatePiece*, std::size_t,
            const ParamStep*, Stream) {
  absent();
}
void update(const rules::Rule&, const rules::Step&, const UpdateTypes&, const UpdatePiece&,
            std::uint64_t, Stream) {
  absent();
}

}  // namespace tessera::kernels::cuda
