#include <gtest/gtest.h>

#include "tests/huggingface/fuzz.h"

namespace tessera::huggingface {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kInputs = 3'000;
#else
constexpr int kInputs = 20'000;
#endif

TEST(Fuzz, ParsersSurviveMutatedTexts) { fuzz_texts(kInputs, 1); }

}  // namespace
}  // namespace tessera::huggingface
