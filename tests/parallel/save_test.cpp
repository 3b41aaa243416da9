// tessera::save and tessera::load of any module, from any number of ranks and stage to any other.

#include "tessera/checkpoint/checkpoint.h"
#include "tests/combinations.h"
#include "tests/parallel/save_nets.h"

namespace tessera::save_test {
namespace {

struct Place {
  int ranks, stage;
  std::string describe() const { return str(ranks, " ranks, stage ", stage); }
};
std::vector<Place> places() {
  std::vector<Place> all;
  for (int ranks = 1; ranks <= 4; ++ranks) {
    for (int stage = 0; stage <= 3; ++stage) all.push_back({ranks, stage});
  }
  return all;
}

// Trains up to a step, after loading `from` if it is given, saves, and returns the contents.
Contents run(const Place& place, const Rule& rule, int to, const std::string& from = "",
             const std::string& into = "") {
  Contents all;
  const auto errors = on_ranks(place.ranks, [&](const comm::Group& group) {
    Training training(Net(), group, options_of(rule, place.stage));
    int done = 0;
    if (!from.empty()) {
      const Loaded loaded = load(training, from);
      done = static_cast<int>(loaded.step);
      EXPECT_EQ(training.steps(), loaded.step);
      EXPECT_EQ(loaded.extra.at("done"), str(done));
    }
    train(training, done, to);
    if (!into.empty()) save(training, into, {{"done", str(to)}});
    const Contents mine = contents(training);
    if (group.rank() == 0) all = mine;
  });
  expect_no_errors(errors, str(rule.name, ", ", place.describe()));
  return all;
}

TEST(Save, ResumedRunHasTheBitsOfAnUninterruptedOne) {
  for (const auto& [rule, ranks, stage] :
       combinations(rules(), std::vector{1, 2, 3, 4}, std::vector{0, 1, 2, 3})) {
    const Place place = {ranks, stage};
    const Folder folder;
    const Contents whole = run(place, rule, 6);
    run(place, rule, 3, "", folder / "a");
    expect_equal(run(place, rule, 6, folder / "a"), whole, str(rule.name, ", ", place.describe()));
  }
}

TEST(Save, AnyNumberOfRanksAndStageLoadsACheckpointOfAnyOther) {
  const Folder folder;
  std::map<std::string, Contents> known;  // of one process, and of checkpoints
  for (const auto& [rule, from, ranks, stage] :
       combinations(rules(), std::vector<Place>{{1, 0}, {4, 3}, {3, 1}, {2, 0}},
                    std::vector{1, 2, 3, 4}, std::vector{0, 1, 2, 3})) {
    const std::string key = str(rule.name, ", ", from.describe()), saved_in = folder / key;
    if (!known.contains(rule.name)) known[rule.name] = run({1, 0}, rule, 6);
    if (!known.contains(key)) known[key] = run(from, rule, 3, "", saved_in);
    const Place to = {ranks, stage};
    const std::string where = str(key, " → ", to.describe());
    expect_equal(run(to, rule, 3, saved_in), known.at(key), where);
    expect_close(run(to, rule, 6, saved_in), known.at(rule.name), where);
  }
}

// Every state of every parameter in the files.
std::map<std::string, std::vector<std::byte>> stored(const std::string& folder) {
  checkpoint::Checkpoint from(folder);
  std::map<std::string, std::vector<std::byte>> all;
  for (const ParamSpec& spec : from.about().params) {
    for (const auto& [state, dtype] : from.states(spec.name)) {
      const std::int64_t count = checkpoint::elements_of(spec.shape);
      auto& bytes = all[spec.name + " " + state];
      bytes.resize(static_cast<std::size_t>(count) * static_cast<std::size_t>(size_of(dtype)));
      from.load({{spec.name, state, dtype, {{0, 0, count}}, bytes.data()}});
    }
  }
  return all;
}

TEST(Save, LoadingAndSavingAgainGivesTheSameFiles) {
  const Rule rule = rules().front();
  const Folder folder;
  run({2, 1}, rule, 3, "", folder / "first");
  const auto first = stored(folder / "first/step-00000003");
  for (const char* const name : {"conv.weight moment2", "frozen param", "norm.running_var buffer",
                                 "norm.num_batches_tracked buffer", "mask buffer", "seen buffer"}) {
    EXPECT_TRUE(first.contains(name)) << name;
  }
  for (const Place& place : places()) {
    const std::string next = folder / place.describe();
    run(place, rule, 3, folder / "first", next);
    EXPECT_EQ(stored(next + "/step-00000003"), first) << place.describe();
  }
}

TEST(Save, RestoresLayoutsWithAMasterCopy) {
  const Rule rule = rules().front();
  for (const std::string layout : {"bf16", "bf16-fp32grad", "bf16-nomaster"}) {
    const Folder folder;
    std::uint64_t whole = 0, resumed = 1;
    const auto tell = [](const comm::Group& group, Training& training, std::uint64_t& hash) {
      const std::uint64_t mine = training.params_hash();
      if (group.rank() == 0) hash = mine;
    };
    expect_no_errors(on_ranks(2,
                              [&](const comm::Group& group) {
                                Training training(Net(), group, options_of(rule, 2, layout));
                                train(training, 0, 3);
                                save(training, folder / "a");
                                train(training, 3, 5);
                                tell(group, training, whole);
                              }),
                     layout);
    expect_no_errors(on_ranks(2,
                              [&](const comm::Group& group) {
                                Training training(Net(), group, options_of(rule, 3, layout));
                                load(training, folder / "a");
                                train(training, 3, 5);
                                tell(group, training, resumed);
                              }),
                     layout);
    EXPECT_EQ(resumed, whole) << layout;
  }
}

TEST(Save, DoesNotDependOnTheMemoryOrderOfParameters) {
  const Folder folder;
  const Rule rule = rules().front();
  for (const bool from : {true, false}) {
    for (const bool to : {true, false}) {
      const std::string dir = folder / str(from, to);
      Contents saved, loaded;
      expect_no_errors(on_ranks(2,
                                [&](const comm::Group& group) {
                                  Training training(Net(5, from), group, options_of(rule, 1));
                                  train(training, 0, 2);
                                  save(training, dir);
                                  const Contents mine = contents(training);
                                  if (group.rank() == 0) saved = mine;
                                }),
                       "save");
      expect_no_errors(on_ranks(3,
                                [&](const comm::Group& group) {
                                  Training training(Net(5, to), group, options_of(rule, 3));
                                  load(training, dir);
                                  const Contents mine = contents(training);
                                  if (group.rank() == 0) loaded = mine;
                                }),
                       "load");
      expect_equal(loaded, saved, str("channels last: ", from, " → ", to));
    }
  }
}

TEST(Save, AsyncSaveWritesTheStateOfItsStep) {
  const Rule rule = rules().front();
  for (const Place& place : {Place{1, 0}, Place{2, 3}, Place{3, 1}}) {
    const Folder folder;
    run(place, rule, 3, "", folder / "at-once");
    expect_no_errors(on_ranks(place.ranks,
                              [&](const comm::Group& group) {
                                Training training(Net(), group, options_of(rule, place.stage));
                                AsyncSave saver(training, folder / "later", {.keep_last = 2});
                                for (int step = 1; step <= 6; ++step) {
                                  train(training, step - 1, step);
                                  if (step >= 3) saver.start(training, {{"done", str(step)}});
                                }
                                EXPECT_EQ(saver.wait().folder, folder / "later/step-00000006");
                              }),
                     place.describe());
    EXPECT_FALSE(fs::exists(folder / "later/step-00000004"));  // keep_last
    expect_equal(run(place, rule, 6, folder / "later/step-00000005"), run(place, rule, 6),
                 place.describe());
  }
}

TEST(Save, TrainingContinuesDuringAnAsyncSave) {
  const Rule rule = rules().front();
  const Folder folder;
  run({2, 2}, rule, 3, "", folder / "at-once");
  expect_no_errors(on_ranks(2,
                            [&](const comm::Group& group) {
                              Training training(Net(), group, options_of(rule, 2));
                              train(training, 0, 3);
                              AsyncSave saver(training, folder / "later");
                              saver.start(training, {{"done", "3"}});
                              train(training, 3, 6);
                              saver.wait();
                            }),
                   "in the background");
  EXPECT_EQ(stored(folder / "later/step-00000003"), stored(folder / "at-once/step-00000003"));
}

TEST(Save, LoadsAModelWithoutItsOptimizer) {
  const Folder folder;
  const Contents saved = run({2, 1}, rules()[0], 3, "", folder / "a");
  Contents got;
  expect_no_errors(on_ranks(3,
                            [&](const comm::Group& group) {
                              Training training(Net(), group, options_of(rules()[1], 2));
                              load(training, folder / "a", {.params_only = true});
                              EXPECT_EQ(training.steps(), 0);
                              const Contents mine = contents(training);
                              if (group.rank() == 0) got = mine;
                              train(training, 0, 1);
                            }),
                   "another optimizer");
  expect_equal(got, saved, "params_only");
}

// Freezing and unfreezing: parameters trained before and after keep their moments, bit by bit.
TEST(Save, LoadsIntoAnotherTrainableSet) {
  const Rule rule = rules().front();
  for (const std::string layout : {"fp32", "bf16"}) {
    const Folder folder;
    // Trains with the head frozen or not, from a checkpoint if there is one, and saves.
    const auto phase = [&](const Place& place, bool frozen, const std::string& from,
                           const std::string& into, int steps, const LoadOptions& how) {
      zero::StepCounts counts;
      const auto errors = on_ranks(place.ranks, [&](const comm::Group& group) {
        Net net;
        for (const at::Tensor& p : net->head->parameters()) p.set_requires_grad(!frozen);
        Training training(net, group, options_of(rule, place.stage, layout));
        int done = 0;
        if (!from.empty()) done = static_cast<int>(load(training, folder / from, how).step);
        train(training, done, done + steps);
        save(training, folder / into);
        const zero::StepCounts mine = training.progress();
        if (group.rank() == 0) counts = mine;
      });
      for (std::size_t r = 1; r < errors.size() && errors[0].empty(); ++r) EXPECT_EQ(errors[r], "");
      return std::pair(counts, errors[0]);
    };
    const auto moments = [&](const std::string& name) {
      std::map<std::string, std::vector<std::byte>> all = stored(folder / name);
      std::erase_if(all, [](const auto& item) {
        return item.first.starts_with("head") || item.first.find(" moment") == std::string::npos;
      });
      return all;
    };
    const LoadOptions other{.other_trainable = true};
    EXPECT_EQ(phase({2, 1}, true, "", "a", 3, {}).second, "");
    EXPECT_TRUE(contains(phase({2, 1}, false, "a", "none", 0, {}).second, "other_trainable"));
    for (const Place& place : {Place{2, 1}, Place{1, 0}, Place{3, 3}}) {
      const std::string now = place.describe();
      const auto [counts, error] = phase(place, false, "a", now, 0, other);
      EXPECT_EQ(error, "") << now;
      EXPECT_EQ(counts.steps, 3) << now;
      EXPECT_EQ(counts.updates.at("conv.weight"), 3) << now;
      EXPECT_EQ(counts.updates.at("head.weight"), 0) << now;
      EXPECT_EQ(moments(now + "/step-00000003"), moments("a/step-00000003")) << now;
      // The head is frozen again after it was trained.
      EXPECT_EQ(phase(place, false, now, now + "-b", 2, {}).second, "");
      EXPECT_TRUE(contains(phase(place, true, now + "-b", "none", 0, {}).second, "is frozen here"));
      EXPECT_EQ(phase(place, true, now + "-b", now + "-c", 0, other).second, "");
      EXPECT_EQ(moments(now + "-c/step-00000005"), moments(now + "-b/step-00000005")) << now;
      EXPECT_FALSE(stored(folder / (now + "-c/step-00000005")).contains("head.weight moment1"));
    }
  }
}

}  // namespace
}  // namespace tessera::save_test
