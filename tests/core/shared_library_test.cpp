#include "tessera/core/shared_library.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>

#include "tests/text.h"

namespace tessera {
namespace {

using Cosine = double (*)(double);

TEST(SharedLibrary, OpensTheFirstFileThatLoads) {
  SharedLibrary library({"libtessera-is-not-there.so.7", "libm.so.6"});
  ASSERT_TRUE(library.open()) << library.problem();
  Cosine cosine = nullptr;
  library.need("cos", cosine);
  ASSERT_NE(cosine, nullptr);
  EXPECT_EQ(cosine(0), 1);
  EXPECT_EQ(library.missing(), "");
  Cosine none = cosine;
  library.find("tessera_has_no_such_name", none);
  EXPECT_EQ(none, nullptr);
  EXPECT_EQ(library.missing(), "");
  library.need("tessera_nor_this_one", none);
  library.need("tessera_nor_that_one", none);
  EXPECT_EQ(library.missing(), "tessera_nor_this_one");
}

TEST(SharedLibrary, ReportsWhyNoFileLoads) {
  const SharedLibrary library({"libtessera-is-not-there.so.7"});
  EXPECT_FALSE(library.open());
  EXPECT_TRUE(contains(library.problem(), "libtessera-is-not-there.so.7")) << library.problem();
  Cosine cosine = std::cos;
  library.find("cos", cosine);
  EXPECT_EQ(cosine, nullptr);
}

TEST(SharedLibrary, UsesASymbolOfTheProcessWithoutAFile) {
  const SharedLibrary library("malloc", {"libtessera-is-not-there.so.7"});
  ASSERT_TRUE(library.open()) << library.problem();
  void* (*allocate)(std::size_t) = nullptr;
  library.find("malloc", allocate);
  EXPECT_NE(allocate, nullptr);
}

}  // namespace
}  // namespace tessera
