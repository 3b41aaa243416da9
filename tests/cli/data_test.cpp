// tessera data as a user runs it.

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/data/token_folders.h"
#include "tests/processes.h"
#include "tests/text.h"

namespace tessera::cli {
namespace {

using nlohmann::json;

class DataCommand : public ::testing::Test {
 protected:
  Outcome command(std::vector<std::string> words) const {
    words.insert(words.begin(), {TESSERA_PROGRAM, "data"});
    return outcome_of(words);
  }
  std::string file(const std::string& name, const std::string& text) const {
    return data::write_file(dir_ / name, text);
  }

  QuickFolder dir_;
};

TEST_F(DataCommand, PreparesInspectsAndVerifies) {
  const std::string text =
      file("notes.txt", "First note.\n\nSecond note,\nof two lines.\n\n\xff\n");
  const std::string out = dir_ / "tokens";
  const Outcome prepared =
      command({"prepare", text, "--split-documents", "blank-line", "--out", out, "--json"});
  ASSERT_EQ(prepared.status, 0) << prepared.err;
  const json summary = json::parse(prepared.out);
  EXPECT_EQ(summary.at("documents"), 3);
  EXPECT_EQ(summary.at("tokens"), 11 + 1 + 26 + 1 + 3 + 1);
  EXPECT_EQ(summary.at("invalid_utf8_replaced"), 1);
  EXPECT_EQ(summary.at("tokenizer").at("name"), "bytes");

  const Outcome inspected = command({"inspect", out});
  EXPECT_EQ(inspected.status, 0) << inspected.err;
  for (const char* wanted : {"documents        3\n", "█", "First note.",
                             "Second note,⏎of two lines.", "split documents  blank-line\n"}) {
    EXPECT_TRUE(contains(inspected.out, wanted)) << wanted << "\n" << inspected.out;
  }
  const json about = json::parse(command({"inspect", out, "--json", "--sample", "1"}).out);
  EXPECT_EQ(about.at("lengths").at("shortest"), 4);
  EXPECT_EQ(about.at("lengths").at("longest"), 27);
  EXPECT_EQ(about.at("samples").size(), 1u);
  EXPECT_TRUE(about.at("problem").is_null());

  const Outcome verified = command({"verify", out});
  EXPECT_EQ(verified.status, 0) << verified.err;
  EXPECT_TRUE(contains(verified.out, "Good: 43 tokens in 3 documents, all below 257"));
  const Outcome small = command({"verify", out, "--vocab", "100"});
  EXPECT_EQ(small.status, 1);
  EXPECT_TRUE(contains(small.err,
                       "of document 0 (1 of all) is 105, must be less than the vocabulary of 100"))
      << small.err;

  const Outcome again = command({"prepare", text, "--split-documents", "blank-line", "--out", out});
  EXPECT_EQ(again.status, 0);
  EXPECT_TRUE(contains(again.out, "already finished"));
  std::string bytes = read_all(out + "/tokens-00000.bin");
  bytes[3] = 'x';
  data::write_file(out + "/tokens-00000.bin", bytes);
  const Outcome bad = command({"verify", out, "--json"});
  EXPECT_EQ(bad.status, 1);
  EXPECT_EQ(json::parse(bad.out).at("good"), false);
  EXPECT_TRUE(contains(json::parse(bad.out).at("problem").get<std::string>(), "checksum"));
}

// A path may have bytes that are not valid in JSON.
TEST_F(DataCommand, PrintsJsonForAFolderNameWithInvalidUtf8) {
  const std::string text = file("a.txt", "text"), out = dir_ / "tokens-\xff";
  const Outcome prepared = command({"prepare", text, "--out", out, "--json"});
  ASSERT_EQ(prepared.status, 0) << prepared.err;
  EXPECT_EQ(json::parse(prepared.out).at("tokens"), 5);
  EXPECT_EQ(command({"inspect", out, "--json"}).status, 0);
}

TEST_F(DataCommand, PreparesPromptsWithMaskedLoss) {
  const std::string out = dir_ / "tokens";
  const std::string lines = file("q.jsonl", "{\"prompt\": \"Why?\", \"response\": \"Because.\"}\n");
  const Outcome prepared = command({"prepare", lines, "--format", "prompt", "--out", out});
  ASSERT_EQ(prepared.status, 0) << prepared.err;
  EXPECT_TRUE(contains(prepared.out, "9 tokens to train on")) << prepared.out;
  EXPECT_TRUE(contains(command({"inspect", out}).out, "learned: Because."));
}

TEST_F(DataCommand, MistakesAreExplained) {
  const std::string text = file("a.txt", "text"), empty = file("e.txt", "");
  const std::string out = dir_ / "out";
  const std::vector<std::tuple<std::vector<std::string>, int, std::string>> cases = {
      {{}, 2, "must be one of prepare, inspect, verify"},
      {{"prepare", text}, 2, "--out is required"},
      {{"prepare", text}, 2, "Try: tessera data prepare --help"},
      {{"prepare", "--out", out}, 2, "INPUT is required"},
      {{"prepare", dir_ / "no.txt", "--out", out}, 2, "No such file"},
      {{"prepare", empty, "--out", out}, 1, "e.txt\" is empty"},
      {{"prepare", text, "--out", out, "--tokenizer", dir_ / "no.json"}, 2, "no.json"},
      {{"prepare", text, "--out", out, "--format", "chat"}, 2, "--template plain"},
      {{"prepare", text, "--out", out, "--template", "jinja", "--format", "chat"}, 2, "Jinja"},
      {{"prepare", text, "--out", out, "--format", "prompt"},
       2,
       "does not end in .jsonl or .ndjson"},
      {{"prepare", text, "--out", out, "--format", "chatt"}, 2, "did you mean chat?"},
      {{"prepare", text, "--out", out, "--shard-size", "1"}, 2, "at least 65,536"},
      {{"prepare", text, "--out", out, "--shard-size", "1"}, 2, "tessera data prepare: --shard"},
      {{"prepare", text, "--out", out, "--tokenizer", text},
       1,
       "is not valid JSON: parse error at line 1"},
      {{"prepare", text, "--out", out, "--thread", "1"}, 2, "did you mean --threads?"},
      {{"prepare", text, "--out", text}, 2, "must be a folder"},
      {{"inspect", dir_ / "nowhere"}, 2, "must be a folder of tokens, or a .bin"},
      {{"inspect", dir_.path}, 2, "has no tokens.json"},
      {{"verify", text}, 2, "is a regular file; must be a folder of tokens, or a .bin"},
      {{"verify", file("a.bin", "text"), "--vocab", "10"},
       1,
       "is 25972, must be less than the vocabulary of 10"},
      {{"inspect"}, 2, "PATH is required"},
  };
  for (const auto& [words, status, wanted] : cases) {
    const Outcome got = command(words);
    EXPECT_EQ(got.status, status) << wanted << "\n" << got.err;
    EXPECT_TRUE(contains(got.err, wanted)) << wanted << "\n" << got.err;
  }
  EXPECT_FALSE(std::filesystem::exists(out + "/tokens.json"));
}

TEST_F(DataCommand, HelpExamplesRun) {
  file("book.txt", "A book.\n");
  file("rows.jsonl", "{\"model\": \"a row\"}\n");
  Capture out, err;
  const std::string program = TESSERA_PROGRAM;
  const int status =
      execute({"/bin/sh", "-c",
               "set -e; cd '" + dir_.path + "'; tessera() { '" + program + "' \"$@\"; }; " +
                   "tessera data --help | sed -n 's/^  \\(tessera data [^`]*\\)/\\1/p' | "
                   "sed 's/   .*//' > examples; test $(wc -l < examples) -ge 4; . ./examples"},
              out, err);
  EXPECT_EQ(status, 0) << out.text() << err.text();
}

}  // namespace
}  // namespace tessera::cli
