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

// Returns rows of `from` in which two settings have each pair of values that they have in a row of
// `from`. Each is the first row of `from` with the most pairs that no row before it has.
inline std::vector<IndexRow> rows_of_all_pairs(const std::vector<IndexRow>& from) {
  using Pair = std::tuple<std::size_t, std::size_t, std::size_t, std::size_t>;
  const auto new_pairs = [](const IndexRow& row, const std::set<Pair>& known) {
    std::vector<Pair> pairs;
    for (std::size_t a = 0; a < row.size(); ++a) {
      for (std::size_t b = a; b < row.size(); ++b) {  // b = a: each value, if there is one setting
        const Pair pair = {a, row[a], b, row[b]};
        if (!known.contains(pair)) pairs.push_back(pair);
      }
    }
    return pairs;
  };
  std::vector<IndexRow> rows;
  std::set<Pair> known;
  while (true) {
    std::vector<Pair> most;
    const IndexRow* best = nullptr;
    for (const IndexRow& row : from) {
      std::vector<Pair> pairs = new_pairs(row, known);
      if (pairs.size() <= most.size()) continue;
      most = std::move(pairs);
      best = &row;
    }
    if (best == nullptr) return rows;
    rows.push_back(*best);
    known.insert(most.begin(), most.end());
  }
}

// Whether tests run all combinations. `make soak` sets the variable.
inline bool all_combinations() {
  const char* value = std::getenv("TESSERA_ALL_COMBINATIONS");
  return value != nullptr && std::string_view(value) == "1";
}

// Returns combinations of one value of each setting for which `allowed`, a function of the values,
// is true: so many that each pair of values of two settings that can occur does, or all of them if
// all_combinations().
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
  if (!all_combinations()) rows = rows_of_all_pairs(rows);
  std::vector<std::tuple<Values...>> combinations;
  for (const IndexRow& row : rows) combinations.push_back(tuple_of(row));
  return combinations;
}

template <typename... Values>
std::vector<std::tuple<Values...>> combinations(const std::vector<Values>&... values) {
  return combinations_where([](const Values&...) { return true; }, values...);
}

}  // namespace tessera
