// Compares initial values computed on a GPU with the CPU's. Skipped without a GPU.

#include "tessera/kernels/cuda/normals.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <vector>

#include "tessera/core/philox.h"

namespace tessera::kernels::cuda {
namespace {

TEST(CudaNormals, MatchTheCpu) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU found";
  if (!built()) GTEST_SKIP() << "built without CUDA kernels";
  const Philox random(42, stream_of("wte.weight"));
  // Columns 3 to 7 of rows of 10, followed by padding.
  std::vector<tessera::Run> runs;
  for (std::int64_t row = 0; row < 5000; ++row) {
    runs.push_back({row * 10 + 3 + (std::int64_t{1} << 33), row * 5, 5});
  }
  const std::int64_t length = 25000 + 77;
  std::vector<float> want(static_cast<std::size_t>(length));
  for (const tessera::Run& run : runs) {
    tessera::fill_normals(random, static_cast<std::uint64_t>(run.whole),
                          static_cast<std::uint64_t>(run.count), 0.02f, want.data() + run.local);
    for (std::int64_t i = 0; i < run.count; ++i) want[run.local + i] += 0.25f;
  }
  const at::Tensor table =
      at::from_blob(runs.data(), {static_cast<std::int64_t>(runs.size() * sizeof(tessera::Run))},
                    at::kByte)
          .to(at::kCUDA);
  for (const std::int64_t begin : {std::int64_t{0}, std::int64_t{1}, std::int64_t{12003}}) {
    const at::Tensor out =
        at::full({length - begin}, 9.0f, at::device(at::kCUDA).dtype(at::kFloat));
    fill_normals({42, stream_of("wte.weight"), 0.02f, 0.25f,
                  static_cast<const tessera::Run*>(table.const_data_ptr()), runs.size(), begin,
                  length - begin},
                 out.mutable_data_ptr<float>(), nullptr);
    const at::Tensor wanted = at::from_blob(want.data() + begin, {length - begin});
    const at::Tensor off = (out.cpu() - wanted).abs() / wanted.abs().clamp_min(1e-3);
    EXPECT_LE(off.max().item<float>(), 1e-6f) << "from " << begin;
  }
}

}  // namespace
}  // namespace tessera::kernels::cuda
