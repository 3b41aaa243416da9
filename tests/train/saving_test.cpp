// Checkpoints of real runs: saved on one mesh, loaded on another.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/comm/threads.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/memory/allocator.h"
#include "tessera/train/trainer.h"
#include "tests/combinations.h"
#include "tests/temporary_folder.h"
#include "tests/train/small_runs.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

struct Place {
  std::string name;
  int dp = 1, tp = 1, pp = 1, stage = 0, cp = 1;
  int ranks() const { return dp * tp * pp * cp; }
};

const std::vector<Place> kPlaces = {{"alone"},
                                    {"dp 2, stage 0", 2, 1, 1, 0},
                                    {"dp 2, stage 3", 2, 1, 1, 3},
                                    {"dp 4, stage 2", 4, 1, 1, 2},
                                    {"tp 2", 1, 2, 1, 0},
                                    {"pp 2", 1, 1, 2, 1},
                                    {"dp 2, tp 2", 2, 2, 1, 1},
                                    {"cp 2, stage 3", 1, 1, 1, 3, 2},
                                    {"dp 2, cp 2", 2, 1, 1, 1, 2}};

RunConfig config_for(const Place& place, const std::string& model = "gpt-tiny") {
  RunConfig config;
  config.set("model", model);
  config.layers = 2;
  config.hidden = 32;
  config.heads = 4;
  config.vocab = 64;
  config.seq = 16;
  config.steps = 6;
  config.global_batch = 8;
  config.micro_batch = 2;
  config.warmup = 0;
  config.axes.set_dp(place.dp);
  config.axes.set(Axis::tp, place.tp);
  config.axes.set(Axis::pp, place.pp);
  config.axes.set(Axis::cp, place.cp);
  config.zero = place.stage;
  return config;
}

// Returns every element of every state of a checkpoint.
std::map<std::string, std::vector<float>> contents(const std::string& folder) {
  checkpoint::Checkpoint from(folder);
  std::map<std::string, std::vector<float>> all;
  for (const ParamSpec& spec : from.about().params) {
    std::int64_t count = 1;
    for (const std::int64_t size : spec.shape) count *= size;
    for (const auto& [state, dtype] : from.states(spec.name)) {
      auto& values = all[spec.name + " " + state];
      values.resize(static_cast<std::size_t>(count));
      from.load({{spec.name,
                  state,
                  checkpoint::DType::f32,
                  {{0, 0, count}},
                  reinterpret_cast<std::byte*>(values.data())}});
    }
  }
  return all;
}

std::string newest(const std::string& folder) { return checkpoint::find_latest(folder).folder; }

// Sizes of the axes, and the stage.
IndexRow settings_of(const Place& place) {
  IndexRow row;
  for (const int value : {place.dp, place.tp, place.pp, place.stage, place.cp}) {
    row.push_back(static_cast<std::size_t>(value));
  }
  return row;
}

TEST(Saving, EveryMeshLoadsCheckpointsOfEveryOther) {
  std::vector<std::pair<Place, Place>> both;
  for (const Place& from : kPlaces) {
    for (const Place& to : kPlaces) both.emplace_back(from, to);
  }
  const TemporaryFolder folder;
  std::map<std::string, std::map<std::string, std::vector<float>>> known;
  for (const auto& [from, to] : covering_pairs(both, [](const auto& pair) {
         IndexRow row = settings_of(pair.first), second = settings_of(pair.second);
         row.insert(row.end(), second.begin(), second.end());
         return row;
       })) {
    RunConfig config = config_for(from);
    config.save = folder / from.name;
    if (!known.contains(from.name)) {
      train_to(config, 3);
      known[from.name] = contents(newest(config.save));
      ASSERT_FALSE(known.at(from.name).empty());
    }
    RunConfig next = config_for(to);
    next.resume = newest(config.save);
    next.save = folder / str(from.name, " to ", to.name);
    train_to(next, 3);
    EXPECT_EQ(contents(newest(next.save)), known.at(from.name)) << from.name << " → " << to.name;
  }
}

TEST(Saving, ResumedRunIsBitwiseEqualToAnUninterruptedOne) {
  const std::vector<const char*> layouts = {"fp32", "bf16", "bf16-nomaster"};
  std::vector<std::pair<Place, std::size_t>> all;
  for (const Place& place : kPlaces) {
    for (std::size_t layout = 0; layout < layouts.size(); ++layout) all.emplace_back(place, layout);
  }
  for (const auto& [place, layout] : covering_pairs(all, [](const auto& pair) {
         IndexRow row = settings_of(pair.first);
         row.push_back(pair.second);
         return row;
       })) {
    const TemporaryFolder folder;
    RunConfig config = config_for(place);
    config.layout = parse_state_layout(layouts.at(layout));
    const std::string whole = train_to(config, 6).hash;
    config.save = folder / "run";
    train_to(config, 4);
    config.resume = "auto";
    EXPECT_EQ(train_to(config, 6).hash, whole) << place.name << ", " << layouts.at(layout);
  }
}

TEST(Saving, LoadsOtherLayoutsIfConversionIsExact) {
  const Place place = kPlaces[2];
  const TemporaryFolder folder;
  const auto trade = [&](const std::string& from, const std::string& to) {
    RunConfig config = config_for(place);
    config.set("layout", from);
    config.save = folder / (from + "-" + to);
    train_to(config, 2);
    const auto saved = contents(newest(config.save));
    config.resume = newest(config.save);
    config.set("layout", to);
    config.save += "-again";
    train_to(config, 2);
    EXPECT_EQ(contents(newest(config.save)), saved) << from << " → " << to;
  };
  EXPECT_NO_THROW(trade("fp32", "bf16"));
  EXPECT_NO_THROW(trade("bf16", "bf16-fp32grad"));
  EXPECT_NO_THROW(trade("bf16", "fp32"));
  EXPECT_NO_THROW(trade("bf16-nomaster", "fp32"));
  EXPECT_THROW(trade("fp32", "bf16-nomaster"), Error);
}

TEST(Saving, FreshRunRejectsAFolderWithLaterCheckpoints) {
  const TemporaryFolder folder;
  const Place place = kPlaces[1];
  RunConfig config = config_for(place);
  config.save = folder / "run";
  train_to(config, 2);
  EXPECT_THROW(train_to(config, 1), UsageError);
  config.resume = "auto";
  EXPECT_NO_THROW(train_to(config, 3));
}

TEST(Saving, SkipsADamagedNewestCheckpoint) {
  const TemporaryFolder folder;
  const Place place = kPlaces[1];
  RunConfig config = config_for(place);
  const std::string whole = train_to(config, 5).hash;
  config.save = folder / "run";
  train_to(config, 2);
  config.resume = "auto";
  train_to(config, 4);
  const fs::path shard = fs::path(newest(config.save)) / "rank-00001.safetensors";
  std::fstream file(shard, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(fs::file_size(shard)) - 5);
  file.put('?');
  file.close();
  EXPECT_EQ(train_to(config, 5).hash, whole);
}

// A step with non-finite gradients rolls back to the checkpoint, and skips the data since then.
TEST(Saving, RollbackSkipsData) {
  const TemporaryFolder folder;
  const Place place = kPlaces[1];
  RunConfig config = config_for(place);
  config.save = folder / "run";
  config.on_nan = OnNan::rollback;
  comm::run_threads(place.ranks(), [&](std::shared_ptr<comm::Backend> backend) {
    const comm::Group world(std::move(backend));
    Trainer trainer(config, world);
    trainer.step();
    trainer.save();
    trainer.finish_saving();
    const Summary saved = trainer.summary();
    trainer.step();
    trainer.step();
    trainer.roll_back();
    EXPECT_EQ(trainer.steps_done(), 1);
    EXPECT_EQ(trainer.summary().params_hash, saved.params_hash);
    trainer.step();
    trainer.save();
    trainer.finish_saving();
  });
  const checkpoint::Checkpoint after(newest(config.save));
  EXPECT_EQ(after.about().step, 2);
  EXPECT_EQ(after.about().samples, 4 * config.global_batch);
}

// Resumes, trains up to a step, and saves there if requested.
struct Course {
  std::vector<double> losses;
  std::vector<std::string> notes;
  Summary summary;
};
Course follow(const RunConfig& config, const Place& place, std::int64_t step) {
  Course course;
  comm::run_threads(place.ranks(), [&](std::shared_ptr<comm::Backend> backend) {
    const comm::Group world(std::move(backend));
    Trainer trainer(config, world);
    std::vector<std::string> notes;
    trainer.resume(notes);
    std::vector<double> losses;
    while (trainer.steps_done() < step) losses.push_back(trainer.step().loss);
    if (!config.save.empty()) trainer.save();
    trainer.finish_saving();
    const Summary summary = trainer.summary();
    if (world.rank() == 0) course = {losses, notes, summary};
  });
  return course;
}

// With a learning rate of 0 the loss of a step identifies its samples.
TEST(Saving, AnotherBatchContinuesWithTheNextSample) {
  const TemporaryFolder folder;
  RunConfig config = config_for(kPlaces[0]);
  config.lr = 0;
  config.steps = 12;
  config.micro_batch = 2;
  config.global_batch = 4;
  const std::vector<double> alone = follow(config, kPlaces[0], 12).losses;
  config.save = folder / "run";
  EXPECT_TRUE(follow(config, kPlaces[0], 3).notes.empty());  // 12 samples: not whole batches of 8
  config.resume = "auto";
  config.global_batch = 8;
  const Course wider = follow(config, kPlaces[0], 5);
  ASSERT_EQ(wider.losses.size(), 2u);
  EXPECT_NEAR(wider.losses[0], (alone[3] + alone[4]) / 2, 1e-5);
  EXPECT_NEAR(wider.losses[1], (alone[5] + alone[6]) / 2, 1e-5);
  ASSERT_EQ(wider.notes.size(), 1u);
  EXPECT_NE(wider.notes[0].find("--global-batch 4, and this run has 8"), std::string::npos)
      << wider.notes[0];
  config.global_batch = 4;
  config.micro_batch = 1;
  config.axes.set_dp(2);
  const Course narrower = follow(config, kPlaces[1], 8);
  ASSERT_EQ(narrower.losses.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(narrower.losses[i], alone[7 + i], 1e-5) << i;
  ASSERT_EQ(narrower.notes.size(), 2u);
  EXPECT_NE(narrower.notes[1].find("within rounding"), std::string::npos) << narrower.notes[1];
}

TEST(Saving, MetricsOfTheStepHaveItsDuration) {
  const TemporaryFolder folder;
  RunConfig config = config_for(kPlaces[1]);
  EXPECT_EQ(follow(config, kPlaces[1], 2).summary.saves, 0);
  for (const bool async : {true, false}) {
    config.save = folder / (async ? "async" : "sync");
    config.async_save = async;
    const Summary summary = follow(config, kPlaces[1], 2).summary;
    EXPECT_EQ(summary.saves, 1);
    EXPECT_GT(summary.save_exposed_s, 0);
  }
}

// Saving and loading need, by the ledger of each rank, at most two units (a unit is a block)
// besides the state, and a copy of the rank's own state for a save in the background.
TEST(Saving, NeedsAtMostTwoUnitsOfMemory) {
  constexpr std::int64_t kHidden = 64, kUnit = 12 * kHidden * kHidden * 12;
  const auto rank_file = [](const std::string& folder, int rank) {
    return fs::path(newest(folder)) / checkpoint::shard_file_name(rank);
  };
  for (const Place& from : kPlaces) {
    const TemporaryFolder folder;
    RunConfig config = config_for(from);
    config.hidden = kHidden;
    config.layers = 8;
    for (const bool background : {true, false}) {
      config.save = folder / (background ? "background" : "waits");
      config.async_save = background;
      comm::run_threads(from.ranks(), [&](std::shared_ptr<comm::Backend> backend) {
        const comm::Group world(std::move(backend));
        Trainer trainer(config, world);
        trainer.step();
        memory::Ledger& ledger = trainer.ledger();
        const std::int64_t before = ledger.counts().total.now;
        ledger.reset_peak();
        trainer.save();
        trainer.finish_saving();
        const std::int64_t took = ledger.counts().total.peak - before;
        const auto own =
            static_cast<std::int64_t>(fs::file_size(rank_file(config.save, world.rank())));
        EXPECT_LE(took, 2 * kUnit + (background ? own : 0)) << from.name;
        EXPECT_GE(took, background ? own / 2 : 1) << from.name << ": nothing is charged";
      });
    }
    for (const Place& to : kPlaces) {
      if ((&from - kPlaces.data() + (&to - kPlaces.data())) % 2 == 1) continue;  // half suffices
      RunConfig next = config_for(to);
      next.hidden = kHidden;
      next.layers = 8;
      next.resume = newest(folder / "waits");
      comm::run_threads(to.ranks(), [&](std::shared_ptr<comm::Backend> backend) {
        const comm::Group world(std::move(backend));
        Trainer trainer(next, world);
        memory::Ledger& ledger = trainer.ledger();
        const std::int64_t before = ledger.counts().total.now;
        ledger.reset_peak();
        std::vector<std::string> notes;
        trainer.resume(notes);
        EXPECT_LE(ledger.counts().total.peak - before, 2 * kUnit) << from.name << " to " << to.name;
      });
    }
  }
}

TEST(Saving, RejectsCheckpointsThatDoNotFit) {
  const TemporaryFolder folder;
  const Place place = kPlaces[0];
  RunConfig config = config_for(place);
  config.save = folder / "run";
  train_to(config, 1);
  RunConfig other = config_for(place);
  other.resume = newest(config.save);
  other.hidden = 64;
  EXPECT_THROW(train_to(other, 2), UsageError);
  for (const bool heads : {true, false}) {  // parameters that would fit, of another model
    other = config_for(place);
    other.resume = newest(config.save);
    if (heads) other.heads /= 2;
    if (!heads) other.layers -= 1;
    try {
      train_to(other, 2);
      ADD_FAILURE() << "was accepted";
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find(heads ? "heads was 4 and is 2" : "layers was "),
                std::string::npos)
          << error.what();
    }
  }
  other = config_for(place);
  other.resume = folder / "nothing";
  EXPECT_THROW(train_to(other, 2), Error);
  other = config_for(place);
  other.optimizer = OptimizerChoice::sgd;
  other.resume = newest(config.save);
  EXPECT_THROW(train_to(other, 2), UsageError);
  other = config_for(place);
  other.resume = "auto";
  EXPECT_THROW(train_to(other, 2), UsageError);
}

}  // namespace
}  // namespace tessera::train
