// `tessera generate` and `tessera evaluate` as a user runs them, on models of `tessera train`.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/processes.h"
#include "tests/temporary_folder.h"
#include "tests/text.h"

namespace tessera::cli {
namespace {

using Json = nlohmann::json;
using Words = std::vector<std::string>;

Outcome tessera(Words words) {
  words.insert(words.begin(), TESSERA_PROGRAM);
  return outcome_of(words);
}

std::vector<Json> lines_of(const std::string& text) {
  std::vector<Json> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(Json::parse(line));
  return lines;
}

// Models that are trained once for all tests.
class Generate : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    made.emplace();
    folder = made->path;
    std::ofstream text(folder / "text.txt");
    for (int i = 0; i < 400; ++i) text << "grüße, line " << i % 10 << "\n";
    text.close();
    const std::string data = folder / "text.txt", run = folder / "bytes";
    const Outcome trained = tessera({"train",
                                     "--model",
                                     "llama-tiny",
                                     "--layers",
                                     "2",
                                     "--hidden",
                                     "64",
                                     "--heads",
                                     "4",
                                     "--data",
                                     data,
                                     "--val-data",
                                     data,
                                     "--eval-every",
                                     "20",
                                     "--eval-batches",
                                     "2",
                                     "--seq",
                                     "48",
                                     "--micro-batch",
                                     "4",
                                     "--grad-accum",
                                     "1",
                                     "--steps",
                                     "60",
                                     "--samples",
                                     "0",
                                     "--ranks",
                                     "2",
                                     "--zero",
                                     "3",
                                     "--threads",
                                     "1",
                                     "--save",
                                     run,
                                     "--tensorboard",
                                     folder / "board",
                                     "--metrics",
                                     folder / "metrics.jsonl"});
    ASSERT_EQ(trained.status, 0) << trained.err;
    out = trained.out;
  }
  static void TearDownTestSuite() { made.reset(); }

  static Outcome generate(Words words) {
    words.insert(words.begin(), {"generate", "--from", folder / "bytes"});
    return tessera(words);
  }

  static inline std::optional<TemporaryFolder> made;
  static inline std::filesystem::path folder;
  static inline std::string out;
};

TEST_F(Generate, ContinuesATextFromTheTrainingData) {
  const Outcome got = generate({"--prompt", "grüße, ", "--tokens", "5", "--temperature", "0"});
  EXPECT_EQ(got.status, 0) << got.err;
  EXPECT_EQ(got.out, "grüße, line \n");
  EXPECT_TRUE(contains(got.err, "5 tokens in")) << got.err;
}

TEST_F(Generate, OutputDependsOnTheSeedNotTheBatch) {
  Words words = {"--tokens", "30", "--json"};
  for (const char* prompt : {"gr", "line", "a", "grüße, line 5\n", "x"}) {
    words.insert(words.end(), {"--prompt", prompt});
  }
  const auto texts = [&](const Words& more) {
    Words all = words;
    all.insert(all.end(), more.begin(), more.end());
    const Outcome got = generate(all);
    EXPECT_EQ(got.status, 0) << got.err;
    std::vector<Json> lines = lines_of(got.out);
    EXPECT_EQ(lines.size(), 6U);
    if (lines.size() != 6) return lines;
    EXPECT_EQ(lines.back().at("summary").at("tokens"), 150);
    lines.pop_back();
    return lines;
  };
  const auto one = texts({"--batch", "1", "--seed", "3"});
  EXPECT_EQ(one, texts({"--batch", "3", "--seed", "3"}));
  EXPECT_EQ(one, texts({"--batch", "8", "--threads", "1", "--seed", "3"}));
  EXPECT_NE(one, texts({"--batch", "8", "--seed", "4"}));
  ASSERT_EQ(one.size(), 5U);
  EXPECT_EQ(one[0].at("prompt"), "gr");
  EXPECT_EQ(one[0].at("ended"), "tokens");
  EXPECT_EQ(one[0].at("tokens").size(), 30U);
}

TEST_F(Generate, StopsBeforeAStopString) {
  const Outcome got = generate({"--prompt", "grü", "--tokens", "60", "--temperature", "0", "--stop",
                                "zzz", "--stop", "ne ", "--json"});
  EXPECT_EQ(got.status, 0) << got.err;
  const Json text = lines_of(got.out)[0];
  EXPECT_EQ(text.at("text"), "ße, li");
  EXPECT_EQ(text.at("ended"), "stop");
}

TEST_F(Generate, WarnsThatABackslashNInAStopIsNotALineEnd) {
  const Outcome typed = generate({"--prompt", "gr", "--tokens", "3", "--stop", "\\n\\n"});
  EXPECT_EQ(typed.status, 0) << typed.err;
  EXPECT_TRUE(contains(typed.err, "is a backslash and an n")) << typed.err;
  const Outcome meant = generate({"--prompt", "gr", "--tokens", "3", "--stop", "\n\n"});
  EXPECT_FALSE(contains(meant.err, "backslash")) << meant.err;
}

// Accepts the names of the other commands and of PyTorch.
TEST_F(Generate, AcceptsAnyNameOfADtype) {
  std::set<std::string> outs;
  for (const char* name : {"f32", "fp32", "float32"}) {
    const Outcome got = generate({"--prompt", "gr", "--tokens", "5", "--dtype", name});
    EXPECT_EQ(got.status, 0) << got.err;
    outs.insert(got.out);
  }
  EXPECT_EQ(outs.size(), 1u);
  const Outcome other = generate({"--prompt", "gr", "--dtype", "f16"});
  EXPECT_EQ(other.status, 2);
  EXPECT_TRUE(contains(other.err, "must be one of f32, bf16")) << other.err;
}

TEST_F(Generate, ReadsPromptsFromAFile) {
  std::ofstream(folder / "p.txt") << "gr\n\nline\n";
  std::ofstream(folder / "p.jsonl") << R"({"prompt": "gr"})"
                                    << "\n"
                                    << R"({"prompt": "line"})";
  const auto texts = [&](const char* name) {
    const Outcome got = generate({"--prompts", folder / name, "--tokens", "9", "--dtype", "bf16"});
    EXPECT_EQ(got.status, 0) << got.err;
    return got.out;
  };
  EXPECT_EQ(texts("p.txt"), texts("p.jsonl"));
  EXPECT_TRUE(contains(texts("p.txt"), "\n\nline"));
}

// Tensor-parallel ranks write the same as one process, for every source of the prompt.
TEST_F(Generate, GeneratesTheSameTextOnSeveralRanks) {
  const auto texts = [&](const Words& more) {
    Words words = {"--tokens", "25", "--json", "--prompt", "gr", "--prompt", "line 7"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome got = generate(words);
    EXPECT_EQ(got.status, 0) << got.err;
    std::vector<Json> lines = lines_of(got.out);
    EXPECT_EQ(lines.size(), 3U) << got.out;
    if (!lines.empty()) lines.pop_back();
    return lines;
  };
  EXPECT_EQ(texts({"--temperature", "0"}), texts({"--temperature", "0", "--tp", "2"}));
  EXPECT_EQ(texts({"--seed", "3"}), texts({"--seed", "3", "--tp", "2"}));
  EXPECT_EQ(texts({"--temperature", "0"}), texts({"--temperature", "0", "--cp", "3"}));
  EXPECT_EQ(texts({"--seed", "3"}), texts({"--seed", "3", "--tp", "2", "--cp", "2"}));

  const Words words = {TESSERA_PROGRAM, "generate", "--from",        folder / "bytes",
                       "--tokens",      "5",        "--temperature", "0",
                       "--tp",          "2"};
  std::ofstream(folder / "prompt.txt") << "grüße, \n";
  Capture out, err;
  const int status = execute(words, out, err, [] {
    const int file = ::open((folder / "prompt.txt").c_str(), O_RDONLY);
    ::dup2(file, 0);
  });
  EXPECT_EQ(status, 0) << err.text();
  EXPECT_EQ(out.text(), "grüße, line \n");
  EXPECT_TRUE(contains(err.text(), "5 tokens in")) << err.text();
}

TEST_F(Generate, RefusesInvalidArguments) {
  const auto error = [&](const Words& words, const char* part) {
    const Outcome got = generate(words);
    EXPECT_EQ(got.status, 2) << got.err;
    EXPECT_TRUE(contains(got.err, part)) << got.err;
  };
  error({"--prompt", "a", "--top-p", "0"}, "--top-p is 0");
  error({"--prompt", "a", "--temperature", "-1"}, "--temperature");
  error({"--prompt", "300", "--tokenizer", "ids"}, "0 to 255");
  error({"--prompt", "a", "--prompts", "b"}, "one of them");
  error({"--prompt", "a", "--tp", "3"}, "--tp 3: heads is ");
  error({"--prompt", "a", "--tp", "2", "--cp", "4096"}, "--tp: got 2 × --cp 4096 = 8192 ranks");
  error({"--prompt", "300", "--tokenizer", "ids", "--tp", "2"}, "0 to 255");
  error({"--prompts", folder / "nothing"}, "--prompts");
  error({"--prompt", "a", "--min-p", "nan"}, "--min-p: got \"nan\"; must be 0 to 1");
  std::ofstream(folder / "bad.jsonl") << "{\"prompt\": \"a\"}\n\n\n{\"text\": \"b\"}\n";
  const Outcome bad = generate({"--prompts", folder / "bad.jsonl"});
  EXPECT_EQ(bad.status, 1);
  EXPECT_TRUE(contains(bad.err, "line 4 of ")) << "lines that are empty count: " << bad.err;
  const Outcome none = tessera({"generate", "--from", folder / "text.txt", "--prompt", "a"});
  EXPECT_EQ(none.status, 2);
  EXPECT_TRUE(contains(none.err, "config.json")) << none.err;
}

// A new run stores the tokenizer of its data, for the export and in case the data is moved.
TEST_F(Generate, NewModelKeepsTheTokenizerOfItsData) {
  namespace fs = std::filesystem;
  const fs::path own = folder / "own";
  fs::create_directories(own / "tok");
  const nlohmann::json special = {{"id", 3},         {"content", "</s>"}, {"single_word", false},
                                  {"lstrip", false}, {"rstrip", false},   {"normalized", false},
                                  {"special", true}};
  const nlohmann::json model = {{"type", "BPE"},
                                {"vocab", {{"a", 0}, {"b", 1}, {" ", 2}, {"</s>", 3}}},
                                {"merges", nlohmann::json::array()}};
  const nlohmann::json tokenizer = {{"version", "1.0"},
                                    {"added_tokens", nlohmann::json::array({special})},
                                    {"padding", {{"strategy", "BatchLongest"}}},
                                    {"decoder", {{"type", "Fuse"}}},
                                    {"model", model}};
  std::ofstream(own / "tok/tokenizer.json") << tokenizer;
  std::ofstream(own / "tok/tokenizer_config.json") << R"({"eos_token": "</s>"})";
  std::string text;
  for (int i = 0; i < 200; ++i) text += i % 3 == 0 ? "a b " : "b a ";
  std::ofstream(own / "text.txt") << text;
  const std::string tokens = own / "tokens", run = own / "run", exported = own / "exported";
  const Outcome prepared =
      tessera({"data", "prepare", "--tokenizer", own / "tok", own / "text.txt", "--out", tokens});
  ASSERT_EQ(prepared.status, 0) << prepared.err;
  EXPECT_TRUE(contains(prepared.err, "padding")) << prepared.err;
  const Outcome trained =
      tessera({"train", "--ranks", "1", "--layers",  "1",    "--hidden", "16", "--heads",
               "2",     "--vocab", "4", "--data",    tokens, "--seq",    "16", "--micro-batch",
               "2",     "--steps", "1", "--samples", "0",    "--save",   run});
  ASSERT_EQ(trained.status, 0) << trained.err;
  const Outcome out = tessera({"checkpoint", "export", run, exported, "--format", "huggingface"});
  ASSERT_EQ(out.status, 0) << out.err;
  EXPECT_EQ(nlohmann::json::parse(read_all(exported + "/tokenizer.json")), tokenizer);
  const auto config = nlohmann::json::parse(read_all(exported + "/config.json"));
  EXPECT_EQ(config["eos_token_id"], 3);
  fs::rename(tokens, own / "moved");
  const Words more = {"--prompt", "a b", "--tokens", "4", "--temperature", "0", "--ignore-end"};
  Words of_run = {"generate", "--from", run}, of_export = {"generate", "--from", exported};
  of_run.insert(of_run.end(), more.begin(), more.end());
  of_export.insert(of_export.end(), more.begin(), more.end());
  const Outcome first = tessera(of_run), second = tessera(of_export);
  EXPECT_EQ(first.status, 0) << first.err;
  EXPECT_EQ(second.status, 0) << second.err;
  EXPECT_EQ(first.out, second.out);
  EXPECT_TRUE(first.out.starts_with("a b")) << first.out;
}

TEST_F(Generate, EvaluatesTheSameOnEveryMesh) {
  const auto evaluation = [&](const Words& more) {
    Words words = {"evaluate", "--from", folder / "bytes", "--data", folder / "text.txt",
                   "--batch",  "4",      "--batches",      "6",      "--json"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome got = tessera(words);
    EXPECT_EQ(got.status, 0) << got.err;
    return Json::parse(got.out);
  };
  const Json alone = evaluation({});
  const double loss = alone.at("loss");
  EXPECT_LT(loss, 2);
  EXPECT_NEAR(alone.at("perplexity").get<double>(), std::exp(loss), 1e-9);
  EXPECT_NEAR(alone.at("bits_per_byte").get<double>(), loss / std::log(2.0), 1e-3);
  EXPECT_EQ(alone.at("seq"), 48);
  for (const Words& mesh : {Words{"--dp", "2"}, Words{"--tp", "2", "--pp", "2"}}) {
    const Json got = evaluation(mesh);
    EXPECT_NEAR(got.at("loss").get<double>(), loss, 1e-6 * loss);
    EXPECT_EQ(got.at("tokens"), alone.at("tokens"));
  }
  EXPECT_NEAR(evaluation({"--dtype", "bf16"}).at("loss").get<double>(), loss, 0.02);
  const Outcome odd =
      tessera({"evaluate", "--from", folder / "bytes", "--data", folder / "text.txt", "--tp", "3"});
  EXPECT_EQ(odd.status, 2);
  EXPECT_TRUE(odd.err.starts_with("tessera evaluate: --tp 3: heads is ")) << odd.err;
  EXPECT_FALSE(contains(odd.err, "exited")) << "no ranks were started";
  // The product exceeds an int.
  const Outcome many =
      tessera({"evaluate", "--from", folder / "bytes", "--data", folder / "text.txt", "--dp",
               "4096", "--tp", "4096", "--pp", "256"});
  EXPECT_EQ(many.status, 2);
  EXPECT_TRUE(contains(many.err, "4294967296 ranks; must be at most 4096")) << many.err;
}

// A model with experts, and its export, on other ranks than those that trained it.
TEST_F(Generate, GeneratesAndEvaluatesWithExperts) {
  const std::string run = folder / "experts", exported = folder / "exported-experts";
  const Outcome trained = tessera(
      {"train", "--model",   "llama-tiny", "--layers", "2",  "--hidden",  "32", "--heads",
       "4",     "--experts", "5",          "--steps",  "20", "--samples", "0",  "--dp",
       "2",     "--ep",      "2",          "--save",   run,  "--threads", "1",  "--micro-batch",
       "4"});
  ASSERT_EQ(trained.status, 0) << trained.err;
  const Outcome out = tessera({"checkpoint", "export", run, exported, "--format", "huggingface"});
  ASSERT_EQ(out.status, 0) << out.err;
  std::set<std::string> texts;
  std::vector<double> losses;
  std::string seq = "0";  // as in training, which the export does not store
  for (const std::string& from : {run, exported}) {
    for (const char* tp : {"1", "2"}) {
      const Outcome got = tessera({"generate", "--from", from, "--tokenizer", "ids", "--tp", tp,
                                   "--tokens", "20", "--temperature", "0", "--prompt", "3 1 4"});
      EXPECT_EQ(got.status, 0) << got.err;
      texts.insert(got.out);
    }
    for (const Words& mesh :
         {Words{}, Words{"--dp", "2", "--ep", "2"}, Words{"--cp", "2", "--ep", "2", "--tp", "2"}}) {
      Words words = {"evaluate", "--from",    from, "--data", "synthetic", "--batch",
                     "4",        "--batches", "5",  "--json", "--seq",     seq};
      words.insert(words.end(), mesh.begin(), mesh.end());
      const Outcome got = tessera(words);
      ASSERT_EQ(got.status, 0) << got.err;
      losses.push_back(Json::parse(got.out).at("loss"));
      EXPECT_NEAR(losses.back(), losses.front(), 1e-6 * losses.front());
      seq = Json::parse(got.out).at("seq").dump();
    }
  }
  EXPECT_EQ(texts.size(), 1U);
  const auto refusal = [&](const std::string& from, const char* data, const Words& mesh) {
    Words words = {"evaluate", "--from", from, "--data", data, "--batches", "1"};
    words.insert(words.end(), mesh.begin(), mesh.end());
    const Outcome got = tessera(words);
    EXPECT_EQ(got.status, 2) << got.out;
    return got.err;
  };
  const std::string many = refusal(run, "synthetic", {"--dp", "6", "--ep", "6"});
  EXPECT_TRUE(contains(many, "--ep: got 6, but each layer has 5 experts")) << many;
  const std::string uneven = refusal(run, "synthetic", {"--dp", "3", "--ep", "2"});
  EXPECT_TRUE(contains(uneven, "--ep 2: must divide the 3 ranks")) << uneven;
  const std::string text = folder / "text.txt";
  const std::string dense = refusal(folder / "bytes", text.c_str(), {"--dp", "2", "--ep", "2"});
  EXPECT_TRUE(contains(dense, "the model has no experts. Omit --ep")) << dense;
}

// Validation of a run in its metrics, its tables and TensorBoard files.
TEST_F(Generate, TrainingReportsItsValidation) {
  std::ifstream in(folder / "metrics.jsonl");
  std::stringstream text;
  text << in.rdbuf();
  const std::vector<Json> lines = lines_of(text.str());
  ASSERT_EQ(lines.size(), 61U);
  for (std::size_t i = 0; i < 60; ++i) EXPECT_EQ(lines[i].contains("eval"), i % 20 == 19) << i;
  EXPECT_EQ(lines[60].at("summary").at("eval"), lines[59].at("eval"));
  EXPECT_LT(lines[59].at("eval").at("loss").get<double>(),
            lines[19].at("eval").at("loss").get<double>());
  EXPECT_TRUE(contains(out, "validation: loss ")) << out;
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "board")) {
    EXPECT_TRUE(contains(entry.path().filename().string(), "events.out.tfevents."));
    EXPECT_GT(entry.file_size(), 60U * 100);
    ++files;
  }
  EXPECT_EQ(files, 1);
}

}  // namespace
}  // namespace tessera::cli
