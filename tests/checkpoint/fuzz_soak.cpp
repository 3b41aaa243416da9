#include <gtest/gtest.h>

#include "tests/checkpoint/fuzz.h"

namespace tessera::checkpoint {
namespace {

TEST(FuzzSoak, HeadersNeverCrash) { fuzz_headers(1'000'000, 3); }
TEST(FuzzSoak, ManifestsNeverCrash) { fuzz_manifests(200'000, 4); }

}  // namespace
}  // namespace tessera::checkpoint
