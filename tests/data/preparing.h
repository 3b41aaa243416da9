#pragma once

// Helpers for the tests of prepare.

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tessera/data/prepare.h"
#include "tessera/data/token_data.h"
#include "tests/data/token_folders.h"
#include "tests/text.h"

namespace tessera::data {

// Returns the documents of a folder as text, with ⟨end⟩ for the end token.
inline std::vector<std::string> read_documents(const std::string& folder,
                                               bool learned_alone = false) {
  const auto data = open_tokens(folder);
  verify_tokens(*data);
  const auto tokenizer = tokenizer_of(*data);
  std::vector<std::string> all;
  for (std::uint64_t d = 0; d < data->documents(); ++d) {
    const Document document = data->document(d);
    std::vector<std::int64_t> ids(document.end - document.begin);
    std::vector<std::uint8_t> mask(ids.size());
    data->read(document.begin, ids);
    data->read_mask(document.begin, mask);
    std::vector<TokenId> some;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (!learned_alone || mask[i] != 0) some.push_back(static_cast<TokenId>(ids[i]));
    }
    EXPECT_FALSE(some.empty());
    all.push_back(tokenizer->decode(some));
  }
  return all;
}

class Prepare : public ::testing::Test {
 protected:
  PrepareOptions options(const std::vector<std::string>& inputs, const std::string& out = "out") {
    PrepareOptions all;
    all.inputs = inputs;
    all.out = dir_ / out;
    all.threads = 2;
    return all;
  }
  std::string file(const std::string& name, const std::string& text) {
    return write_file(dir_ / name, text);
  }
  std::string refused(const PrepareOptions& all) {
    const std::string error = error_of([&] { prepare(all); });
    EXPECT_FALSE(is_token_data(all.out)) << error;
    return error;
  }
  // Expects, for each line of a file, an error with these words.
  void expect_refusals(PrepareOptions all,
                       const std::vector<std::pair<std::string, std::string>>& lines) {
    all.out = dir_ / "bad";
    all.restart = true;
    for (const auto& [line, words] : lines) {
      all.inputs = {file("bad.jsonl", line)};
      const std::string error = refused(all);
      EXPECT_TRUE(contains(error, words)) << error;
      EXPECT_TRUE(contains(error, "bad.jsonl\" line 1")) << error;
    }
  }
  // Writes a folder with such a tokenizer.
  std::string tokenizer(const std::string& name, const nlohmann::json& json) {
    std::filesystem::create_directories(dir_ / name);
    file(name + "/tokenizer.json", json.dump());
    return dir_ / name;
  }

  QuickFolder dir_;
};

}  // namespace tessera::data
