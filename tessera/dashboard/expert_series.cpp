#include "tessera/dashboard/expert_series.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace tessera::dashboard {
namespace {

constexpr std::size_t kFewestColumns = 8, kMostColumns = 256;

// Returns the number with this key; 0 if there is none.
double finite_number(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number()) return 0;
  const double value = found->get<double>();
  return std::isfinite(value) ? value : 0;
}

bool is_load(const Json& load) {
  const auto name = load.is_object() ? load.find("layer") : load.end();
  if (!load.is_object() || name == load.end() || !name->is_string()) return false;
  const auto tokens = load.find("tokens");
  if (tokens == load.end() || !tokens->is_array() || tokens->empty()) return false;
  return std::all_of(tokens->begin(), tokens->end(),
                     [](const Json& each) { return each.is_number() && each.get<double>() >= 0; });
}

}  // namespace

std::size_t ExpertSeries::most_columns() const {
  return std::clamp(most_numbers_ / std::max<std::size_t>(1, width_), kFewestColumns, kMostColumns);
}

bool ExpertSeries::describe(const Json& experts) {
  std::vector<Layer> layers;
  std::size_t width = 0;
  for (const Json& load : experts) {
    if (!is_load(load)) return false;
    layers.push_back({load["layer"].get<std::string>(), load["tokens"].size(), width});
    width += load["tokens"].size() + kExtras;
  }
  if (width == 0 || width > most_numbers_ / kFewestColumns) return false;
  layers_ = std::move(layers);
  width_ = width;
  return true;
}

std::vector<double> ExpertSeries::numbers_of(const Json& experts) const {
  if (experts.size() != layers_.size()) return {};
  std::vector<double> numbers;
  numbers.reserve(width_);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const Json& load = experts[i];
    if (!is_load(load) || load["layer"] != layers_[i].name ||
        load["tokens"].size() != layers_[i].experts) {
      return {};
    }
    double pairs = 0;
    for (const Json& tokens : load["tokens"]) {
      numbers.push_back(tokens.get<double>());
      pairs += numbers.back();
    }
    const double dropped = std::clamp(finite_number(load, "dropped"), 0.0, 0.999999);
    numbers.push_back(pairs * dropped / (1 - dropped));
    // Weighted with the pairs before any were dropped, which are proportional to the tokens.
    numbers.push_back(finite_number(load, "entropy") * pairs / (1 - dropped));
  }
  return numbers;
}

void ExpertSeries::add(std::int64_t step, const Json& experts) {
  if (!experts.is_array() || (columns_.empty() && !describe(experts))) return;
  std::vector<double> numbers = numbers_of(experts);
  if (numbers.empty()) return;
  if (!columns_.empty() && columns_.back().lines < lines_per_column_) {
    Column& last = columns_.back();
    last.to = step;
    ++last.lines;
    for (std::size_t i = 0; i < width_; ++i) last.numbers[i] += numbers[i];
    return;
  }
  columns_.push_back({step, step, 1, std::move(numbers)});
  if (columns_.size() > most_columns()) halve();
}

void ExpertSeries::halve() {
  std::vector<Column> fewer;
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    if (c % 2 == 0) {
      fewer.push_back(std::move(columns_[c]));
      continue;
    }
    Column& column = fewer.back();
    column.to = columns_[c].to;
    column.lines += columns_[c].lines;
    for (std::size_t i = 0; i < width_; ++i) column.numbers[i] += columns_[c].numbers[i];
  }
  columns_ = std::move(fewer);
  lines_per_column_ *= 2;
}

void ExpertSeries::remove_from(std::int64_t step) {
  while (!columns_.empty() && columns_.back().to >= step) columns_.pop_back();
}

void ExpertSeries::clear() {
  layers_.clear();
  columns_.clear();
  width_ = 0;
  lines_per_column_ = 1;
}

Json ExpertSeries::json(const std::string& layer) const {
  Json json = {{"layers", Json::array()}};
  std::vector<Layer> shown;
  std::size_t rows = 0;
  for (const Layer& each : layers_) {
    json["layers"].push_back(each.name);
    if (!layer.empty() && each.name != layer) continue;
    shown.push_back(each);
    rows = std::max(rows, each.experts);
  }
  if (shown.empty()) return json;
  json["layer"] = layer;
  for (const char* key : {"from", "to", "mean", "imbalance", "dropped", "entropy"}) {
    json[key] = Json::array();
  }
  json["tokens"] = Json(rows, Json::array());
  for (const Column& column : columns_) {
    std::vector<double> tokens(rows);
    double dropped = 0, entropy = 0, imbalance = 0, pairs = 0;
    for (const Layer& each : shown) {
      double most = 0, sum = 0;
      for (std::size_t e = 0; e < each.experts; ++e) {
        const double own = column.numbers[each.first + e];
        tokens[e] += own;
        sum += own;
        most = std::max(most, own);
      }
      imbalance += sum > 0 ? most * static_cast<double>(each.experts) / sum : 1;
      const double* const extras = &column.numbers[each.first + each.experts];
      dropped += extras[kDroppedPairs];
      entropy += extras[kEntropySum];
      pairs += sum + extras[kDroppedPairs];
    }
    double all = 0;
    for (std::size_t e = 0; e < rows; ++e) {
      json["tokens"][e].push_back(tokens[e]);
      all += tokens[e];
    }
    json["from"].push_back(column.from);
    json["to"].push_back(column.to);
    json["mean"].push_back(all / static_cast<double>(rows));
    json["imbalance"].push_back(imbalance / static_cast<double>(shown.size()));
    json["dropped"].push_back(pairs > 0 ? dropped / pairs : 0);
    json["entropy"].push_back(pairs > 0 ? entropy / pairs : 0);
  }
  return json;
}

}  // namespace tessera::dashboard
