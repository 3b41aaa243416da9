#include <gtest/gtest.h>

#include "tests/checkpoint/fuzz.h"

namespace tessera::checkpoint {
namespace {

TEST(FuzzSoak, Headers) { fuzz_headers(1'000'000, 3); }
TEST(FuzzSoak, Manifests) { fuzz_manifests(200'000, 4); }

}  // namespace
}  // namespace tessera::checkpoint
