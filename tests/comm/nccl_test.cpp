// Parts of the nccl backend that work without a GPU: its own sums, and its error message.

#include <gtest/gtest.h>
#include <torch/types.h>

#include <limits>

#include "tessera/comm/dry/backend.h"
#include "tessera/comm/group.h"
#include "tessera/comm/nccl/backend.h"
#include "tessera/comm/nccl/ordered.h"
#include "tessera/core/errors.h"
#include "tests/comm/oracle.h"

namespace tessera::comm::nccl {
namespace {

using comm::testing::Bytes;

const std::vector<std::pair<DType, at::ScalarType>> kTypes = {
    {DType::f32, at::kFloat}, {DType::f64, at::kDouble}, {DType::bf16, at::kBFloat16},
    {DType::f16, at::kHalf},  {DType::i32, at::kInt},    {DType::i64, at::kLong},
    {DType::u8, at::kByte}};

// Random bit patterns: all kinds of NaNs, infinities, both zeros, subnormals.
Bytes any_bits(DType dtype, std::size_t count, int rank) {
  Bytes bytes = comm::testing::make_input(DType::u8, count * size_of(dtype), rank, 77);
  const at::ScalarType type = dtype == DType::f32    ? at::kFloat
                              : dtype == DType::f64  ? at::kDouble
                              : dtype == DType::bf16 ? at::kBFloat16
                                                     : at::kHalf;
  if (dtype == DType::i32 || dtype == DType::i64 || dtype == DType::u8) return bytes;
  const at::Tensor view =
      at::from_blob(bytes.data(), {static_cast<std::int64_t>(count)}, at::dtype(type));
  const double special[] = {0.0, -0.0, std::numeric_limits<double>::infinity(),
                            -std::numeric_limits<double>::infinity(),
                            std::numeric_limits<double>::quiet_NaN()};
  for (int i = 0; i < 25; ++i) view[i] = special[(rank % 2 == 0 ? i / 5 : i % 5)];
  return bytes;
}

TEST(NcclOrdered, MatchesTheReferenceBitwiseForEveryTypeAndOperation) {
  const std::size_t count = 2000;
  for (const auto& [dtype, type] : kTypes) {
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::min, ReduceOp::max}) {
      for (const int ranks : {1, 2, 3, 7}) {
        for (const bool wild : {false, true}) {
          std::vector<Bytes> inputs;
          std::vector<at::Tensor> sources;
          std::vector<const void*> pointers;
          for (int r = 0; r < ranks; ++r) {
            inputs.push_back(wild ? any_bits(dtype, count, r)
                                  : comm::testing::make_input(dtype, count, r));
          }
          for (Bytes& input : inputs) {
            sources.push_back(
                at::from_blob(input.data(), {static_cast<std::int64_t>(count)}, at::dtype(type))
                    .clone());
            pointers.push_back(input.data());
          }
          const std::int64_t divisor = op == ReduceOp::avg ? ranks : 1;
          Bytes want(count * size_of(dtype));
          void* to[] = {want.data()};
          reduce_reference({dtype, dtype, op, divisor}, pointers, to, count);
          const at::Tensor out = at::empty_like(sources.front());
          reduce_in_order(out, sources, op, divisor);
          EXPECT_EQ(std::memcmp(out.data_ptr(), want.data(), want.size()), 0)
              << name(dtype) << " " << name(op) << " over " << ranks << (wild ? " wild" : "");
          reduce_in_order(sources.back(), sources, op, divisor);  // in place
          EXPECT_EQ(std::memcmp(sources.back().data_ptr(), want.data(), want.size()), 0)
              << name(dtype) << " " << name(op) << " over " << ranks << " in place";
        }
      }
    }
  }
}

TEST(Nccl, ReportsWhyItIsNotAvailable) {
  if (available()) GTEST_SKIP() << "this machine has a GPU and NCCL " << version();
  EXPECT_FALSE(why_not().empty());
  try {
    make_backend(dry::make_backend(0, 1, "world"), nullptr, 0, {});
    FAIL() << "no error";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find(why_not()), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace tessera::comm::nccl
