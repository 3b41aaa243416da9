#include "tests/combinations.h"

#include <gtest/gtest.h>

#include <string>

namespace tessera {
namespace {

using Pairs = std::set<std::tuple<std::size_t, std::size_t, std::size_t, std::size_t>>;

Pairs pairs_of(const std::vector<IndexRow>& rows) {
  Pairs pairs;
  for (const IndexRow& row : rows) {
    for (std::size_t a = 0; a < row.size(); ++a) {
      for (std::size_t b = a + 1; b < row.size(); ++b) pairs.emplace(a, row[a], b, row[b]);
    }
  }
  return pairs;
}

std::vector<IndexRow> chosen_rows(const std::vector<IndexRow>& from) {
  std::vector<IndexRow> rows;
  for (const std::size_t i : rows_of_all_pairs(from)) rows.push_back(from.at(i));
  return rows;
}

TEST(Combinations, AllRowsAreTheProduct) {
  const std::vector<IndexRow> rows = {{0, 0, 0}, {0, 0, 1}, {0, 0, 2},
                                      {1, 0, 0}, {1, 0, 1}, {1, 0, 2}};
  EXPECT_EQ(all_rows({2, 1, 3}), rows);
  EXPECT_TRUE(all_rows({2, 0}).empty());
}

TEST(Combinations, EveryPairOfValuesOccurs) {
  for (const std::vector<std::size_t>& counts : {std::vector<std::size_t>{2, 2, 2, 2, 2, 2},
                                                 {5, 4, 3, 2},
                                                 {1, 7, 2},
                                                 {3, 3, 3, 3},
                                                 {4, 4}}) {
    const std::vector<IndexRow> all = all_rows(counts), rows = chosen_rows(all);
    std::size_t pairs = 0;
    for (std::size_t a = 0; a < counts.size(); ++a) {
      for (std::size_t b = a + 1; b < counts.size(); ++b) pairs += counts[a] * counts[b];
    }
    EXPECT_EQ(pairs_of(rows).size(), pairs);
    std::vector<std::size_t> sorted = counts;
    std::sort(sorted.rbegin(), sorted.rend());
    EXPECT_GE(rows.size(), sorted[0] * sorted[1]);
    EXPECT_LE(rows.size(), sorted[0] * sorted[1] + 6);  // few more than the least possible
  }
}

TEST(Combinations, OneSettingHasAllItsValues) {
  EXPECT_EQ(chosen_rows(all_rows({4})), all_rows({4}));
}

TEST(Combinations, EveryAllowedPairOccursInAllowedRows) {
  std::vector<IndexRow> all = all_rows({4, 3, 3, 2});
  std::erase_if(all, [](const IndexRow& row) { return row[0] + row[1] > 3 || row[2] == row[3]; });
  const std::vector<IndexRow> rows = chosen_rows(all);
  EXPECT_LT(rows.size(), all.size());
  EXPECT_EQ(pairs_of(rows), pairs_of(all));
  for (const IndexRow& row : rows) EXPECT_NE(std::find(all.begin(), all.end(), row), all.end());
}

TEST(Combinations, HaveTheValuesOfTheirTypes) {
  const std::vector<std::string> names = {"a", "b", "c"};
  std::set<std::pair<std::string, int>> seen;
  for (const auto& [name, number, flag] : combinations_where(
           [](const std::string&name, int, bool flag) { return name != "c" || flag; }, names,
           std::vector{1, 2}, std::vector{false, true})) {
    EXPECT_TRUE(name != "c" || flag);
    seen.emplace(name, number);
  }
  EXPECT_EQ(seen.size(), 6U);
}

TEST(Combinations, CoverPairsOfSettingsOfItems) {
  const std::vector<std::string> words = {"aa", "ab", "ba", "bb", "aba", "bbb", "cab"};
  const auto settings = [](const std::string& word) {
    return IndexRow{word.size(), static_cast<std::size_t>(word.front()),
                    static_cast<std::size_t>(word.back())};
  };
  std::vector<IndexRow> all, chosen;
  for (const std::string& word : words) all.push_back(settings(word));
  for (const std::string& word : covering_pairs(words, settings)) chosen.push_back(settings(word));
  EXPECT_EQ(pairs_of(chosen), pairs_of(all));
}

TEST(Combinations, AreAllOfThemOnRequest) {
  const std::vector<int> three = {0, 1, 2};
  const char* before = std::getenv("TESSERA_ALL_COMBINATIONS");
  const std::string saved = before == nullptr ? "" : before;
  setenv("TESSERA_ALL_COMBINATIONS", "0", 1);
  EXPECT_LT(combinations(three, three, three).size(), 27U);
  setenv("TESSERA_ALL_COMBINATIONS", "1", 1);
  EXPECT_EQ(combinations(three, three, three).size(), 27U);
  EXPECT_EQ(covering_pairs(three, [](int) { return IndexRow{0, 0}; }), three);
  setenv("TESSERA_ALL_COMBINATIONS", saved.c_str(), 1);  // "" is as unset
}

}  // namespace
}  // namespace tessera
