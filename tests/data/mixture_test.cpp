#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tessera/core/errors.h"
#include "tessera/core/philox.h"
#include "tessera/core/text.h"
#include "tessera/data/data_set.h"
#include "tessera/data/source.h"
#include "tessera/data/windows.h"
#include "tests/data/memory_tokens.h"
#include "tests/temporary_folder.h"
#include "tests/text.h"

namespace tessera::data {
namespace {

// Tokens counting up from `from`, so that a sample identifies its source.
std::unique_ptr<Source> counting_from(Token from, std::int64_t count, std::int64_t seq,
                                      const std::string& print = "", bool separate = false) {
  MemoryTokens::Documents documents = {{}};
  for (Token i = 0; i < count; ++i) documents[0].push_back(from + i);
  auto data = std::make_shared<MemoryTokens>(documents, std::vector<std::uint8_t>{},
                                             str("from ", from), 1 << 20);
  data->set_fingerprint(print);
  WindowOptions how;
  how.seq = seq;
  how.separate = separate;
  return windows(data, how);
}

std::vector<std::unique_ptr<Source>> two(std::int64_t seq = 4) {
  std::vector<std::unique_ptr<Source>> out;
  out.push_back(counting_from(0, 41, seq));       // 10 samples
  out.push_back(counting_from(10000, 121, seq));  // 30 samples
  return out;
}

// Each source runs through its own epochs in its own order, whatever the weights.
TEST(Mixture, KeepsTheEpochsOfEachSource) {
  const auto mixed = mixture(two(), {7, 3});
  EXPECT_EQ(mixed->samples_per_epoch(), 40u);
  std::map<bool, std::vector<Token>> firsts;
  for (std::uint64_t i = 0; i < 200; ++i) {
    const Token first = mixed->batch(i, 1).ids[0][0].item<Token>();
    firsts[first >= 10000].push_back(first);
    if ((i + 1) % 10 == 0) {
      EXPECT_EQ(firsts[false].size(), 7 * (i + 1) / 10);
    }
  }
  const auto sources = two();
  for (const bool second : {false, true}) {
    for (std::size_t i = 0; i < firsts[second].size(); ++i) {
      EXPECT_EQ(firsts[second][i], sources[second ? 1 : 0]->batch(i, 1).ids[0][0].item<Token>());
    }
  }
  EXPECT_EQ(mixed->name(), "70.0% from 0 + 30.0% from 10000");
  EXPECT_TRUE(contains(mixed->where(0), "from "));
  EXPECT_DOUBLE_EQ(mixed->bytes_per_token(), 3);
}

TEST(Mixture, RejectsDifferentTokenizers) {
  std::vector<std::unique_ptr<Source>> sources;
  sources.push_back(counting_from(0, 41, 4));  // unknown tokenizer
  sources.push_back(counting_from(0, 41, 4, "a"));
  sources.push_back(counting_from(0, 41, 4, "b"));
  EXPECT_TRUE(contains(error_of([&] {
                         mixture(std::move(sources), {1, 1, 1});
                       }),
                       "made with another tokenizer (b)"));
  std::vector<std::unique_ptr<Source>> lengths;
  lengths.push_back(counting_from(0, 41, 4));
  lengths.push_back(counting_from(0, 41, 5));
  EXPECT_THROW(mixture(std::move(lengths), {1, 1}), UsageError);
  EXPECT_THROW(mixture(two(), {1}), UsageError);
  EXPECT_THROW(mixture({}, {}), UsageError);
}

// A row of a source without separation is one document.
TEST(Mixture, CombinesSourcesWithAndWithoutSeparation) {
  std::vector<std::unique_ptr<Source>> sources;
  sources.push_back(counting_from(0, 41, 4, "", true));
  sources.push_back(sorting(4, 0));
  const auto mixed = mixture(std::move(sources), {1, 1});
  EXPECT_TRUE(mixed->separate());
  EXPECT_EQ(mixed->samples_per_epoch(), 0u);
  EXPECT_TRUE(mixed->batch(0, 6).document_starts.equal(at::zeros({6, 4}, at::kInt)));
}

TEST(Mixture, ConcatenatesAllSamples) {
  const auto chain = one_after_another(two());
  EXPECT_EQ(chain->samples_per_epoch(), 40u);
  for (const std::uint64_t epoch : {0, 1, 2}) {
    std::set<Token> firsts;
    for (std::uint64_t i = 0; i < 40; ++i) {
      const Token first = chain->batch(epoch * 40 + i, 1).ids[0][0].item<Token>();
      EXPECT_EQ(first >= 10000, i >= 10);
      firsts.insert(first);
    }
    EXPECT_EQ(firsts.size(), 40u);
  }
  std::vector<std::unique_ptr<Source>> endless;
  endless.push_back(sorting(4, 0));
  EXPECT_THROW(one_after_another(std::move(endless)), UsageError);
}

TEST(Mixture, PadsPartsWithBlankSamples) {
  const auto part = part_of(counting_from(0, 41, 4), 2, 5);
  EXPECT_EQ(part->samples_per_epoch(), 5u);
  const auto whole = counting_from(0, 41, 4);
  const Batch batch = part->batch(3, 4);
  EXPECT_TRUE(batch.ids.narrow(0, 0, 2).equal(whole->batch(5, 2).ids));
  EXPECT_EQ(batch.predicted, 8);
  EXPECT_TRUE(batch.targets.narrow(0, 2, 2).eq(kIgnored).all().item<bool>());
  EXPECT_TRUE(batch.ids.narrow(0, 2, 2).eq(0).all().item<bool>());
  EXPECT_EQ(part->where(5), "padding");
}

class DataSet : public ::testing::Test {
 protected:
  std::string text(const std::string& name, std::size_t bytes, char letter) const {
    std::ofstream(folder_ / name) << std::string(bytes, letter);
    return folder_ / name;
  }
  // In the format of nanoGPT.
  std::string bin(const std::string& name, const std::vector<std::uint16_t>& tokens) const {
    std::ofstream out(folder_ / name, std::ios::binary);
    out.write(reinterpret_cast<const char*>(tokens.data()),
              static_cast<std::streamsize>(2 * tokens.size()));
    return folder_ / name;
  }
  TemporaryFolder folder_;
};

DataOptions options(const std::string& data, std::int64_t seq = 4) {
  DataOptions out;
  out.data = data;
  out.seq = seq;
  return out;
}

TEST_F(DataSet, KeepsItsDefaults) {
  EXPECT_TRUE(training_source(options("synthetic", 16))
                  ->batch(3, 5)
                  .ids.equal(sorting(16, 0)->batch(3, 5).ids));
  std::string letters;
  for (int i = 0; i < 500; ++i) letters += static_cast<char>('a' + i * 7 % 26);
  std::ofstream(folder_ / "a") << letters;
  const std::string a = folder_ / "a";
  const auto source = training_source(options(a));
  EXPECT_EQ(source->samples_per_epoch(), 0u);
  // Windows at random positions.
  const Philox random(0, stream_of("data.text"));
  for (std::uint64_t i = 0; i < 20; ++i) {
    const PhiloxBlock words = random.block(i);
    const std::uint64_t at = ((std::uint64_t{words[0]} << 32) | words[1]) % (500 - 4);
    const Batch batch = source->batch(i, 1);
    for (std::size_t t = 0; t < 4; ++t) {
      EXPECT_EQ(batch.ids[0][static_cast<std::int64_t>(t)].item<Token>(), letters[at + t]);
      EXPECT_EQ(batch.targets[0][static_cast<std::int64_t>(t)].item<Token>(), letters[at + t + 1]);
    }
  }
  EXPECT_EQ(validation_source(options(a)), nullptr);
}

TEST_F(DataSet, ShufflesATextFileInEpochs) {
  DataOptions how = options(text("a", 41, 'a'));
  how.epochs = 1;
  EXPECT_EQ(training_source(how)->samples_per_epoch(), 10u);
  how.order = "random";
  EXPECT_TRUE(
      contains(error_of([&] { training_source(how); }), "--order: got random with --epochs"));
  how = options("synthetic");
  how.epochs = 2;
  EXPECT_TRUE(
      contains(error_of([&] { training_source(how); }), "--epochs: got 2 with --data synthetic"));
}

TEST_F(DataSet, ParsesMixtures) {
  const std::string a = text("a", 41, 'a'), b = text("b", 121, 'b');
  const auto count = [](const Source& source) {
    const at::Tensor ids = source.batch(0, 100).ids.select(1, 0);
    return ids.eq('a').sum().item<std::int64_t>();
  };
  EXPECT_EQ(count(*training_source(options(str(a, "=0.7,", b, "=0.3")))), 70);
  EXPECT_EQ(count(*training_source(options(str(a, "=3,", b, "=1")))), 75);
  DataOptions sized = options(a + "," + b);
  EXPECT_TRUE(contains(error_of([&] { training_source(sized); }), "is unlimited"));
  sized.order = "shuffle";
  const auto source = training_source(sized);
  EXPECT_EQ(source->samples_per_epoch(), 40u);
  EXPECT_EQ(count(*source), 25);
  EXPECT_TRUE(contains(error_of([&] { training_source(options(a + "=0.7," + b)); }),
                       "only some have a weight"));
  EXPECT_TRUE(contains(error_of([&] { training_source(options(a + "=x," + b + "=1")); }),
                       "--data: got the weight \"x\""));
  EXPECT_TRUE(contains(error_of([&] { training_source(options(a + "=1,")); }), "a path is empty"));
  // An existing file whose name has a comma and an equals sign.
  EXPECT_EQ(training_source(options(text("c=1,d=2", 41, 'c')))->vocab(), 256);
}

TEST_F(DataSet, ReadsAndChecksTokenFiles) {
  std::vector<std::uint16_t> tokens;
  for (std::uint16_t i = 0; i < 401; ++i) tokens.push_back(static_cast<std::uint16_t>(2 * i));
  const std::string path = bin("a.bin", tokens);
  EXPECT_TRUE(has_tokens(path));
  EXPECT_TRUE(has_tokens(str("synthetic=1,", path, "=2")));
  EXPECT_FALSE(has_tokens("synthetic"));
  DataOptions how = options(path);
  const auto source = training_source(how);
  EXPECT_EQ(source->samples_per_epoch(), 100u);
  EXPECT_EQ(source->vocab(), 0);
  EXPECT_NO_THROW(source->check(801));
  const std::string problem = error_of([&] { source->check(700); });
  EXPECT_TRUE(contains(problem, "700")) << problem;
  EXPECT_TRUE(contains(problem, "350")) << problem;  // its position
  const DataFacts facts = facts_of(how);
  EXPECT_EQ(facts.samples_per_epoch, 100u);

  how.val_fraction = 0.1;
  const auto training = training_source(how), validation = validation_source(how);
  EXPECT_EQ(training->samples_per_epoch(), 90u);
  EXPECT_EQ(validation->samples_per_epoch(), 10u);
  // Without a known vocabulary the ids of the part are checked.
  EXPECT_NO_THROW(training->check(801));
  EXPECT_NO_THROW(training->check(722));
  EXPECT_NO_THROW(validation->check(801));
  const std::string part = error_of([&] { validation->check(722); });
  EXPECT_TRUE(contains(part, "is 722, must be less than the vocabulary of 722")) << part;
  std::set<Token> trained;
  for (std::uint64_t i = 0; i < 90; ++i) {
    const Batch batch = training->batch(i, 1);
    for (std::int64_t t = 0; t < 4; ++t) {
      trained.insert(batch.ids[0][t].item<Token>());
      trained.insert(batch.targets[0][t].item<Token>());
    }
  }
  std::int64_t predicted = 0;
  for (std::uint64_t i = 0; i < 10; ++i) {
    const Batch batch = validation->batch(i, 1);
    predicted += batch.predicted;
    for (std::int64_t t = 0; t < batch.predicted; ++t) {
      EXPECT_EQ(trained.count(batch.ids[0][t].item<Token>()), 0u);
      EXPECT_EQ(trained.count(batch.targets[0][t].item<Token>()), 0u);
    }
  }
  EXPECT_EQ(predicted, 39);  // of 40 tokens, including the tail
  EXPECT_EQ(validation->batch(10, 2).predicted, 0);

  how.val_data = path;
  EXPECT_TRUE(contains(error_of([&] { training_source(how); }), "--val-fraction: got 0.1 with"));
  how.val_fraction = 0;
  EXPECT_EQ(validation_source(how)->samples_per_epoch(), 100u);
  how.val_data = "synthetic";
  EXPECT_EQ(validation_source(how)->samples_per_epoch(), 256u);
}

TEST_F(DataSet, NamesMissingData) {
  const std::string folder = folder_.path;
  EXPECT_TRUE(contains(error_of([&] { training_source(options(folder)); }), "--data: "));
  EXPECT_TRUE(contains(error_of([&] { training_source(options(folder)); }), "tokens.json"));
  EXPECT_TRUE(contains(error_of([&] { training_source(options(folder + "/none")); }), "--data: "));
  EXPECT_TRUE(contains(error_of([&] { training_source(options(bin("b.bin", {}))); }), "no tokens"));
  EXPECT_TRUE(contains(error_of([&] {
                         training_source(options(bin("c.bin", {1, 2, 3})));
                       }),
                       "has 3 tokens; --seq 4 needs 5"));
}

}  // namespace
}  // namespace tessera::data
