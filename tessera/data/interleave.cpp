#include "tessera/data/interleave.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::data {
namespace {

constexpr std::uint64_t kMaxWeight = (std::uint64_t{1} << 31) - 1;
constexpr int kMaxDigits = 9;

// Returns how many of the first n samples at a branch go left.
std::uint64_t count_left(std::uint64_t n, std::uint64_t left, std::uint64_t both) {
  return n / both * left + n % both * left / both;  // below 2^62: no overflow
}

void reduce(std::vector<std::uint64_t>& weights) {
  std::uint64_t common = 0;
  for (const std::uint64_t weight : weights) common = std::gcd(common, weight);
  for (std::uint64_t& weight : weights) weight /= std::max<std::uint64_t>(1, common);
}

std::uint64_t sum_of(const std::vector<std::uint64_t>& weights) {
  return std::accumulate(weights.begin(), weights.end(), std::uint64_t{0});
}

// Decimal number: "0.70" is 7 with one digit after the point.
struct Decimal {
  std::uint64_t digits = 0;
  int behind = 0;
};
Decimal parse_weight(const std::string& text, const std::string& flag) {
  const auto refuse = [&] {
    throw UsageError(str(flag, ": got the weight ", quote(text),
                         ", must be a positive number with at most ", kMaxDigits,
                         " digits, such as 0.7 or 3"));
  };
  std::string digits = text;
  Decimal out;
  if (const std::size_t point = digits.find('.'); point != std::string::npos) {
    digits.erase(point, 1);
    while (digits.size() > point && digits.back() == '0') digits.pop_back();
    out.behind = static_cast<int>(digits.size() - point);
  }
  digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size()));
  if (digits.empty() || digits.size() > kMaxDigits || out.behind > kMaxDigits ||
      digits.find_first_not_of("0123456789") != std::string::npos) {
    refuse();
  }
  out.digits = std::stoull(digits);
  return out;
}

}  // namespace

Interleave::Interleave(std::vector<std::uint64_t> weights) : weights_(std::move(weights)) {
  sums_.push_back(0);
  for (const std::uint64_t weight : weights_) {
    if (weight == 0 || weight > kMaxWeight) {
      throw UsageError(
          str("a mixture has a weight of ", weight, "; must be from 1 to ", kMaxWeight));
    }
    sums_.push_back(sums_.back() + weight);
  }
  if (weights_.empty() || sums_.back() > kMaxWeight) {
    throw UsageError(str("a mixture has ", weights_.size(), " sources with a total weight of ",
                         sums_.back(), "; must have at least one, and at most ", kMaxWeight));
  }
}

Interleave::Pick Interleave::pick(std::uint64_t sample) const {
  std::size_t first = 0, last = weights_.size();
  while (last - first > 1) {
    const std::size_t middle = first + (last - first) / 2;
    const std::uint64_t left = sums_[middle] - sums_[first], both = sums_[last] - sums_[first];
    const std::uint64_t before = count_left(sample, left, both);
    if (count_left(sample + 1, left, both) > before) {
      sample = before;
      last = middle;
    } else {
      sample -= before;
      first = middle;
    }
  }
  return {first, sample};
}

std::vector<std::uint64_t> Interleave::counts(std::uint64_t samples) const {
  std::vector<std::uint64_t> out(weights_.size());
  const auto divide = [&](const auto& recurse, std::size_t first, std::size_t last,
                          std::uint64_t n) -> void {
    if (last - first == 1) {
      out[first] = n;
      return;
    }
    const std::size_t middle = first + (last - first) / 2;
    const std::uint64_t left =
        count_left(n, sums_[middle] - sums_[first], sums_[last] - sums_[first]);
    recurse(recurse, first, middle, left);
    recurse(recurse, middle, last, n - left);
  };
  divide(divide, 0, weights_.size(), samples);
  return out;
}

std::vector<std::uint64_t> whole_weights(const std::vector<std::string>& texts,
                                         const std::string& flag) {
  std::vector<Decimal> decimals;
  int behind = 0;
  for (const std::string& text : texts) {
    decimals.push_back(parse_weight(text, flag));
    behind = std::max(behind, decimals.back().behind);
  }
  std::vector<std::uint64_t> weights;
  for (const Decimal& each : decimals) {
    std::uint64_t weight = each.digits;  // below 10^9, so the result is below 10^18
    for (int i = each.behind; i < behind; ++i) weight *= 10;
    weights.push_back(weight);
  }
  reduce(weights);
  for (const std::uint64_t weight : weights) {
    if (weight > kMaxWeight || sum_of(weights) > kMaxWeight) {
      throw UsageError(
          str(flag, ": the weights ", join(texts, ", "),
              " differ too much or have too many digits; the sum of the reduced integer weights "
              "must be at most ",
              kMaxWeight));
    }
  }
  return weights;
}

std::vector<std::uint64_t> weights_of_counts(std::vector<std::uint64_t> counts) {
  reduce(counts);
  while (sum_of(counts) > kMaxWeight) {
    for (std::uint64_t& count : counts) count = std::max<std::uint64_t>(1, count / 2);
    reduce(counts);
  }
  return counts;
}

}  // namespace tessera::data
