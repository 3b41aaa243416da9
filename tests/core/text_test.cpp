#include "tessera/core/text.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tessera {
namespace {

TEST(Text, StrConcatenatesWhatStreamsWrite) {
  EXPECT_EQ(str("rank ", 3, " of ", 4, ": ", true, ' ', 0.5), "rank 3 of 4: true 0.5");
  EXPECT_EQ(str(), "");
}

TEST(Text, Join) {
  EXPECT_EQ(join({}, ", "), "");
  EXPECT_EQ(join({"a"}, ", "), "a");
  EXPECT_EQ(join({"a", "b", "c"}, ", "), "a, b, c");
}

TEST(Text, QuoteIsPrintableAndShort) {
  EXPECT_EQ(quote("25MB"), "\"25MB\"");
  EXPECT_EQ(quote("a\"b\\c\n\t\x01"), R"("a\"b\\c\n\t\x01")");
  EXPECT_EQ(quote("\xc2\xb5s"), R"("\xc2\xb5s")");
  EXPECT_LT(quote(std::string(100000, 'x')).size(), 100u);
}

TEST(Text, EditDistance) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("abc", ""), 3);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("rnaks", "ranks"), 1);  // neighbours swapped
  EXPECT_EQ(edit_distance("ranks", "rank"), 1);
}

TEST(Text, SuggestFindsTheNearestAndNothingFar) {
  const std::vector<std::string> flags = {"--ranks", "--rails", "--json", "--sizes"};
  EXPECT_EQ(suggest("--rnaks", flags), "--ranks");
  EXPECT_EQ(suggest("--RANKS", flags), "--ranks");
  EXPECT_EQ(suggest("--size", flags), "--sizes");
  EXPECT_EQ(suggest("--verbose", flags), "");
  EXPECT_EQ(suggest("", flags), "");
  EXPECT_EQ(suggest("x", {"y"}), "");
  EXPECT_EQ(suggest("docter", {"run", "doctor", "bench"}), "doctor");
  EXPECT_EQ(suggest(std::string(1 << 20, 'a'), flags), "");
}

TEST(Text, DidYouMean) {
  EXPECT_EQ(did_you_mean("benhc", {"run", "bench"}), "; did you mean bench?");
  EXPECT_EQ(did_you_mean("elephant", {"run", "bench"}), "");
}

TEST(Text, OneIsSingular) {
  EXPECT_EQ(plural(0, "bucket"), "0 buckets");
  EXPECT_EQ(plural(1, "bucket"), "1 bucket");
  EXPECT_EQ(plural(2, "bucket"), "2 buckets");
}

}  // namespace
}  // namespace tessera
