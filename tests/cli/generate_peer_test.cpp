// Compares `tessera generate` with transformers: the same texts from the same folders.

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/interop.h"
#include "tests/processes.h"
#include "tests/temporary_folder.h"

namespace tessera::cli {
namespace {

using Json = nlohmann::json;
using Words = std::vector<std::string>;

// Models of all families of transformers, with prompts of different lengths in one batch.
TEST(GeneratePeer, GeneratesTheSameTextAsTransformers) {
  TESSERA_NEEDS_INTEROP();
  const TemporaryFolder folder;
  Capture made, problems;
  const int status = execute({kInteropPython, TESSERA_GENERATE_PEER, folder.path}, made, problems);
  ASSERT_EQ(status, 0) << problems.text();
  const Json answers = Json::parse(made.text());
  for (const auto& [family, texts] : answers.items()) {
    Words words = {"generate",      "--from", folder / family, "--tokenizer", "ids",
                   "--temperature", "0",      "--tokens",      "24",          "--ignore-end",
                   "--json"};
    for (const Json& text : texts) {
      std::string prompt;
      for (const Json& id : text[0]) prompt += id.dump() + " ";
      words.insert(words.end(), {"--prompt", prompt});
    }
    words.insert(words.begin(), TESSERA_PROGRAM);
    Capture out, err;
    ASSERT_EQ(execute(words, out, err), 0) << err.text();
    std::vector<Json> lines;
    for (const std::string& line : out.lines()) lines.push_back(Json::parse(line));
    ASSERT_EQ(lines.size(), texts.size() + 1);
    for (std::size_t i = 0; i < texts.size(); ++i) {
      EXPECT_EQ(lines[i].at("tokens"), texts[i][1]) << family << " " << i;
    }
  }
}

}  // namespace
}  // namespace tessera::cli
