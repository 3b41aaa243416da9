#include "tessera/core/table.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(Table, AlignsColumns) {
  Table table("lr");
  table.row({"a", "b"});
  table.row({"long–é", "12"});
  table.row({"x", "3"});
  EXPECT_EQ(table.text(),
            "  a        b\n"
            "  long–é  12\n"
            "  x        3\n");
}

TEST(Table, AcceptsShortRowsAndTrimsTrailingSpaces) {
  Table table("llr", "");
  table.row({"name", "what", "bytes"});
  table.row({"x"});
  table.row({"y", "", ""});
  EXPECT_EQ(table.text(), "name  what  bytes\nx\ny\n");
  EXPECT_EQ(Table("l").text(), "");
}

TEST(Table, CountsCharactersNotBytes) {
  EXPECT_EQ(columns_of(""), 0u);
  EXPECT_EQ(columns_of("grüße…"), 6u);
}

}  // namespace
}  // namespace tessera
