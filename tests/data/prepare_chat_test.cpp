// prepare of prompts and conversations, where only the answers have a loss.

#include <string>
#include <utility>
#include <vector>

#include "tests/data/preparing.h"
#include "tests/data/tokenizer_files.h"

namespace tessera::data {
namespace {

TEST_F(Prepare, MasksPrompts) {
  PrepareOptions all = options({file("a.jsonl",
                                     "{\"prompt\": \"2+2=\", \"response\": \"4\"}\n"
                                     "{\"completion\": \" yes\", \"prompt\": \"no?\"}\n")});
  all.format = DocumentFormat::prompt;
  const PrepareSummary summary = prepare(all);
  EXPECT_TRUE(summary.manifest.masked);
  EXPECT_EQ(summary.counts.learned, 1u + 1 + 4 + 1);
  EXPECT_EQ(read_documents(all.out), (std::vector<std::string>{"2+2=4", "no? yes"}));
  EXPECT_EQ(read_documents(all.out, true), (std::vector<std::string>{"4", " yes"}));
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"{\"prompt\": \"a\"}", "no \"response\" and no \"completion\""},
      {"{\"response\": \"a\"}", "it has no \"prompt\""},
      {"{\"prompt\": \"a\", \"response\": \"b\", \"completion\": \"c\"}",
       "must have only one of them"},
      {"{\"prompt\": [\"a\"], \"response\": \"b\"}", "\"prompt\" is not a string"},
  };
  expect_refusals(all, bad);
  all.inputs = {file("a.txt", "text")};
  all.out = dir_ / "text";
  EXPECT_TRUE(contains(refused(all), "does not end in .jsonl or .ndjson"));
}

TEST_F(Prepare, AppliesChatTemplates) {
  const std::string lines =
      "{\"messages\": [{\"role\": \"system\", \"content\": \"Be kind.\"}, "
      "{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"assistant\", \"content\": \" Hello "
      "\"}, "
      "{\"role\": \"user\", \"content\": \"<|im_end|>\"}, "
      "{\"role\": \"assistant\", \"content\": \"Bye\"}], \"id\": 7}\n";
  PrepareOptions all = options({file("a.jsonl", lines)});
  all.format = DocumentFormat::chat;
  EXPECT_TRUE(contains(refused(all), "--template chatml: the tokenizer \"bytes\" has no token"));
  all.chat_template = "plain";
  prepare(all);
  EXPECT_EQ(read_documents(all.out)[0],
            "System: Be kind.\n\nUser: Hi\n\nAssistant:  Hello \n\nUser: <|im_end|>\n\nAssistant: "
            "Bye");
  EXPECT_EQ(read_documents(all.out, true)[0], "  Hello  Bye");
  all.chat_template = "jinja";
  all.out = dir_ / "no";
  EXPECT_TRUE(contains(refused(all), "Jinja templates are not supported"));

  nlohmann::json json = byte_level_file("");
  const std::size_t first = json["model"]["vocab"].size();
  std::size_t id = first;
  for (const char* text : {"<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>",
                           "<|end_header_id|>", "<|eot_id|>"}) {
    std::erase_if(json["added_tokens"].get_ref<nlohmann::json::array_t&>(),
                  [&](const nlohmann::json& one) { return one["content"] == text; });
  }
  for (const nlohmann::json& one : json["added_tokens"]) {
    id = std::max(id, one["id"].get<std::size_t>() + 1);
  }
  for (const char* text : {"<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>",
                           "<|end_header_id|>", "<|eot_id|>"}) {
    json["added_tokens"].push_back({{"id", id++},
                                    {"content", text},
                                    {"single_word", false},
                                    {"lstrip", false},
                                    {"rstrip", false},
                                    {"normalized", false},
                                    {"special", true}});
  }
  all.tokenizer = tokenizer("chat", json);
  all.end_token = "<|im_end|>";
  all.chat_template = "chatml";
  all.out = dir_ / "chatml";
  prepare(all);
  EXPECT_EQ(read_documents(all.out)[0],
            "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
            "<|im_start|>assistant\n Hello <|im_end|>\n<|im_start|>user\n<|im_end|><|im_end|>\n"
            "<|im_start|>assistant\nBye<|im_end|>");
  EXPECT_EQ(read_documents(all.out, true)[0], " Hello <|im_end|>Bye<|im_end|>");
  // Content is plain text: five messages, five end tokens.
  const auto data = open_tokens(all.out);
  const TokenId im_end = *load_tokenizer(all.tokenizer)->find("<|im_end|>");
  std::vector<std::int64_t> ids(data->tokens());
  data->read(0, ids);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), std::int64_t{im_end}), 5);
  all.special_text = true;
  all.out = dir_ / "special";
  prepare(all);
  const auto special = open_tokens(all.out);
  ids.resize(special->tokens());
  special->read(0, ids);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), std::int64_t{im_end}), 6);
  all.special_text = false;
  all.chat_template = "llama3";
  all.out = dir_ / "llama3";
  prepare(all);
  EXPECT_EQ(read_documents(all.out, true)[0], "Hello<|eot_id|>Bye<|eot_id|>");
  EXPECT_TRUE(read_documents(all.out)[0].starts_with(
      "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe kind.<|eot_id|>"));

  // The tokenizer's own template is reported, with its differences.
  EXPECT_TRUE(prepare(all).notes.empty());
  file("chat/tokenizer_config.json", R"({"chat_template": "{{ messages }}"})");
  all.chat_template = "chatml";
  all.out = dir_ / "noted";
  const std::vector<std::string> notes = prepare(all).notes;
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_TRUE(contains(notes[0], "tokenizer_config.json is not run")) << notes[0];
  EXPECT_TRUE(contains(notes[0], "Qwen2")) << notes[0];

  const std::vector<std::pair<std::string, std::string>> bad = {
      {"{\"messages\": []}", "nothing to train on"},
      {"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}", "nothing to train on"},
      {"{\"messages\": [{\"role\": \"tool\", \"content\": \"a\"}, {\"role\": \"assistant\", "
       "\"content\": \"a\"}]}",
       "the role \"tool\""},
      {"{\"messages\": [{\"role\": \"assistant\", \"content\": [1]}]}",
       "\"content\" is not a string"},
      {"{\"messages\": [{\"role\": \"assistant\"}]}", "a message has no \"content\""},
      {"{\"messages\": [{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": []}]}",
       "\"tool_calls\", which the built-in templates do not support"},
      {"{\"tools\": [], \"messages\": []}", "\"tools\""},
      {"{\"conversations\": []}", "it has no \"messages\", but \"conversations\""},
      {"{\"messages\": {}}", "is not a list"},
  };
  expect_refusals(all, bad);
}

// Results of transformers with the templates of Mistral-7B-Instruct-v0.3 (tokens for [INST]) and
// v0.2.
TEST_F(Prepare, MatchesTheMistralTemplates) {
  PrepareOptions all = options({file(
      "a.jsonl",
      R"({"messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"},)"
      R"( {"role": "assistant", "content": "Hello "}, {"role": "user", "content": "the fox"},)"
      R"( {"role": "assistant", "content": "Bye"}]})")});
  all.format = DocumentFormat::chat;
  all.chat_template = "mistral";
  all.end_token = "</s>";
  nlohmann::json json = sentence_piece_file();
  all.tokenizer = tokenizer("v2", json);
  prepare(all);
  EXPECT_EQ(read_documents(all.out)[0],
            "<s> [INST] Be kind.\n\nHi [/INST] Hello </s> [INST] the fox [/INST] Bye</s>");
  // The leading space is stripped.
  EXPECT_EQ(read_documents(all.out, true)[0], "Hello </s> Bye</s>");
  std::size_t id = json["model"]["vocab"].size();
  for (const char* mark : {"[INST]", "[/INST]"}) {
    nlohmann::json one = json["added_tokens"][0];
    one["id"] = id++;
    one["content"] = mark;
    json["added_tokens"].push_back(one);
  }
  all.tokenizer = tokenizer("v3", json);
  all.out = dir_ / "out3";
  prepare(all);
  const auto data = open_tokens(all.out);
  std::vector<std::int64_t> ids(data->tokens());
  data->read(0, ids);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), static_cast<std::int64_t>(id - 2)), 2);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), static_cast<std::int64_t>(id - 1)), 2);
  // Tokens of the tokenizers package for the whole text, with tokens for the marks.
  const auto loaded = load_tokenizer(all.tokenizer);
  const std::vector<TokenId> wanted =
      ids_of(*loaded, "<s>[INST] Be kind.\n\nHi[/INST] Hello</s>[INST] the fox[/INST] Bye</s>");
  EXPECT_EQ(std::vector<TokenId>(ids.begin(), ids.end()), wanted);
  all.inputs = {file("b.jsonl", R"({"messages": [{"role": "assistant", "content": "a"}]})")};
  all.out = dir_ / "bad";
  EXPECT_TRUE(contains(refused(all), "must be user")) << refused(all);
}

}  // namespace
}  // namespace tessera::data
