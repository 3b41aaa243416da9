#include "tessera/core/dtype.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "tessera/core/errors.h"
#include "tests/text.h"

namespace tessera {
namespace {

TEST(DType, ParsesItsNamesIgnoringCase) {
  for (const DType type : kDTypes) {
    std::string text = name(type);
    EXPECT_EQ(parse_dtype(text), type);
    std::transform(text.begin(), text.end(), text.begin(), ::toupper);
    EXPECT_EQ(find_dtype(text), type);
    EXPECT_GT(size_of(type), 0u) << name(type);
    if (type != DType::boolean) {  // the digits of a name are its size in bits
      EXPECT_EQ(std::stoul(text.substr(text.find_first_of("0123456789"))), 8 * size_of(type));
    }
  }
}

TEST(DType, RejectsOtherTypesAndListsTheAccepted) {
  constexpr std::array some = {DType::f32, DType::bf16};
  EXPECT_EQ(parse_dtype("BF16", some), DType::bf16);
  EXPECT_TRUE(contains(error_of([&] { parse_dtype("i8", some); }), "must be one of f32, bf16"));
  EXPECT_TRUE(contains(error_of([&] { parse_dtype("bf61", some); }), "did you mean bf16?"));
  EXPECT_THROW(parse_dtype("float"), UsageError);
  EXPECT_FALSE(find_dtype("F33"));
  for (const char* const name : {"fp32", "float32", "FP32"})
    EXPECT_EQ(find_dtype(name), DType::f32);
  for (const char* const name : {"fp16", "float16"}) EXPECT_EQ(find_dtype(name), DType::f16);
  EXPECT_EQ(find_dtype("bfloat16"), DType::bf16);
}

}  // namespace
}  // namespace tessera
