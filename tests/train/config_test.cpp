#include "tessera/train/config.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <string>

#include "tessera/core/errors.h"
#include "tests/temporary_folder.h"
#include "tests/text.h"
#include "tests/toml.h"

namespace tessera::train {
namespace {

class ConfigFile {
 public:
  explicit ConfigFile(const std::string& text) {
    std::string name = (std::filesystem::temp_directory_path() / "tessera-config-XXXXXX").string();
    const int fd = ::mkstemp(name.data());
    if (fd < 0) throw std::runtime_error("no file");
    ::close(fd);
    path_ = name;
    std::ofstream(path_) << text;
  }
  ~ConfigFile() { std::filesystem::remove(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Returns the message of the UsageError that f throws, or "".
template <typename F>
std::string refusal(F&& f) {
  try {
    f();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(Config, PrintedSettingsParseToEqualSettings) {
  TESSERA_NEEDS_TOML();
  RunConfig config;
  config.layers = 3;
  config.data = "a \"b\"\\ \t c.txt";
  config.lr = 1.0 / 3;
  config.clip = 2;
  config.bucket_bytes = 1000;
  config.prefetch = false;
  config.seed = 999'999'999'999'999;
  config.memory_limit = 123'456'789;
  config.warmup = -1;
  config.metrics = "out.jsonl";
  const ConfigFile file(to_toml(config));
  RunConfig read;
  read_config(read, file.path(), nullptr);
  EXPECT_EQ(to_toml(read), to_toml(config));
  EXPECT_EQ(to_toml(read), to_toml(config));
}

TEST(Config, EachFieldRoundTripsAlone) {
  for (const Field& each : fields()) {
    RunConfig config;
    const std::string before = get(config, each);
    set(config, each, before);
    EXPECT_EQ(to_toml(config), to_toml(RunConfig{})) << each.name;
    EXPECT_FALSE(each.help.empty());
  }
}

TEST(Config, DefaultLearningRateDecreasesWithModelSize) {
  EXPECT_EQ(planner::default_lr(0), 3e-3);
  EXPECT_EQ(planner::default_lr(1'000'000), 3e-3);
  EXPECT_NEAR(planner::default_lr(125'000'000), 6e-4, 1e-9);
  EXPECT_NEAR(planner::default_lr(1'000'000'000), 3e-4, 1e-9);
  RunConfig config;
  EXPECT_EQ(get(config, field("lr")), "auto");
  EXPECT_EQ(resolve(config, 1).lr, 3e-3);
  config.set("model", "gpt2-124m");
  const Resolved large = resolve(config, 1);
  EXPECT_NEAR(large.lr, 6e-4, 2e-5);
  config.lr_scaling = LrScaling::linear;
  config.lr_reference_batch = 8;
  EXPECT_DOUBLE_EQ(resolve(config, 1).lr, 2 * large.base_lr);  // 16 sequences
  set(config, field("lr"), "0.25");
  EXPECT_EQ(resolve(config, 1).base_lr, 0.25);
  set(config, field("lr"), "auto");
  EXPECT_EQ(resolve(config, 1).base_lr, large.base_lr);
}

TEST(Config, FileChangesOnlySettingsThatItNames) {
  TESSERA_NEEDS_TOML();
  const ConfigFile file(
      "zero = 2\n[optimizer]\nlr = 1e-2\nclip = 3\n[run]\nmemory-limit = \"2GiB\"\n");
  RunConfig config;
  config.micro_batch = 5;
  std::vector<std::string> named;
  read_config(config, file.path(), &named);
  RunConfig want;
  want.micro_batch = 5;
  want.zero = 2;
  want.lr = 1e-2;
  want.clip = 3;
  want.memory_limit = std::int64_t{2} << 30;
  EXPECT_EQ(to_toml(config), to_toml(want));
  EXPECT_EQ(named.size(), 4u);
}

TEST(Config, ErrorsNameTheFileAndTheLine) {
  TESSERA_NEEDS_TOML();
  RunConfig config;
  const auto reading = [&](const std::string& text) {
    const ConfigFile file(text);
    return refusal([&] { read_config(config, file.path(), nullptr); });
  };
  EXPECT_TRUE(contains(reading("[batch]\nmicro-bach = 3\n"), "line 2"));
  EXPECT_TRUE(contains(reading("[batch]\nmicro-bach = 3\n"), "did you mean micro-batch?"));
  EXPECT_TRUE(contains(reading("steps = 1.5\n"), "an integer"));
  EXPECT_TRUE(contains(reading("zero = [1]\n"), "line 1"));
  EXPECT_TRUE(contains(reading("zero = \n"), "line 1"));
  EXPECT_TRUE(
      contains(refusal([&] { read_config(config, "/nowhere.toml", nullptr); }), "--config"));
}

TEST(Config, RejectsNonRegularFilesWithoutBlocking) {
  TESSERA_NEEDS_TOML();
  const TemporaryFolder folder;
  const std::string pipe = folder / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  RunConfig config;
  const auto reading = [&](const std::string& path) {
    return refusal([&] { read_config(config, path, nullptr); });
  };
  for (const auto& [path, kind] : {std::pair<std::string, std::string>{folder.path, "a folder"},
                                   {pipe, "a pipe"},
                                   {"/dev/zero", "a character device"}}) {
    EXPECT_TRUE(contains(reading(path), "--config: ") && contains(reading(path), "is " + kind) &&
                contains(reading(path), "must be a TOML file"))
        << reading(path);
  }
}

TEST(Config, RejectsTooLongFilesWithoutParsing) {
  TESSERA_NEEDS_TOML();
  const std::string line = "# a comment that means nothing at all\n";
  std::string text = "steps = 7\n";
  while (text.size() + line.size() <= 1 << 20) text += line;
  RunConfig config;
  read_config(config, ConfigFile(text).path(), nullptr);
  EXPECT_EQ(config.steps, 7);
  text += line;
  config = {};
  try {
    read_config(config, ConfigFile(text).path(), nullptr);
    FAIL() << text.size() << " bytes were read";
  } catch (const DataError& error) {
    EXPECT_TRUE(contains(error.what(), "--config: ") && contains(error.what(), "1 MiB"))
        << error.what();
  }
  EXPECT_TRUE(contains(refusal([&] { parse_config(config, text, "f"); }), "1 MiB"));
  EXPECT_EQ(to_toml(config), to_toml(RunConfig{}));
}

TEST(Config, RejectsDuplicateKeysAndChangesNothing) {
  TESSERA_NEEDS_TOML();
  RunConfig config;
  EXPECT_NE(refusal([&] { parse_config(config, "steps = 7\nzero = 9\n", "f"); }), "");
  EXPECT_EQ(to_toml(config), to_toml(RunConfig{}));
  const std::string twice =
      refusal([&] { parse_config(config, "[batch]\nsteps = 7\n[run]\nsteps = 8\n", "f"); });
  EXPECT_TRUE(contains(twice, "line 2") && contains(twice, "line 4")) << twice;
}

TEST(Config, StringsAndCommentsMayContainAnyCharacter) {
  TESSERA_NEEDS_TOML();
  RunConfig config;
  parse_config(config, "# für\n[data]\ndata = \"b\u00fccher \\\" é.txt\" # ü\nsave = 'ö'\n", "f");
  EXPECT_EQ(config.data, "b\u00fccher \" é.txt");
  EXPECT_EQ(config.save, "ö");
  config = {};
  config.data = "bücher/\"Ω\".txt";
  RunConfig read;
  parse_config(read, to_toml(config), "f");
  EXPECT_EQ(to_toml(read), to_toml(config));
  EXPECT_TRUE(contains(refusal([&] { parse_config(read, "\nsteps = é\n", "f"); }), "line 2"));
}

// Freeing 100,000 nested tables would overflow the stack.
TEST(Config, RejectsKeysOfManyParts) {
  TESSERA_NEEDS_TOML();
  std::string key = "a";
  for (int i = 0; i < 100'000; ++i) key += ".a";
  RunConfig config;
  for (const std::string& text : {key + " = 1\n", "[" + key + "]\n", "x = { " + key + " = 1 }\n",
                                  std::string(100'000, '[') + "\n"}) {
    EXPECT_NE(refusal([&] { parse_config(config, text, "f"); }), "") << text.substr(0, 10);
  }
}

// A damaged file is parsed or rejected, and parsed values are within their bounds.
TEST(Config, MutatedFilesAreParsedOrRejected) {
  TESSERA_NEEDS_TOML();
  const std::string seed = to_toml({});
  const std::vector<std::string> words = {
      "0", "-1", "1e999", "nan",  "inf", "true", "\"",   "'",          "\"\"\"", "'''", "[",
      "]", "[[", "{",     "}",    "=",   ".",    "#",    "\n",         ",",      "\\",  "\xff",
      "é", "\t", "eps",   "zero", "0x1", "1_0",  "07:3", "1979-05-27", "\r",     "\0x"};
  std::mt19937_64 random(20240607);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  int good = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string text = seed;
    for (std::size_t left = 1 + below(3); left > 0; --left) {
      const std::size_t at = below(text.size());
      switch (below(4)) {
        case 0: text.erase(at, 1 + below(12)); break;
        case 1: text.insert(at, words[below(words.size())]); break;
        case 2: text.replace(at, below(8), words[below(words.size())]); break;
        default: text[at] = static_cast<char>(below(256));
      }
    }
    RunConfig config;
    try {
      parse_config(config, text, "f");
    } catch (const UsageError& error) {
      EXPECT_TRUE(contains(error.what(), "--config: f")) << error.what();
      EXPECT_EQ(to_toml(config), to_toml(RunConfig{}));
      continue;
    }
    ++good;
    for (const Field& each : fields()) {
      RunConfig copy;
      EXPECT_NO_THROW(set(copy, each, get(config, each))) << each.name << " in\n" << text;
    }
  }
  EXPECT_GT(good, 100);
}

TEST(Config, RejectsValuesOutOfBoundsByName) {
  RunConfig config;
  const auto setting = [&](const char* name, const char* text) {
    return refusal([&] { set(config, field(name), text); });
  };
  EXPECT_TRUE(contains(setting("zero", "4"), "--zero: got \"4\"; must be 0 to 3"));
  EXPECT_TRUE(contains(setting("micro-batch", "0"), "--micro-batch"));
  EXPECT_TRUE(contains(setting("micro-batch", "3x"), "an integer"));
  EXPECT_TRUE(contains(setting("lr", "nan"), "--lr"));
  EXPECT_TRUE(contains(setting("lr", "fast"), "--lr"));
  EXPECT_TRUE(contains(setting("lr", "-1e-3"), "--lr: got \"-1e-3\"; must be 0 to 1000"));
  EXPECT_TRUE(contains(setting("eps", "0"), "--eps: got \"0\"; must be 1e-30 to 1"));
  EXPECT_TRUE(contains(setting("eps", "1e-40"), "--eps"));
  for (const char* name : {"beta1", "beta2", "momentum"}) {
    EXPECT_TRUE(contains(setting(name, "1"), "must be 0 to 0.9999999")) << name;
    EXPECT_TRUE(contains(setting(name, "1.5"), name)) << name;
    EXPECT_TRUE(contains(setting(name, "-0.1"), name)) << name;
  }
  EXPECT_TRUE(contains(setting("weight-decay", "-1"), "--weight-decay"));
  EXPECT_TRUE(contains(setting("clip", "inf"), "--clip"));
  EXPECT_TRUE(contains(setting("steps", "-1"), "--steps"));
  EXPECT_TRUE(contains(setting("steps", "9223372036854775808"), "--steps"));
  EXPECT_TRUE(contains(setting("layout", "bf17"), "did you mean bf16?"));
  EXPECT_TRUE(contains(setting("checkpoint-activations", "al"), "none, selective, full"));
  EXPECT_TRUE(contains(setting("memory-limit", "2G"), "--memory-limit"));
  EXPECT_TRUE(contains(setting("prefetch", "maybe"), "true or false"));
  EXPECT_TRUE(contains(refusal([] { field("learning-rate"); }), "not a setting"));
  EXPECT_EQ(to_toml(config), to_toml(RunConfig{}));
}

TEST(Resolve, ComputesGlobalBatchAndAccumulation) {
  RunConfig config;
  config.micro_batch = 4;
  EXPECT_EQ(resolve(config, 2).global_batch, 8);
  config.grad_accum = 3;
  EXPECT_EQ(resolve(config, 2).global_batch, 24);
  config.grad_accum = 0;
  config.global_batch = 24;
  EXPECT_EQ(resolve(config, 2).grad_accum, 3);
  EXPECT_EQ(resolve(config, 3).grad_accum, 2);
  config.grad_accum = 3;
  EXPECT_EQ(resolve(config, 2).grad_accum, 3);
  const std::string both = refusal([&] { resolve(config, 3); });
  EXPECT_TRUE(contains(both, "--grad-accum: got 3") && contains(both, "requires 2")) << both;
  config.grad_accum = 0;
  config.global_batch = 27;
  const std::string uneven = refusal([&] { resolve(config, 2); });
  EXPECT_TRUE(contains(uneven, "--global-batch: got 27") && contains(uneven, "24 or 32")) << uneven;
  config.global_batch = 3;
  EXPECT_TRUE(contains(refusal([&] { resolve(config, 2); }), "such as 8"));
}

TEST(Resolve, FindsModelsByNameAndBySizes) {
  RunConfig config;
  EXPECT_EQ(resolve(config, 1).model.name, "gpt-tiny");
  config.layers = 6;
  config.hidden = 512;
  config.heads = 8;
  config.vocab = 8192;
  config.seq = 300;
  const Resolved sizes = resolve(config, 1);
  EXPECT_EQ(sizes.model.layers, 6);
  EXPECT_EQ(sizes.model.ffn, 2048);
  EXPECT_EQ(sizes.model.positions, 300);
  config.heads = 7;
  EXPECT_TRUE(contains(refusal([&] { resolve(config, 1); }), "--hidden is 512"));
  config = {};
  config.set("model", "gpt2-124");
  EXPECT_TRUE(contains(refusal([&] { resolve(config, 1); }), "did you mean gpt2-124m?"));
  config.set("model", "llama3-8b");
  EXPECT_EQ(resolve(config, 1).model.kv_heads, 8);
  config.hidden = 1024;
  config.heads = 16;
  EXPECT_EQ(resolve(config, 1).model.kv_heads, 8);  // still divides the heads
  EXPECT_EQ(resolve(config, 1).model.ffn, 3584);
  config.positions = 64;
  EXPECT_TRUE(contains(refusal([&] { resolve(config, 1); }), "--positions: got 64"));
}

TEST(Resolve, RejectsContradictingSettings) {
  const auto refused = [](auto change) {
    RunConfig config;
    change(config);
    return refusal([&] { resolve(config, 2); });
  };
  EXPECT_TRUE(contains(refused([](RunConfig& c) { c.seq = 257; }), "--seq: got 257"));
  EXPECT_TRUE(contains(refused([](RunConfig& c) { c.vocab = 11; }), "at least 12"));
  EXPECT_TRUE(contains(refused([](RunConfig& c) { c.hardware_file = "f"; }), "--hardware"));
  EXPECT_TRUE(contains(refused([](RunConfig& c) {
                         c.micro_batch = 1'000'000'000;
                         c.grad_accum = 1'000'000;
                       }),
                       "10^15 tokens"));
  EXPECT_TRUE(contains(refused([](RunConfig& c) { c.elastic = "1:2"; }), "--max-restarts"));
  EXPECT_TRUE(contains(refused([](RunConfig& c) { c.elastic = "2:1"; }), "FEWEST:MOST"));
  // The run has two ranks.
  EXPECT_TRUE(contains(refused([](RunConfig& c) { c.elastic = "3:8"; }), "must be from 3 to 8"));
  EXPECT_TRUE(contains(refused([](RunConfig& c) { c.elastic = "1:1"; }), "must be from 1 to 1"));
  EXPECT_TRUE(contains(refused([](RunConfig& c) { c.resume = "auto"; }), "--save"));
  EXPECT_TRUE(contains(refused([](RunConfig& c) {
                         c.vocab = 100;
                         c.data = "x.txt";
                       }),
                       "at least 256"));
  EXPECT_TRUE(contains(refused([](RunConfig& c) { c.warmup = 241; }), "--warmup is 241"));
  EXPECT_TRUE(contains(refused([](RunConfig& c) { c.zero = 4; }), "--zero"));
  EXPECT_TRUE(
      contains(refused([](RunConfig& c) { c.layout = parse_state_layout("2,6,12"); }), "--layout"));
  EXPECT_TRUE(
      contains(refused([](RunConfig& c) { c.backend = BackendName::nccl; }), "--device cuda"));
  EXPECT_EQ(refused([](RunConfig& c) { c.steps = 1; }), "");
}

TEST(Resolve, CommOffPlansOneRankAndKeepsTheBatch) {
  RunConfig config;
  config.comm = Comm::off;
  config.zero = 2;
  const Resolved resolved = resolve(config, 4);
  EXPECT_EQ(resolved.ranks, 1);
  EXPECT_EQ(resolved.global_batch, 64);
  EXPECT_EQ(plan(config, resolved).sent_bytes(), 0);
}

TEST(Resolve, SgdHasFewerMoments) {
  RunConfig config;
  config.optimizer = OptimizerChoice::sgd;
  EXPECT_EQ(resolve(config, 2).layout.optimizer(), 4);
  config.momentum = 0;
  EXPECT_EQ(resolve(config, 2).layout.optimizer(), 0);
  config.optimizer = OptimizerChoice::lion;
  EXPECT_EQ(resolve(config, 2).layout.optimizer(), 4);
  config.optimizer = OptimizerChoice::muon;
  EXPECT_EQ(resolve(config, 2).layout.optimizer(), 8);
  EXPECT_EQ(resolve(config, 2).layout.matrix_moments, 4);
}

// Fewer ranks keep the batch: their number must make whole replicas and divide it.
TEST(Config, ElasticRestartsWithRanksThatDivideTheBatch) {
  RunConfig config;
  config.micro_batch = 2;
  config.global_batch = 24;
  config.save = "runs";
  config.max_restarts = 1;
  EXPECT_EQ(ranks_that_fit(config, resolve(config, 4), 4, 3), 4);  // not elastic: the same number
  config.elastic = "2:4";
  const Resolved resolved = resolve(config, 4);
  for (const auto& [left, wanted] : {std::pair{3, 3}, {2, 2}, {1, 0}, {0, 0}}) {
    EXPECT_EQ(ranks_that_fit(config, resolved, 4, left), wanted) << left;
  }
  config.global_batch = 16;  // three ranks of two do not divide it
  EXPECT_EQ(ranks_that_fit(config, resolve(config, 4), 4, 3), 2);
  config.axes.set(Axis::tp, 2);
  EXPECT_EQ(ranks_that_fit(config, resolve(config, 4), 4, 3), 2);
  config.axes.set(Axis::tp, 4);
  EXPECT_EQ(ranks_that_fit(config, resolve(config, 4), 4, 3), 0);
}

}  // namespace
}  // namespace tessera::train
