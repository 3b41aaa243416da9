#include "tessera/data/windows.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tessera/core/errors.h"
#include "tessera/data/token_data.h"
#include "tests/data/memory_tokens.h"
#include "tests/text.h"

namespace tessera::data {
namespace {

struct Sample {
  std::vector<Token> ids, targets;
  std::vector<std::int32_t> starts;
  friend bool operator==(const Sample&, const Sample&) = default;
};
Sample sample_of(const Source& source, std::uint64_t number) {
  const auto length = static_cast<std::size_t>(source.seq());
  Sample out{std::vector<Token>(length, -9), std::vector<Token>(length, -9), {}};
  if (source.separate()) out.starts.resize(length, -9);
  source.fill(number, {out.ids, out.targets, out.starts});
  return out;
}

WindowOptions options(std::int64_t seq, Order order = Order::sequential) {
  WindowOptions out;
  out.seq = seq;
  out.order = order;
  return out;
}

// For any length, seed and epoch: an epoch predicts every token but the first once, and, without a
// tail, never those that do not fill a window.
TEST(Windows, PredictEachTokenOncePerEpoch) {
  for (const std::int64_t tokens : {2, 9, 10, 11, 64, 65, 97, 1000}) {
    for (const std::int64_t seq : {1, 3, 8, 9}) {
      for (const Order order : {Order::sequential, Order::shuffle}) {
        for (const bool tail : {false, true}) {
          WindowOptions how = options(seq, order);
          how.tail = tail;
          if (!tail && tokens <= seq) continue;
          const auto source = windows(counting_tokens({tokens}), how);
          const std::uint64_t samples = source->samples_per_epoch();
          ASSERT_EQ(samples,
                    static_cast<std::uint64_t>(tail ? (tokens - 2) / seq + 1 : (tokens - 1) / seq));
          for (const std::uint64_t epoch : {0, 1, 5}) {
            std::map<Token, int> predicted;
            for (std::uint64_t i = 0; i < samples; ++i) {
              const Sample sample = sample_of(*source, epoch * samples + i);
              for (std::size_t t = 0; t < sample.ids.size(); ++t) {
                if (sample.targets[t] == kIgnored) continue;
                ASSERT_EQ(sample.targets[t], sample.ids[t] + 1);
                ++predicted[sample.targets[t]];
              }
            }
            const std::int64_t last = tail ? tokens - 1 : (tokens - 1) / seq * seq;
            ASSERT_EQ(predicted.size(), static_cast<std::size_t>(last));
            for (const auto& [token, times] : predicted) {
              ASSERT_EQ(times, 1);
              ASSERT_TRUE(token >= 1 && token <= last);
            }
          }
        }
      }
    }
  }
}

TEST(Windows, ShuffleEveryEpochDifferently) {
  const auto source = windows(counting_tokens({1001}), options(10, Order::shuffle));
  std::vector<Token> first, second;
  for (std::uint64_t i = 0; i < 100; ++i) {
    first.push_back(sample_of(*source, i).ids[0]);
    second.push_back(sample_of(*source, 100 + i).ids[0]);
  }
  EXPECT_NE(first, second);
  EXPECT_FALSE(std::is_sorted(first.begin(), first.end()));
  std::sort(first.begin(), first.end());
  std::sort(second.begin(), second.end());
  EXPECT_EQ(first, second);
}

// Against a slow reference: documents of random lengths, packed, separate or not, masked or not.
TEST(Windows, MatchTheReferenceForDocumentsAndMasks) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 60; ++round) {
    std::vector<std::int64_t> lengths;
    std::int64_t all = 0;
    for (std::uint64_t i = 0; i < 1 + random() % 12; ++i) {
      lengths.push_back(static_cast<std::int64_t>(1 + random() % 20));
      all += lengths.back();
    }
    const std::int64_t seq = static_cast<std::int64_t>(1 + random() % 24);
    if (all < 2) continue;
    std::vector<std::uint8_t> mask(round % 2 == 0 ? 0 : static_cast<std::size_t>(all));
    for (std::uint8_t& each : mask) each = random() % 3 == 0 ? 1 : 0;
    const auto data = counting_tokens(lengths, mask);
    WindowOptions how = options(seq);
    how.tail = true;
    how.separate = round % 3 != 0;
    const auto source = windows(data, how);
    for (std::uint64_t i = 0; i < source->samples_per_epoch(); ++i) {
      const Sample sample = sample_of(*source, i);
      ASSERT_EQ(sample.starts.empty(), !how.separate);
      const std::int64_t begin = static_cast<std::int64_t>(i) * seq;
      for (std::int64_t t = 0; t < seq; ++t) {
        const std::int64_t at = begin + t, next = at + 1;
        const auto place = static_cast<std::size_t>(t);
        ASSERT_EQ(sample.ids[place], at < all ? at : 0);
        bool learned = next < all && (mask.empty() || mask[static_cast<std::size_t>(next)] != 0);
        if (how.separate && at < all) {
          const std::uint64_t own = data->document_at(static_cast<std::uint64_t>(at));
          if (next < all && data->document_at(static_cast<std::uint64_t>(next)) != own) {
            learned = false;
          }
          const auto start = static_cast<std::int64_t>(data->document(own).begin);
          ASSERT_EQ(sample.starts[place], std::max<std::int64_t>(0, start - begin));
        }
        ASSERT_EQ(sample.targets[place], learned ? next : kIgnored);
      }
    }
  }
}

TEST(Windows, HoldOneDocumentPerRowUnpacked) {
  const auto data = counting_tokens({3, 1, 9, 5});
  WindowOptions how = options(4, Order::shuffle);
  how.packed = false;
  const auto source = windows(data, how);
  ASSERT_EQ(source->samples_per_epoch(), 4u);
  std::map<Token, Sample> by_first;
  for (std::uint64_t i = 4; i < 8; ++i) {
    const Sample sample = sample_of(*source, i);
    by_first[sample.ids[0]] = sample;
  }
  ASSERT_EQ(by_first.size(), 4u);
  EXPECT_EQ(by_first[0], (Sample{{0, 1, 2, 0}, {1, 2, -1, -1}, {}}));
  EXPECT_EQ(by_first[3], (Sample{{3, 0, 0, 0}, {-1, -1, -1, -1}, {}}));
  EXPECT_EQ(by_first[4], (Sample{{4, 5, 6, 7}, {5, 6, 7, 8}, {}}));  // truncated
  EXPECT_EQ(by_first[13], (Sample{{13, 14, 15, 16}, {14, 15, 16, 17}, {}}));
  ASSERT_EQ(source->notes().size(), 1u);
  EXPECT_TRUE(contains(source->notes()[0], "1 of 4 documents cut to --seq 4, 4 tokens left out"))
      << source->notes()[0];
  EXPECT_TRUE(contains(source->where(0), "document "));
}

TEST(Windows, BatchesContainTheirRows) {
  WindowOptions how = options(6);
  how.separate = true;
  const auto source = windows(counting_tokens({4, 5, 16}), how);
  const Batch batch = source->batch(0, 3);
  ASSERT_TRUE(batch.document_starts.defined());
  EXPECT_EQ(batch.document_starts.scalar_type(), at::kInt);
  EXPECT_TRUE(batch.document_starts.equal(
      at::tensor(std::vector<int>{0, 0, 0, 0, 4, 4, 0, 0, 0, 3, 3, 3, 0, 0, 0, 0, 0, 0}, at::kInt)
          .view({3, 6})));
  EXPECT_EQ(batch.predicted, 16);
  EXPECT_FALSE(windows(counting_tokens({25}), options(6))->batch(0, 2).document_starts.defined());
}

TEST(Windows, ReportDataThatIsTooShort) {
  EXPECT_TRUE(contains(error_of([] {
                         windows(counting_tokens({5, 5}), options(10));
                       }),
                       "\"memory\" has 10 tokens; --seq 10 needs 11 or more. Use a longer file, "
                       "or --seq 9 or less"));
  EXPECT_THROW(windows(counting_tokens({}), options(1)), DataError);
  EXPECT_THROW(windows(counting_tokens({1}), options(1)), DataError);
  // A tail may be padded, but not a window at a random position.
  WindowOptions random = options(10, Order::random);
  random.tail = true;
  EXPECT_THROW(windows(counting_tokens({5, 5}), random), DataError);
  const auto source = windows(counting_tokens({5, 6}), random);
  EXPECT_EQ(sample_of(*source, 7), sample_of(*windows(counting_tokens({11}), options(10)), 0));
}

TEST(Windows, ShowAnswersAsTextOrNumbers) {
  const auto data = counting_tokens({200});
  const auto plain = windows(data, options(32));
  EXPECT_EQ(plain->show({{1, 2}, 2, {}}, std::vector<Token>{3, 4}), "1 2 → 3 4");
  const auto shown = windows(data, options(32), [](std::span<const Token> ids) {
    return std::string(ids.size(), '\n') + "é\xc3";
  });
  EXPECT_EQ(shown->show({{1}, 2, {}}, std::vector<Token>{3, 4}), "⏎é. → ⏎⏎é.");
  EXPECT_EQ(plain->question(0).prompt.size(), 16u);
  // For data with prompts: the tokens before the first one with a loss.
  const auto chat =
      windows(counting_tokens({6, 6}, {0, 0, 1, 1, 0, 1, 0, 0, 1, 1, 0, 1}), options(6));
  for (std::uint64_t i = 0; i < 8; ++i) {
    const std::vector<Token> prompt = chat->question(i).prompt;
    ASSERT_EQ(prompt.size(), 2u);
    EXPECT_TRUE(prompt[0] == 0 || prompt[0] == 6);
  }
}

// Splits by whole documents; validation tokens are in no training window.
TEST(Split, PartsDoNotOverlap) {
  for (const double fraction : {0.02, 0.1, 0.25, 0.5}) {
    for (const auto& lengths :
         {std::vector<std::int64_t>{100}, std::vector<std::int64_t>{30, 3, 40, 7, 20},
          std::vector<std::int64_t>{5, 95}, std::vector<std::int64_t>{95, 5}}) {
      const auto data = counting_tokens(lengths);
      const SplitTokens parts = split(data, fraction);
      EXPECT_EQ(parts.training->tokens() + parts.validation->tokens(), data->tokens());
      std::set<Token> trained, validated;
      for (const auto& [part, seen] :
           {std::pair(parts.training, &trained), std::pair(parts.validation, &validated)}) {
        WindowOptions how = options(3, Order::shuffle);
        how.tail = true;
        const auto source = windows(part, how);
        for (std::uint64_t i = 0; i < source->samples_per_epoch(); ++i) {
          const Sample sample = sample_of(*source, i);
          for (std::size_t t = 0; t < 3; ++t) {
            if (sample.targets[t] == kIgnored) continue;
            seen->insert(sample.ids[t]);
            seen->insert(sample.targets[t]);
          }
        }
      }
      for (const Token token : validated) EXPECT_EQ(trained.count(token), 0u);
      EXPECT_EQ(trained.size() + validated.size(), 100u);
      if (lengths.size() == 1) continue;
      // The second part starts a document.
      Token first = 0;
      parts.validation->read(0, {&first, 1});
      EXPECT_EQ(data->document(data->document_at(static_cast<std::uint64_t>(first))).begin,
                static_cast<std::uint64_t>(first));
      EXPECT_EQ(parts.training->documents() + parts.validation->documents(), lengths.size());
      const Document last = parts.validation->document(parts.validation->documents() - 1);
      EXPECT_EQ(last.end, parts.validation->tokens());
    }
  }
  EXPECT_THROW(split(counting_tokens({3}), 0.01), DataError);
}

}  // namespace
}  // namespace tessera::data
