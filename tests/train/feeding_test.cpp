// Data of training: epochs, mixtures, documents and masks on meshes, and resumed runs.

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <tuple>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/comm/threads.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/data/prepare.h"
#include "tessera/train/from_config.h"
#include "tessera/train/resuming.h"
#include "tessera/train/session.h"
#include "tessera/train/trainer.h"
#include "tests/temporary_folder.h"
#include "tests/text.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

class Feeding : public ::testing::Test {
 protected:
  std::string operator/(const std::string& name) const { return (folder_ / name).string(); }
  // Writes tokens below `vocab` in the format of nanoGPT.
  std::string bin(const std::string& name, std::size_t count, std::uint16_t vocab = 64) const {
    std::mt19937 random(static_cast<unsigned>(count));
    std::vector<std::uint16_t> tokens(count);
    for (auto& each : tokens) each = static_cast<std::uint16_t>(random() % vocab);
    std::ofstream out(folder_ / name, std::ios::binary);
    out.write(reinterpret_cast<const char*>(tokens.data()),
              static_cast<std::streamsize>(2 * count));
    return *this / name;
  }

 private:
  const TemporaryFolder temporary_;
  const fs::path folder_ = temporary_.path;
};

RunConfig config_of(const std::string& data, std::int64_t dp = 1, std::int64_t micro = 2) {
  RunConfig config;
  config.layers = 1;
  config.hidden = 16;
  config.heads = 2;
  config.vocab = 64;
  config.seq = 8;
  config.global_batch = 4;
  config.micro_batch = micro;
  config.warmup = 0;
  config.axes.set_dp(static_cast<int>(dp));
  config.data = data;
  config.threads = 1;
  return config;
}

// Trains to the end or to a step. Returns the losses of rank 0 by step.
std::vector<double> losses(const RunConfig& config, std::int64_t to = 1 << 20) {
  std::vector<double> out;
  const auto ranks = static_cast<int>(config.axes.dp() * config.axes.tp() * config.axes.pp());
  comm::run_threads(ranks, [&](std::shared_ptr<comm::Backend> backend) {
    const comm::Group world(std::move(backend));
    Trainer trainer(config, world);
    std::vector<std::string> notes;
    trainer.resume(notes);
    while (trainer.steps_done() < std::min(to, trainer.steps_in_all())) trainer.step();
    if (!config.save.empty()) trainer.save();
    trainer.finish_saving();
    if (world.rank() != 0) return;
    for (const StepMetrics& step : trainer.history()) out.push_back(step.loss);
  });
  return out;
}

void expect_near(const std::vector<double>& got, const std::vector<double>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-5 * want[i]) << i;
}

TEST_F(Feeding, EpochsDetermineTheNumberOfSteps) {
  RunConfig config = config_of(bin("a.bin", 8 * 11 + 1));  // 11 samples
  config.epochs = 3;                                       // 33 samples, 8.25 steps of 4
  EXPECT_EQ(resolve(config, 1).steps, 8);
  config.last_batch = LastBatch::pad;
  EXPECT_EQ(resolve(config, 1).steps, 9);
  EXPECT_EQ(resolve(config, 1).schedule.total, 9);
  config.steps = 5;
  EXPECT_EQ(resolve(config, 1).steps, 5);
  config.steps = 50;
  EXPECT_EQ(resolve(config, 1).steps, 9);
  config.epochs = 0;
  EXPECT_EQ(resolve(config, 1).steps, 50);
  config.steps = 0;
  EXPECT_EQ(resolve(config, 1).steps, 240);
  config.epochs = 1;
  config.last_batch = LastBatch::drop;
  config.global_batch = 12;
  EXPECT_TRUE(contains(error_of([&] { resolve(config, 1); }), "11 samples, fewer than the 12"));
}

// The padding of a last batch is not learned: if it has one real sample, the loss is that of this
// sample, on the rank that has it and on one that has none.
TEST_F(Feeding, PadsTheLastBatch) {
  RunConfig config = config_of(bin("a.bin", 8 * 9 + 1));  // 9 samples: 4, 4, 1
  config.epochs = 1;
  config.last_batch = LastBatch::pad;
  config.lr = 0;
  const std::vector<double> alone = losses(config);
  ASSERT_EQ(alone.size(), 3u);
  RunConfig single = config;
  single.global_batch = single.micro_batch = 1;
  const std::vector<double> one_by_one = losses(single);
  ASSERT_EQ(one_by_one.size(), 9u);
  EXPECT_NEAR(alone[2], one_by_one[8], 1e-6);
  EXPECT_NEAR(alone[0], (one_by_one[0] + one_by_one[1] + one_by_one[2] + one_by_one[3]) / 4, 1e-6);
  config.lr = 1e-2;
  const std::vector<double> want = losses(config);
  for (const int stage : {0, 3}) {
    config.axes.set_dp(2);
    config.zero = stage;
    expect_near(losses(config), want);
  }
  config.zero = 0;
  config.axes.set_dp(1);
  config.axes.set(Axis::pp, 2);
  config.layers = 2;
  const std::vector<double> piped = losses(config);
  ASSERT_EQ(piped.size(), 3u);
  for (const double loss : piped) EXPECT_TRUE(std::isfinite(loss));
}

// A run that is interrupted at any step, also within an epoch, is bitwise equal.
TEST_F(Feeding, ResumedRunContinuesWithTheNextSample) {
  const std::string a = bin("a.bin", 8 * 13 + 1), b = bin("b.bin", 8 * 7 + 1);
  for (const std::string& data : {a, str(a, "=0.7,", b, "=0.3"), a + "," + b}) {
    RunConfig config = config_of(data, 2, 1);
    config.epochs = 2;
    config.documents = Documents::join;
    const std::vector<double> whole = losses(config);
    ASSERT_GE(whole.size(), 6u);
    for (const std::int64_t stop : {1, 4}) {
      RunConfig part = config;
      part.save = *this / str("run-", stop, "-", data.size());
      std::vector<double> got = losses(part, stop);
      part.resume = "auto";
      const std::vector<double> rest = losses(part);
      got.insert(got.end(), rest.begin(), rest.end());
      EXPECT_EQ(got, whole) << data << " stopped at " << stop;
      // Another mesh and another micro-batch get the same samples.
      RunConfig other = config_of(data, 1, 4);
      other.epochs = 2;
      other.resume = str(part.save, "/step-0000000", stop);
      const std::vector<double> on = losses(other);
      expect_near(on, {whole.begin() + stop, whole.end()});
    }
  }
}

// With another batch a run continues with the next sample, and ends with the last epoch.
TEST_F(Feeding, ResumedRunWithAnotherBatchEndsWithTheEpochs) {
  RunConfig config = config_of(bin("a.bin", 8 * 22 + 1));
  config.epochs = 1;  // 22 samples: five steps of 4 and 2 left
  config.lr = 0;
  RunConfig single = config;
  single.global_batch = single.micro_batch = 1;
  const std::vector<double> each = losses(single);
  config.save = *this / "run";
  losses(config, 2);  // 8 samples
  config.resume = "auto";
  config.global_batch = 6;
  config.last_batch = LastBatch::pad;
  const std::vector<double> rest = losses(config);
  ASSERT_EQ(rest.size(), 3u);  // 14 samples: 6, 6, 2
  const auto mean = [&](std::size_t from, std::size_t to) {
    double sum = 0;
    for (std::size_t i = from; i < to; ++i) sum += each[i];
    return sum / static_cast<double>(to - from);
  };
  expect_near(rest, {mean(8, 14), mean(14, 20), mean(20, 22)});
}

TEST_F(Feeding, PrefetchingDoesNotChangeResults) {
  RunConfig config = config_of(bin("a.bin", 500), 2, 1);
  config.steps = 6;
  const std::vector<double> want = losses(config);
  for (const std::int64_t ahead : {0, 1, 7}) {
    config.data_ahead = ahead;
    EXPECT_EQ(losses(config), want);
  }
}

TEST_F(Feeding, ErrorNamesTokensOutsideTheVocabulary) {
  RunConfig config = config_of(bin("a.bin", 500, 70));
  config.steps = 100;
  // Checked before the first step; the error has the position.
  const std::string before =
      error_of([&] { static_cast<void>(check_run(config, resolve(config, 1), 1)); });
  EXPECT_TRUE(contains(before, "document 0")) << before;
  // Also without that check.
  const std::string during = error_of([&] { losses(config); });
  EXPECT_TRUE(contains(during, "--data: token 6")) << during;
  EXPECT_TRUE(contains(during, "must be from 0 to 63")) << during;
  RunConfig validated = config_of(bin("b.bin", 500));
  validated.val_data = *this / "a.bin";
  EXPECT_TRUE(
      contains(error_of([&] { static_cast<void>(check_run(validated, resolve(validated, 1), 1)); }),
               "a.bin"));
}

// Separate documents in one row have the losses of documents in rows of their own.
TEST_F(Feeding, SeparateDocumentsHaveTheLossesOfSingleDocuments) {
  constexpr int kLength = 16;  // with the token that ends it: two fill a row of 32
  std::mt19937 random(5);
  std::ofstream lines(*this / "lines.jsonl");
  for (int i = 0; i < 48; ++i) {
    std::string text;
    for (int c = 0; c + 1 < kLength; ++c) text += static_cast<char>('a' + random() % 26);
    lines << "{\"text\": \"" << text << "\"}\n";
  }
  lines.close();
  data::PrepareOptions prepared;
  prepared.inputs = {*this / "lines.jsonl"};
  prepared.out = *this / "tokens";
  prepared.threads = 1;
  data::prepare(prepared);
  for (const char* model : {"gpt-tiny", "llama-tiny"}) {
    RunConfig alone = config_of(prepared.out);
    alone.set("model", model);
    alone.heads = model[0] == 'l' ? 0 : 2;
    alone.hidden = model[0] == 'l' ? 0 : 16;
    alone.vocab = 257;
    alone.sample_order = SampleOrder::sequential;
    alone.pack = Packing::none;
    alone.seq = kLength;
    alone.global_batch = 8;
    alone.steps = 3;
    const std::vector<double> want = losses(alone);
    RunConfig packed = alone;
    packed.set("pack", "documents");
    packed.set("documents", "separate");
    packed.seq = 2 * kLength;
    if (model[0] != 'l') packed.positions = alone.positions = 2 * kLength;
    packed.global_batch = 4;
    for (const auto& [dp, tp, pp] :
         {std::tuple(1, 1, 1), std::tuple(2, 1, 1), std::tuple(1, 2, 1), std::tuple(1, 1, 2)}) {
      packed.layers = alone.layers = pp;
      packed.axes.set_dp(dp);
      packed.axes.set(Axis::tp, tp);
      packed.axes.set(Axis::pp, pp);
      const std::vector<double> got = losses(packed), ref = losses(alone);
      ASSERT_EQ(got.size(), 3u);
      for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(got[i], ref[i], 1e-4) << model << " " << i;
    }
    packed.axes = alone.axes;
    packed.layers = 1;
    packed.set("documents", "join");
    EXPECT_GT(std::abs(losses(packed)[2] - want[2]), 1e-4);
  }
}

// Only responses have targets, in separate rows or packed.
TEST_F(Feeding, OnlyResponsesHaveTargets) {
  std::ofstream lines(*this / "pairs.jsonl");
  for (int i = 0; i < 20; ++i) {
    lines << "{\"prompt\": \"" << std::string(static_cast<std::size_t>(3 + i % 4), 'q')
          << "\", \"response\": \"" << std::string(static_cast<std::size_t>(1 + i % 9), 'r')
          << "\"}\n";
  }
  lines.close();
  data::PrepareOptions prepared;
  prepared.inputs = {*this / "pairs.jsonl"};
  prepared.out = *this / "pairs";
  prepared.format = data::DocumentFormat::prompt;
  prepared.threads = 1;
  data::prepare(prepared);
  for (const char* pack : {"documents", "none"}) {
    RunConfig config = config_of(prepared.out, 2, 1);
    config.vocab = 257;
    config.set("pack", pack);
    config.epochs = 1;
    config.last_batch = LastBatch::pad;
    const Resolved resolved = resolve(config, 2);
    const auto source = make_source(config, resolved);
    std::int64_t learned = 0;
    for (std::int64_t i = 0; i < resolved.total_samples; ++i) {
      const data::Batch batch = source->batch(static_cast<std::uint64_t>(i), 1);
      learned += batch.predicted;
      for (std::int64_t t = 0; t < batch.targets.size(1); ++t) {
        const auto target = batch.targets[0][t].item<data::Token>();
        EXPECT_TRUE(target == data::kIgnored || target == 'r' || target == 256) << target;
      }
    }
    EXPECT_GT(learned, 60);
    for (const double loss : losses(config)) EXPECT_TRUE(std::isfinite(loss));
    EXPECT_EQ(source->notes().empty(), config.pack == Packing::documents);
    EXPECT_TRUE(
        contains(source->show(source->question(0), std::vector<data::Token>{'r', 'r'}), "q → rr"))
        << source->show(source->question(0), std::vector<data::Token>{'r', 'r'});
  }
}

// Token ids of another tokenizer have different meanings.
TEST_F(Feeding, RejectsAnotherTokenizer) {
  std::ofstream(*this / "a.txt") << std::string(300, 'a');
  RunConfig config = config_of(*this / "a.txt");
  config.vocab = 256;
  config.steps = 2;
  config.save = *this / "run";
  losses(config);
  const Resolved resolved = resolve(config, 1);
  EXPECT_FALSE(resolved.tokenizer.empty());
  Resolved other = resolved;
  other.tokenizer = "another";
  config.resume = "auto";
  EXPECT_EQ(error_of([&] { check_resume(config, resolved); }), "");
  const std::string problem = error_of([&] { check_resume(config, other); });
  EXPECT_TRUE(contains(problem, "another tokenizer (" + resolved.tokenizer)) << problem;
}

TEST_F(Feeding, MeasuresWaitsForData) {
  RunConfig config = config_of(bin("a.bin", 500));
  config.steps = 3;
  comm::run_threads(1, [&](std::shared_ptr<comm::Backend> backend) {
    const comm::Group world(std::move(backend));
    Trainer trainer(config, world);
    for (int i = 0; i < 3; ++i) trainer.step();
    EXPECT_GT(trainer.history()[0].data_s, 0);
    EXPECT_GT(trainer.history()[2].data_prepare_s, 0);
    const Summary summary = trainer.summary();
    EXPECT_GT(summary.data_rate(), 0);
    EXPECT_TRUE(contains(to_json(summary), "\"data_times_training\":"));
    EXPECT_TRUE(contains(to_json(trainer.history()[2]), "\"data_s\":"));
  });
}

}  // namespace
}  // namespace tessera::train
