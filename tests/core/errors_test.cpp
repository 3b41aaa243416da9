#include "tessera/core/errors.h"

#include <gtest/gtest.h>

#include <string>

namespace tessera {
namespace {

TEST(Errors, KeepTheirMessageAndAreErrors) {
  EXPECT_STREQ(UsageError("fix the call").what(), "fix the call");
  EXPECT_STREQ(DataError("bad file").what(), "bad file");
  EXPECT_THROW(throw UsageError("x"), Error);
  EXPECT_THROW(throw PeerError("x", 1), Error);
  EXPECT_THROW(throw DataError("x"), std::runtime_error);
}

TEST(Errors, PeerErrorNamesTheRank) {
  try {
    throw PeerError("rank 3 died", 3);
  } catch (const PeerError& error) {
    EXPECT_EQ(error.rank(), 3);
    EXPECT_STREQ(error.what(), "rank 3 died");
  }
  EXPECT_EQ(PeerError("a rank died").rank(), PeerError::kUnknownRank);
}

}  // namespace
}  // namespace tessera
