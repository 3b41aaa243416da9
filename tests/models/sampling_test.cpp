#include "tessera/models/sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "tessera/core/errors.h"
#include "tessera/models/generate.h"
#include "tests/text.h"

namespace tessera::models {
namespace {

// Reference: sorts all tokens and applies each rule literally.
std::vector<Candidate> slow_candidates(const std::vector<float>& logits, const Sampling& how) {
  std::vector<std::int64_t> order(logits.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int64_t>(i);
  const auto logit = [&](std::int64_t i) { return double{logits[static_cast<std::size_t>(i)]}; };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int64_t a, std::int64_t b) { return logit(a) > logit(b); });
  if (how.temperature == 0) return {{order[0], 1}};
  if (how.top_k > 0 && how.top_k < static_cast<std::int64_t>(order.size())) {
    order.resize(static_cast<std::size_t>(how.top_k));
  }
  std::vector<Candidate> all;
  double total = 0;
  for (const std::int64_t i : order) {
    all.push_back({i, std::exp((logit(i) - logit(order[0])) / how.temperature)});
    total += all.back().probability;
  }
  double before = 0;
  std::vector<Candidate> kept;
  for (const Candidate& each : all) {
    if (how.top_p < 1 && before >= how.top_p * total) break;
    before += each.probability;
    if (each.probability >= how.min_p * all[0].probability) kept.push_back(each);
  }
  total = 0;
  for (const Candidate& each : kept) total += each.probability;
  for (Candidate& each : kept) each.probability /= total;
  return kept;
}

TEST(Sampling, KeepsExactlyTheTokensOfTheSlowReference) {
  std::mt19937 random(3);
  std::vector<Candidate> got;
  for (int round = 0; round < 400; ++round) {
    const std::size_t vocab = std::size_t{1} << (random() % 13);
    std::vector<float> logits(vocab);
    std::normal_distribution<float> normal(0, 3);
    // Every other time coarse, so that some are equal.
    for (float& x : logits) x = round % 2 == 0 ? normal(random) : std::round(normal(random));
    Sampling how;
    how.temperature = std::vector<double>{0, 0.3, 1, 2.5}[random() % 4];
    how.top_k = std::vector<std::int64_t>{0, 1, 5, 50, 100000}[random() % 5];
    how.top_p = std::vector<double>{1, 0.9, 0.5, 0.01, 0.999}[random() % 5];
    how.min_p = std::vector<double>{0, 0.05, 0.5, 1}[random() % 4];
    candidates(logits, how, got);
    const auto wanted = slow_candidates(logits, how);
    ASSERT_EQ(got.size(), wanted.size()) << "round " << round;
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i].token, wanted[i].token) << "round " << round << " at " << i;
      ASSERT_NEAR(got[i].probability, wanted[i].probability, 1e-12);
    }
  }
}

TEST(Sampling, DrawsWithTheGivenProbabilities) {
  const std::vector<float> logits = {std::log(0.5f), std::log(0.3f), std::log(0.2f), -INFINITY};
  std::map<std::int64_t, int> count;
  std::vector<Candidate> scratch;
  constexpr int kDraws = 20000;
  for (int i = 0; i < kDraws; ++i) {
    ++count[sample(logits, {}, uniform_of(1, 0, static_cast<std::uint64_t>(i)), scratch)];
  }
  EXPECT_NEAR(count[0], 0.5 * kDraws, 0.02 * kDraws);
  EXPECT_NEAR(count[1], 0.3 * kDraws, 0.02 * kDraws);
  EXPECT_NEAR(count[2], 0.2 * kDraws, 0.02 * kDraws);
  EXPECT_EQ(count.count(3), 0U);
}

TEST(Sampling, RejectsValuesOutOfBounds) {
  EXPECT_TRUE(contains(error_of([] { check(Sampling{-1}); }), "temperature is -1"));
  EXPECT_TRUE(contains(error_of([] { check(Sampling{1, -1}); }), "top-k"));
  EXPECT_TRUE(contains(error_of([] { check(Sampling{1, 0, 0}); }), "top-p"));
  EXPECT_TRUE(contains(error_of([] { check(Sampling{1, 0, 1, 2}); }), "min-p"));
  std::vector<Candidate> scratch;
  const std::vector<float> none = {NAN, -INFINITY};
  EXPECT_THROW(sample(none, {}, 0, scratch), Error);
}

// The text does not depend on how the bytes are split, and never has a part of a character.
TEST(TextStream, ShowsOnlyWholeCharactersAndNoPartOfAStop) {
  const std::string text = "añ€😀 the END of it";
  const auto shown = [&](const std::vector<std::string>& stops, std::size_t piece, bool* stopped) {
    TextStream stream(stops);
    std::string all;
    for (std::size_t at = 0; at < text.size(); at += piece) {
      const std::string now = stream.push(std::string_view(text).substr(at, piece));
      if (!now.empty()) {
        EXPECT_NE(static_cast<unsigned char>(now[0]) & 0xc0, 0x80) << piece;
      }
      all += now;
    }
    all += stream.finish();
    *stopped = stream.stopped();
    return all;
  };
  for (std::size_t piece = 1; piece < 9; ++piece) {
    bool stopped = false;
    EXPECT_EQ(shown({}, piece, &stopped), text);
    EXPECT_FALSE(stopped);
    EXPECT_EQ(shown({"END"}, piece, &stopped), "añ€😀 the ");
    EXPECT_TRUE(stopped);
    EXPECT_EQ(shown({"END", "€"}, piece, &stopped), "añ");
    EXPECT_TRUE(stopped);
    EXPECT_EQ(shown({"it was"}, piece, &stopped), text);
    EXPECT_FALSE(stopped);
  }
  TextStream cut;
  EXPECT_EQ(cut.push("a\xf0\x9f"), "a");
  EXPECT_EQ(cut.finish(), "\xef\xbf\xbd");
}

}  // namespace
}  // namespace tessera::models
