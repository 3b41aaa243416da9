#include <gtest/gtest.h>

#include "tests/huggingface/fuzz.h"

namespace tessera::huggingface {
namespace {

TEST(FuzzSoak, ParsersSurviveMutatedTexts) { fuzz_texts(1'000'000, 2); }

}  // namespace
}  // namespace tessera::huggingface
