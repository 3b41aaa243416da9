// Combinations of values of settings, for tests of many settings together.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace tessera {

using IndexRow = std::vector<std::size_t>;  // for each setting, the index of its value

// Returns all rows, the last setting varying fastest. Setting s has counts[s] values.
inline std::vector<IndexRow> all_rows(const std::vector<std::size_t>& counts) {
  std::vector<IndexRow> rows = {{}};
  for (const std::size_t count : counts) {
    std::vector<IndexRow> longer;
    for (const IndexRow& row : rows) {
      for (std::size_t i = 0; i < count; ++i) {
        longer.push_back(row);
        longer.back().push_back(i);
      }
    }
    rows = std::move(longer);
  }
  return rows;
}

// Returns positions of rows of `from` in which two settings have each pair of values that they have
// in a row of `from`. Each is that of the first row with the most pairs that no row before it has.
inline std::vector<std::size_t> rows_of_all_pairs(const std::vector<IndexRow>& from) {
  using Pair = std::tuple<std::size_t, std::size_t, std::size_t, std::size_t>;
  std::set<Pair> known;
  const auto new_pairs = [&](const IndexRow& row) {
    std::vector<Pair> pairs;
    for (std::size_t a = 0; a < row.size(); ++a) {
      for (std::size_t b = a; b < row.size(); ++b) {  // b = a: each value, if there is one setting
        const Pair pair = {a, row[a], b, row[b]};
        if (!known.contains(pair)) pairs.push_back(pair);
      }
    }
    return pairs;
  };
  std::vector<std::size_t> chosen;
  while (true) {
    std::vector<Pair> most;
    std::size_t best = 0;
    for (std::size_t i = 0; i < from.size(); ++i) {
      std::vector<Pair> pairs = new_pairs(from[i]);
      if (pairs.size() <= most.size()) continue;
      most = std::move(pairs);
      best = i;
    }
    if (most.empty()) return chosen;
    chosen.push_back(best);
    known.insert(most.begin(), most.end());
  }
}

// Whether tests run all combinations. `make soak` sets the variable.
inline bool all_combinations() {
  const char* value = std::getenv("TESSERA_ALL_COMBINATIONS");
  return value != nullptr && std::string_view(value) == "1";
}

// Returns some of `items`: so many that each pair of values of two settings that an item has
// occurs, or all of them if all_combinations(). `settings` returns the values of an item as
// numbers.
template <typename Item, typename Settings>
std::vector<Item> covering_pairs(const std::vector<Item>& items, const Settings& settings) {
  if (all_combinations()) return items;
  std::vector<IndexRow> rows;
  for (const Item& item : items) rows.push_back(settings(item));
  std::vector<Item> chosen;
  for (const std::size_t i : rows_of_all_pairs(rows)) chosen.push_back(items.at(i));
  return chosen;
}

// The same for one value of each setting, of those combinations for which `allowed`, a function of
// the values, is true.
template <typename Allowed, typename... Values>
std::vector<std::tuple<Values...>> combinations_where(const Allowed& allowed,
                                                      const std::vector<Values>&... values) {
  const auto tuple_of = [&](const IndexRow& row) {
    return [&]<std::size_t... Settings>(std::index_sequence<Settings...>) {
      return std::tuple<Values...>{values.at(row.at(Settings))...};
    }
    (std::index_sequence_for<Values...>());
  };
  std::vector<IndexRow> rows = all_rows({values.size()...});
  std::erase_if(rows, [&](const IndexRow& row) { return !std::apply(allowed, tuple_of(row)); });
  std::vector<std::tuple<Values...>> chosen;
  for (const IndexRow& row : covering_pairs(rows, [](const IndexRow& same) { return same; })) {
    chosen.push_back(tuple_of(row));
  }
  return chosen;
}

template <typename... Values>
std::vector<std::tuple<Values...>> combinations(const std::vector<Values>&... values) {
  return combinations_where([](const Values&...) { return true; }, values...);
}

}  // namespace tessera
