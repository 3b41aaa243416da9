// Failures of tessera::save and tessera::load, and extras that are returned to the program.

#include <fstream>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/parallel/state_shards.h"
#include "tessera/zero/engine_of_part.h"
#include "tests/parallel/save_nets.h"

namespace tessera::save_test {
namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

Training make(const comm::Group& group, int stage = 2) {
  return Training(Net(), group, options_of(rules().front(), stage));
}

void save_steps(const std::string& dir, std::initializer_list<int> steps, int ranks = 2) {
  expect_no_errors(on_ranks(ranks,
                            [&](const comm::Group& group) {
                              Training training = make(group);
                              int done = 0;
                              for (const int step : steps) {
                                train(training, done, step);
                                save(training, dir, {{"epoch", str(step)}});
                                done = step;
                              }
                            }),
                   "save");
}

// Flips a bit in the middle of a file.
void damage(const std::string& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  ASSERT_TRUE(file) << path;
  const auto at = static_cast<std::streamoff>(fs::file_size(path)) - 40;
  file.seekg(at);
  const char byte = static_cast<char>(file.get() ^ 16);
  file.seekp(at);
  file.put(byte);
}

TEST(LoadFailures, SkipsADamagedNewestCheckpoint) {
  const Folder folder;
  const std::string dir = folder / "a";
  save_steps(dir, {2, 4});
  damage(dir + "/step-00000004/rank-00001.safetensors");
  expect_no_errors(
      on_ranks(3,
               [&](const comm::Group& group) {
                 Training training = make(group);
                 const Loaded loaded = load(training, dir);
                 EXPECT_EQ(loaded.folder, dir + "/step-00000002");
                 EXPECT_EQ(loaded.step, 2);
                 EXPECT_EQ(training.steps(), 2);
                 EXPECT_EQ(loaded.extra, (Extra{{"epoch", "2"}}));
                 ASSERT_EQ(loaded.skipped.size(), 1u);
                 EXPECT_TRUE(contains(loaded.skipped[0], "rank-00001.safetensors: tensor "))
                     << loaded.skipped[0];
                 train(training, 2, 4);
               }),
      "load");
  // Requested by name, it is not replaced by another.
  for (const std::string& error : on_ranks(2, [&](const comm::Group& group) {
         Training training = make(group);
         load(training, dir + "/step-00000004");
       })) {
    EXPECT_TRUE(contains(error, "data: ") && contains(error, "is damaged within bytes")) << error;
  }
  fs::resize_file(dir + "/step-00000002/manifest.json", 100);
  for (const std::string& error : on_ranks(2, [&](const comm::Group& group) {
         Training training = make(group);
         load(training, dir);
       })) {
    EXPECT_TRUE(contains(error, "data: No checkpoint in ")) << error;
    EXPECT_TRUE(contains(error, "step-00000004") && contains(error, "step-00000002")) << error;
    EXPECT_TRUE(contains(error, "the state of the engine is now invalid")) << error;
  }
}

TEST(LoadFailures, RejectsMissingCheckpoints) {
  const Folder folder;
  fs::create_directory(folder / "empty");
  std::ofstream(folder / "file") << "x";
  for (const auto& [path, what] :
       std::map<std::string, std::string>{{folder / "nowhere", "is missing"},
                                          {folder / "empty", "a folder without a checkpoint"},
                                          {folder / "file", "a regular file"}}) {
    for (const std::string& error : on_ranks(2, [&](const comm::Group& group) {
           Training training = make(group);
           EXPECT_FALSE(load_if_any(training, path));
           load(training, path);
         })) {
      EXPECT_TRUE(contains(error, "usage: ") && contains(error, what)) << error;
    }
  }
}

TEST(LoadFailures, InterruptedSaveLeavesTheOlderCheckpoint) {
  const Folder folder;
  const std::string dir = folder / "a";
  save_steps(dir, {2});
  // Every rank writes its shards; then one rank has an extra that cannot be stored.
  const auto errors = on_ranks(2, [&](const comm::Group& group) {
    Training training = make(group);
    train(training, 0, 3);
    save(training, dir, {{"note", group.rank() == 1 ? "\xff\xfe" : "fine"}});
  });
  EXPECT_TRUE(contains(errors[0], "peer: rank 1 cannot save: extra \"note\"")) << errors[0];
  EXPECT_TRUE(contains(errors[1], "usage: extra \"note\" is not UTF-8 text")) << errors[1];
  EXPECT_FALSE(fs::exists(dir + "/step-00000003"));
  EXPECT_FALSE(fs::exists(dir + "/.tmp-step-00000003"));
  // Files that a crashed machine leaves behind.
  fs::create_directory(dir + "/.tmp-step-00000004");
  std::ofstream(dir + "/.tmp-step-00000004/rank-00000.safetensors") << "half of it";
  expect_no_errors(on_ranks(1,
                            [&](const comm::Group& group) {
                              Training training = make(group);
                              EXPECT_EQ(load(training, dir).step, 2);
                              train(training, 2, 5);
                              save(training, dir);
                            }),
                   "load");
  EXPECT_FALSE(fs::exists(dir + "/.tmp-step-00000004"));
  EXPECT_TRUE(fs::exists(dir + "/step-00000005"));
}

// Another model: one more layer, one less, a layer of another width, another optimizer.
struct WiderImpl : torch::nn::Module {
  WiderImpl() { net = register_module("net", Net()); }
  at::Tensor forward(const at::Tensor& x) { return net->forward(x); }
  Net net{nullptr};
};
TORCH_MODULE(Wider);
struct MoreImpl : NetImpl {
  MoreImpl() { register_parameter("temperature", at::ones({3})); }
};
TORCH_MODULE(More);

TEST(LoadFailures, RejectsAnotherModelByName) {
  const Folder folder;
  const std::string dir = folder / "a";
  save_steps(dir, {1, 2});
  const auto errors_of = [&](const auto& model, const zero::Options& options) {
    return on_ranks(2, [&](const comm::Group& group) {
      DataParallel training(model(), group, options);
      load(training, dir);
    });
  };
  const zero::Options same = options_of(rules().front(), 2);
  for (const std::string& error : errors_of([] { return More(); }, same)) {
    EXPECT_TRUE(contains(error, "has no parameter \"temperature\"")) << error;
    EXPECT_TRUE(contains(error, "and has ") && contains(error, "conv.weight")) << error;
  }
  for (const std::string& error : errors_of([] { return Wider(); }, same)) {
    EXPECT_TRUE(contains(error, "has no parameter \"net.")) << error;
  }
  for (const std::string& error : errors_of([] { return Net(6); }, same)) {
    EXPECT_TRUE(contains(error,
                         "parameter \"conv.weight\" is [5, 3, 2, 2], but the model has "
                         "[6, 3, 2, 2]"))
        << error;
  }
  for (const std::string& error : errors_of([] { return torch::nn::Linear(5, 4); }, same)) {
    EXPECT_TRUE(contains(error, "has no parameter \"weight\"")) << error;
  }
  for (const std::string& error : errors_of([] { return Net(); }, options_of(rules()[1], 2))) {
    EXPECT_TRUE(contains(error, "has moment1, moment2, param, but this engine also needs velocity"))
        << error;
  }
  zero::Options plain = options_of({"plain", zero::SGD{.lr = 0.1}}, 2);
  for (const std::string& error : errors_of([] { return Net(); }, plain)) {
    EXPECT_TRUE(contains(error, "has moment1, moment2, which this engine does not have")) << error;
  }
  // The other way round: a checkpoint with more parameters than the model.
  expect_no_errors(on_ranks(2,
                            [&](const comm::Group& group) {
                              DataParallel training(More(), group, same);
                              save(training, folder / "more");
                            }),
                   "save");
  for (const std::string& error : on_ranks(3, [&](const comm::Group& group) {
         Training training = make(group);
         load(training, folder / "more");
       })) {
    EXPECT_TRUE(contains(error, "has parameters that the model does not have: temperature"))
        << error;
  }
}

TEST(LoadFailures, CheckOfTheProgramDecides) {
  const Folder folder;
  const std::string dir = folder / "a";
  save_steps(dir, {1, 2});
  const auto errors = on_ranks(2, [&](const comm::Group& group) {
    Training training = make(group);
    const Loaded loaded = load(training, dir, {.check = [](const Loaded& found) {
                                 if (found.extra.at("epoch") == "2") throw DataError("too new");
                               }});
    EXPECT_EQ(loaded.step, 1);
    load(training, dir, {.check = [&](const Loaded&) {
           if (group.rank() == 1) throw UsageError("not mine");
         }});
  });
  EXPECT_TRUE(contains(errors[0], "peer: rank 1 cannot load: not mine")) << errors[0];
  EXPECT_EQ(errors[1], "usage: not mine");
}

TEST(Extras, AnyValuesAreRestored) {
  const Folder folder;
  const Extra strange = {{"", "empty key"},
                         {"empty", ""},
                         {"quotes \"'\\ and braces {}[]", "\"\\\"\n\r\t\b\f/"},
                         {"zero", std::string("a\0b", 3)},
                         {"controls", "\x01\x02\x1f\x7f"},
                         {"Ключ ключа", "τι λες; 漢字 🙂 é"},
                         {"json", "{\"a\": [1, 2, null]}"},
                         {"long", std::string(100000, 'x')},
                         {"update", "not ours"},
                         {"updates.", "nor this"}};
  expect_no_errors(on_ranks(2,
                            [&](const comm::Group& group) {
                              Training training = make(group);
                              Extra extra = strange;
                              extra[str("of rank ", group.rank())] = "mine";
                              extra["of both"] = str(group.rank());
                              save(training, folder / "a", extra);
                            }),
                   "save");
  expect_no_errors(on_ranks(3,
                            [&](const comm::Group& group) {
                              Training training = make(group, 0);
                              Extra wanted = strange;
                              wanted["of rank 0"] = wanted["of rank 1"] = "mine";
                              wanted["of both"] = "0";
                              EXPECT_EQ(load(training, folder / "a").extra, wanted);
                            }),
                   "load");
  for (const char* const key : {"updates", "updates/conv.weight"}) {
    for (const std::string& error : on_ranks(2, [&](const comm::Group& group) {
           Training training = make(group);
           save(training, folder / "b", {{key, "1"}});
         })) {
      EXPECT_TRUE(contains(error, "usage: extra ") && contains(error, "Use another key")) << error;
    }
  }
}

TEST(Counts, LossScaleCountsAreRestoredAndMayBeMissing) {
  const zero::StepCounts counts{40, {{"weight", 40}, {"late", 7}}, 32768, 1234};
  Extra extra{{"epoch", "3"}};
  parallel::put_counts(extra, counts);
  Extra older = extra;
  ASSERT_EQ(older.erase("updates/ good steps"), 1u);
  const zero::StepCounts same = parallel::take_counts(extra, "here");
  EXPECT_EQ(same.steps, 40);
  EXPECT_EQ(same.updates, (std::map<std::string, std::int64_t>{{"late", 7}}));
  EXPECT_EQ(same.loss_scale, 32768);
  EXPECT_EQ(same.good_steps, 1234);
  EXPECT_EQ(extra, (Extra{{"epoch", "3"}}));
  const zero::StepCounts from_older = parallel::take_counts(older, "here");
  EXPECT_EQ(from_older.loss_scale, 32768);
  EXPECT_EQ(from_older.good_steps, 0);
  // Without loss scaling there is nothing to write.
  Extra unscaled;
  parallel::put_counts(unscaled, {5, {}, 0, 0});
  EXPECT_EQ(unscaled, (Extra{{"updates", "5"}}));
}

TEST(SaveFailures, RejectsASecondWriter) {
  const Folder folder;
  const std::string dir = folder / "a";
  expect_no_errors(
      on_ranks(2,
               [&](const comm::Group& group) {
                 Training training = make(group);
                 AsyncSave saver(training, dir);
                 try {
                   save(training, dir);
                   ADD_FAILURE() << "saved";
                 } catch (const UsageError& error) {
                   EXPECT_TRUE(contains(error.what(), "is being written to by tessera::save"))
                       << error.what();
                 }
                 EXPECT_NO_THROW(save(training, folder / "b"));
               }),
      "two writers");
  save_steps(dir, {1});
}

TEST(SaveFailures, RejectsAnEngineOfAPartOfAModel) {
  for (const std::string& error : on_ranks(2, [&](const comm::Group& group) {
         zero::Options options = options_of(rules().front(), 0);
         zero::ModelAxes axes;
         axes.group = group;
         zero::Engine training =
             zero::Engine::of_part(Net().ptr(), zero::DataGroups(comm::Group()), options, axes);
         save(training, "/nowhere");
       })) {
    EXPECT_TRUE(contains(error, "Pass the ParallelModel")) << error;
  }
}

// Saves what `from` has, with one more state of two parameters on every rank.
void save_with(const std::string& state, const std::string& from, const std::string& into) {
  expect_no_errors(on_ranks(2,
                            [&](const comm::Group& group) {
                              Training training = make(group, 0);
                              load(training, from);
                              parallel::StateToSave all = parallel::state_to_save(training);
                              const std::vector<float> values(60, 0.5F);
                              const std::vector<std::pair<std::string, int>> params = {
                                  {"conv.weight", 60}, {"head.weight", 20}};
                              for (const auto& [param, count] : params) {
                                checkpoint::Shard& more = all.shards.emplace_back();
                                more.param = param;
                                more.state = str(state, group.rank(), ".0");
                                more.runs = {{0, 0, count}};
                                more.data = reinterpret_cast<const std::byte*>(values.data());
                              }
                              checkpoint::Description about = checkpoint::Checkpoint(from).about();
                              about.params = all.specs;
                              checkpoint::save(into, about, all.shards, parallel::team_of(group));
                            }),
                   state);
}

// Earlier versions saved the error feedback of PowerSGD of each rank.
TEST(OlderCheckpoints, LoadWithoutTheErrorFeedbackOfPowerSgd) {
  const Folder folder;
  save_steps(folder / "plain", {3});
  const std::string plain = folder / "plain/step-00000003";
  save_with("powersgd_error.", plain, folder / "old");
  const std::string old = folder / "old/step-00000003";
  EXPECT_TRUE(checkpoint::Checkpoint(old).states("conv.weight").contains("powersgd_error.1.0"));
  for (const int ranks : {1, 3}) {
    for (const int stage : {0, 2}) {
      std::vector<Contents> trained;
      for (const std::string& from : {plain, old}) {
        expect_no_errors(on_ranks(ranks,
                                  [&](const comm::Group& group) {
                                    Training training = make(group, stage);
                                    const Loaded loaded = load(training, from);
                                    ASSERT_EQ(loaded.notes.size(), from == old ? 1u : 0u);
                                    if (from == old) {
                                      EXPECT_TRUE(contains(loaded.notes[0],
                                                           "powersgd_error.0.0 of 2 parameters is "
                                                           "ignored. PowerSGD has moved"))
                                          << loaded.notes[0];
                                    }
                                    train(training, 3, 5);
                                    const Contents mine = contents(training);
                                    if (group.rank() == 0) trained.push_back(mine);
                                  }),
                         from);
      }
      expect_equal(trained.at(1), trained.at(0), str(ranks, " ranks, stage ", stage));
    }
  }
  expect_no_errors(on_ranks(2,
                            [&](const comm::Group& group) {
                              Training training = make(group);
                              const Loaded loaded = load(training, old, {.params_only = true});
                              EXPECT_TRUE(loaded.notes.empty());
                            }),
                   "parameters only");
  save_with("unknown.", plain, folder / "other");  // other states are still refused
  for (const std::string& error : on_ranks(2, [&](const comm::Group& group) {
         Training training = make(group);
         load(training, folder / "other");
       })) {
    EXPECT_TRUE(contains(error, "unknown.0.0")) << error;
  }
}

}  // namespace
}  // namespace tessera::save_test
