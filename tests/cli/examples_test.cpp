// Runs the examples of --help: each works, fits, and is sensible.

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "tessera/core/text.h"
#include "tests/data/tokenizer_files.h"
#include "tests/processes.h"
#include "tests/temporary_folder.h"
#include "tests/text.h"

namespace tessera::cli {
namespace {

using nlohmann::json;

// An example must not spend more than this fraction of a step in the bubble.
constexpr double kMaxBubble = 0.3;

class Examples : public ::testing::Test {
 protected:
  void SetUp() override {
    // Files that the examples read.
    std::ofstream(folder / "runs.csv")
        << "gpus,global_batch,micro_batch,hidden,heads,layers,seq,tp,dp,pp,step_ms\n"
           "4,16,4,2048,16,24,1024,1,2,2,400\n";
    std::ofstream(folder / "rows.jsonl") << "{\"dp\":8}\n{\"model\":\"gpt2-124m\"}\n";
    std::ofstream(folder / "ds_config.json")
        << "{\"train_batch_size\": 64, \"train_micro_batch_size_per_gpu\": 4,"
           " \"bf16\": {\"enabled\": true}, \"zero_optimization\": {\"stage\": 2}}";
    std::ofstream(folder / "book.txt") << std::string(2000, 'a') << "hello\n";
  }
  // Runs a command in its own folder, with `tessera` on the path.
  Outcome shell(const std::string& command) const {
    const std::string bin = std::filesystem::path(TESSERA_PROGRAM).parent_path();
    Capture out, err;
    const int status = execute({"/bin/sh", "-c",
                                "cd '" + folder.string() + "' && PATH='" + bin +
                                    "':\"$PATH\" && export PATH && " + command},
                               out, err);
    return {status, out.text(), err.text()};
  }

  // Returns the commands in the examples of the help: continuation lines are joined, and remarks,
  // which follow two or more spaces, are removed.
  std::vector<std::string> of(const std::string& command, std::size_t least = 4) const {
    const Outcome help = shell("tessera " + command + " --help");
    EXPECT_EQ(help.status, 0);
    std::string text = help.out.substr(std::min(help.out.size(), help.out.find("Examples:\n")));
    text = std::regex_replace(text, std::regex("\\\\\n +"), "");
    std::vector<std::string> all;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      if (line.rfind("  tessera ", 0) != 0) continue;
      const std::string words = line.substr(2);
      all.push_back(words.substr(0, words.find("  ")));
    }
    EXPECT_GE(all.size(), least) << command << "\n" << help.out;
    return all;
  }

  // Returns its result as JSON.
  json answer(const std::string& example) const {
    const Outcome got = shell(example + " --json");
    EXPECT_EQ(got.status, 0) << example << "\n" << got.err;
    return json::parse(got.out, nullptr, /*allow_exceptions=*/false);
  }

  const TemporaryFolder temporary_;
  const std::filesystem::path folder = temporary_.path;
};

TEST_F(Examples, PlanRuns) {
  for (const std::string& example : of("plan")) {
    const Outcome text = shell(example);
    EXPECT_EQ(text.status, 0) << example << "\n" << text.err;
    EXPECT_FALSE(contains(text.out, "DOES NOT FIT")) << example << "\n" << text.out;
    if (contains(example, "--questions ")) {
      std::ifstream plans(folder / "plans.jsonl");
      int count = 0;
      for (std::string line; std::getline(plans, line); ++count) {
        EXPECT_TRUE(json::parse(line)["fits"].get<bool>());
      }
      EXPECT_EQ(count, 2);
      continue;
    }
    const json got = answer(example);
    if (contains(example, "--sweep")) {
      for (const json& row : got["sweep"]) EXPECT_EQ(row["plan"]["fits"], true) << example;
    } else if (contains(example, "--search")) {
      ASSERT_FALSE(got["best"].empty()) << example;
    } else if (contains(example, "--max-") || contains(example, "--score") ||
               contains(example, "--convention") || contains(example, "--topology")) {
      EXPECT_TRUE(got.is_object()) << example;
    } else {
      EXPECT_EQ(got["fits"], true) << example << "\n" << got["remedy"];
      if (!got["time"].is_null()) {
        EXPECT_LT(got["time"]["bubble"].get<double>(),
                  kMaxBubble * got["time"]["step"].get<double>())
            << example;
      }
    }
  }
}

TEST_F(Examples, SimulateRuns) {
  for (const std::string& example : of("simulate")) {
    const Outcome text = shell(example);
    EXPECT_EQ(text.status, 0) << example << "\n" << text.err;
    EXPECT_FALSE(contains(text.out, "DOES NOT FIT")) << example << "\n" << text.out;
    const json got = answer(example);
    if (got.contains("sweep")) {
      for (const json& row : got["sweep"]) {
        EXPECT_EQ(row["fits"], true) << example << "\n" << row;
        EXPECT_LT(row["bubble"].get<double>(), kMaxBubble) << example;
      }
      continue;
    }
    EXPECT_LT(got["bubble"].get<double>(), kMaxBubble) << example;
    if (!contains(example, "--forward")) {
      EXPECT_EQ(got["fits"], true) << example;
    }
  }
}

TEST_F(Examples, ExplainRuns) {
  for (const std::string& example : of("explain")) {
    if (contains(example, "explain sync") && !TESSERA_WITH_TORCH) continue;
    const Outcome text = shell(example);
    EXPECT_EQ(text.status, 0) << example << "\n" << text.err;
    EXPECT_FALSE(contains(text.out, "does not fit")) << example << "\n" << text.out;
    EXPECT_FALSE(contains(text.out, "Bound by memory")) << example << "\n" << text.out;
    EXPECT_FALSE(contains(text.out, "nan")) << example << "\n" << text.out;
  }
}

// They train for minutes, so only checks that the flags and the experiments exist.
TEST_F(Examples, ExperimentHasValidFlags) {
  const std::string names = shell("tessera experiment --list").out;
  for (const std::string& example : of("experiment")) {
    if (contains(example, "tessera calibrate")) continue;
    const Outcome list = shell(example + " --list");
    EXPECT_EQ(list.status, 0) << example << "\n" << list.err;
    std::istringstream words(example);
    std::string name;
    words >> name >> name >> name;
    if (name != "--list") {
      EXPECT_TRUE(contains(names, name)) << example;
    }
  }
}

// The last one and tessera train read the files that they write.
TEST_F(Examples, ImportWritesSettings) {
  for (const std::string& example : of("import")) {
    const Outcome text = shell(example);
    EXPECT_EQ(text.status, 0) << example << "\n" << text.err;
    if (contains(example, "--json")) {
      EXPECT_TRUE(json::accept(text.out)) << text.out;
    }
  }
  if (!TESSERA_WITH_TORCH) return;
  const Outcome read = shell("tessera train --config run.toml --device cpu --print-config");
  EXPECT_EQ(read.status, 0) << read.err;
  EXPECT_TRUE(contains(read.out, "zero = 1\n")) << read.out;
}

TEST_F(Examples, TopicsWithTheirOwnOptionsRun) {
  for (const char* topic :
       {"explain zero", "explain parallel", "explain collective", "explain schedule"}) {
    for (const std::string& example : of(topic)) {
      if (contains(example, "tessera train") || contains(example, "--metrics")) continue;
      const Outcome text = shell(example);
      EXPECT_EQ(text.status, 0) << example << "\n" << text.err;
      EXPECT_FALSE(contains(text.out, "nan")) << example << "\n" << text.out;
    }
  }
}

// Files that the examples of `tessera data` read: Hugging Face tokenizers, texts and token files.
void write_texts(const std::filesystem::path& folder) {
  json tokenizer = data::byte_level_file("");
  const auto id = tokenizer["added_tokens"][0]["id"].get<int>();
  for (int i = 1; i <= 2; ++i) {
    json added = tokenizer["added_tokens"][0];
    added["id"] = id + i;
    added["content"] = i == 1 ? "<|im_start|>" : "<|im_end|>";
    tokenizer["added_tokens"].push_back(added);
  }
  for (const char* name : {"gpt2", "qwen"}) {
    std::filesystem::create_directory(folder / name);
    std::ofstream(folder / name / "tokenizer.json") << tokenizer.dump();
    std::ofstream(folder / name / "tokenizer_config.json") << R"({"eos_token": "<|endoftext|>"})";
  }
  std::filesystem::create_directory(folder / "wiki");
  std::ofstream(folder / "wiki" / "page.md") << "A page.\n";
  std::ofstream(folder / "notes.txt") << "one\n\ntwo\n";
  std::ofstream(folder / "more.txt") << "more\n";
  std::ofstream(folder / "rows.jsonl") << "{\"model\":\"gpt2-124m\"}\n";
  std::ofstream(folder / "questions.jsonl") << R"({"prompt": "2+2=", "response": "4"})"
                                            << "\n";
  std::ofstream(folder / "chats.jsonl") << R"({"messages": [{"role": "user", "content": "Hi"},)"
                                        << R"( {"role": "assistant", "content": "Hello"}]})"
                                        << "\n";
  // A zstd frame with one raw block: the total size, then 8 · the size of the block + 1.
  const std::string page = "{\"text\": \"a page\"}\n";
  const auto size = static_cast<char>(page.size());
  std::ofstream(folder / "web.jsonl.zst", std::ios::binary)
      << std::string("\x28\xb5\x2f\xfd\x20") << size << static_cast<char>(8 * size + 1)
      << std::string(2, '\0') << page;
  const std::vector<std::uint16_t> tokens = {1, 2, 3, 50256};
  std::vector<std::int32_t> header(256);  // of llm.c: magic, version, count
  header[0] = 20240520;
  header[1] = 1;
  header[2] = static_cast<std::int32_t>(tokens.size());
  for (const char* name : {"fineweb_train_000001.bin", "train.bin"}) {
    std::ofstream out(folder / name, std::ios::binary);
    if (name[0] == 'f') {
      out.write(reinterpret_cast<const char*>(header.data()), 4 * 256);
    }
    out.write(reinterpret_cast<const char*>(tokens.data()), 2 * std::ssize(tokens));
  }
}

TEST_F(Examples, DataRuns) {
  write_texts(folder);
  const std::string zstd = "web.jsonl.zst", jq = " | jq";
  const bool have_jq = shell("command -v jq").status == 0;
  const bool have_zstd = shell("tessera data prepare " + zstd + " --out tried").status == 0;
  std::vector<std::string> left_out;
  const auto run = [&](const std::string& example) {
    if ((!have_jq && contains(example, jq)) || (!have_zstd && contains(example, zstd))) {
      left_out.push_back(example);
      return;
    }
    const Outcome got = shell(example);
    EXPECT_EQ(got.status, 0) << example << "\n" << got.err;
    EXPECT_FALSE(got.out.empty()) << example;
  };
  for (const std::string& example : of("data")) run(example);
  // Each starts without tokens, or with some if it appends.
  for (const std::string& example : of("data prepare")) {
    std::filesystem::remove_all(folder / "tokens");
    if (contains(example, "--append")) run("tessera data prepare book.txt --out tokens");
    run(example);
  }
  for (const std::string& example : of("data inspect")) run(example);
  for (const std::string& example : of("data verify", 2)) run(example);
  if (!left_out.empty()) {
    GTEST_SKIP() << "all but these ran, for want of zstd in this build or of jq: "
                 << json(left_out).dump();
  }
}

// Each with one step, which tests everything but convergence.
TEST_F(Examples, TrainRuns) {
  if (!TESSERA_WITH_TORCH) GTEST_SKIP() << "built without torch";
  for (const std::string& example : of("train")) {
    const std::string once =
        std::regex_replace(example, std::regex("tessera train"), "tessera train --samples 0");
    // The last of a repeated flag is used; a printed config has it too.
    const std::string short_run =
        std::regex_replace(once, std::regex("( > |; |$)"), " --steps 1$1");
    const Outcome text = shell(short_run);
    EXPECT_EQ(text.status, 0) << short_run << "\n" << text.err;
    EXPECT_TRUE(contains(text.out, "loss")) << short_run << "\n" << text.out;
  }
}

// Both use a run of two steps.
TEST_F(Examples, GenerateAndEvaluateRun) {
  if (!TESSERA_WITH_TORCH) GTEST_SKIP() << "built without torch";
  std::ofstream(folder / "prompts.txt") << "3141592|\n2718281|\n";
  std::ofstream(folder / "question.txt") << "1234567|";
  const std::string train = "tessera train --ranks 1 --steps 2 --samples 0 --micro-batch 2 --save ";
  for (const char* run : {"runs/a", "runs/b --data book.txt --model llama-tiny",
                          "runs/moe --model llama-tiny --experts 4"}) {
    const Outcome trained = shell(train + run);
    ASSERT_EQ(trained.status, 0) << trained.err;
  }
  for (const char* command : {"generate", "evaluate"}) {
    for (const std::string& example : of(command)) {
      const Outcome got = shell(example);
      EXPECT_EQ(got.status, 0) << example << "\n" << got.err;
      EXPECT_FALSE(got.out.empty() && !contains(example, " > ")) << example;
    }
  }
  // Digits to sort are not text, and vice versa.
  for (const auto& [run, data, part] :
       {std::tuple{"runs/a", "book.txt", "was trained to sort digits; must be synthetic"},
        std::tuple{"runs/b", "synthetic", "was trained on \"book.txt\"; must be tokens or text"}}) {
    const Outcome got = shell(str("tessera evaluate --from ", run, " --data ", data));
    EXPECT_EQ(got.status, 2) << got.out;
    EXPECT_TRUE(contains(got.err, part)) << got.err;
  }
}

}  // namespace
}  // namespace tessera::cli
