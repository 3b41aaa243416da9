// prepare: against a slow reference, with any number of threads, and its errors.

#include "tessera/data/prepare.h"

#include <gtest/gtest.h>

#include <sstream>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/data/token_data.h"
#include "tests/data/preparing.h"
#include "tests/data/tokenizer_files.h"

namespace tessera::data {
namespace {

constexpr TokenId kEnd = 256;  // of the byte tokenizer

// Slow reference for splitting a text into documents.
std::vector<std::string> documents_of(const std::string& text, SplitDocuments split) {
  if (split == SplitDocuments::file) return {text};
  std::vector<std::string> all;
  std::istringstream lines(text);
  std::string document;
  const auto flush = [&] {
    while (document.ends_with('\n') || document.ends_with('\r')) document.pop_back();
    if (!document.empty()) all.push_back(document);
    document.clear();
  };
  for (std::string line; std::getline(lines, line);) {
    const bool blank = line.find_first_not_of(" \t\r\v\f") == std::string::npos;
    if (blank) {
      flush();
      continue;
    }
    document += line + "\n";
    if (split == SplitDocuments::line) flush();
  }
  flush();
  return all;
}

std::string random_lines(std::uint64_t seed, int count) {
  std::mt19937_64 random(seed);
  std::string text;
  for (int i = 0; i < count; ++i) {
    const std::uint64_t kind = random() % 8;
    if (kind < 2) text += kind == 0 ? "\n" : " \t\r\n";
    if (kind == 2) text += "\xf0\x9f\x98\x80 \xc3\xa9\xe4\xb8\xad";
    for (std::uint64_t k = random() % 9; kind > 1 && k > 0; --k) {
      text += std::string(1 + random() % 7, static_cast<char>('a' + random() % 26));
      text += " ";
    }
    text += random() % 5 == 0 ? ".\r\n" : ".\n";
  }
  text += random() % 2 == 0 ? "the end" : "";
  return text;
}

TEST_F(Prepare, SplitsDocumentsLikeTheReference) {
  for (const SplitDocuments split :
       {SplitDocuments::file, SplitDocuments::blank_line, SplitDocuments::line}) {
    for (const std::uint64_t seed : {1, 2, 3}) {
      const std::string first = random_lines(seed, 60), second = random_lines(seed + 10, 5);
      const std::vector<std::string> inputs = {file("a.txt", first), file("b.txt", second)};
      std::vector<std::string> wanted = documents_of(first, split);
      for (const std::string& text : documents_of(second, split)) wanted.push_back(text);
      std::map<std::string, std::string> same;
      for (const std::size_t part : {1 << 20, 4096, 600}) {
        for (const int threads : {1, 2, 5}) {
          SCOPED_TRACE(str("seed ", seed, " part ", part, " threads ", threads));
          PrepareOptions all = options(inputs, str("out", part, "-", threads));
          all.split = split;
          all.part_bytes = part;
          all.threads = threads;
          all.shard_bytes = 1500;
          all.save_seconds = threads == 2 ? 0 : 5;
          all.direct_input = 0;  // with 2 threads around the page cache
          all.direct_bytes = threads == 2 ? 1 : 0;
          std::filesystem::remove_all(all.out);
          const PrepareSummary summary = prepare(all);
          EXPECT_EQ(summary.counts.documents, wanted.size());
          ASSERT_TRUE(read_documents(all.out) == wanted);
          if (threads == 1) {
            same = files_of(all.out);
          } else {
            ASSERT_TRUE(files_of(all.out) == same);
          }
        }
      }
    }
  }
}

// Documents longer than a part keep every byte in order.
TEST_F(Prepare, CutsLongDocumentsWithoutLoss) {
  const std::string text = random_lines(4, 200);
  for (const SplitDocuments split :
       {SplitDocuments::file, SplitDocuments::blank_line, SplitDocuments::line}) {
    for (const std::size_t part : {16, 50, 200}) {
      PrepareOptions all =
          options({file("a.txt", text)}, str("out", static_cast<int>(split), part));
      all.split = split;
      all.part_bytes = part;
      const PrepareSummary summary = prepare(all);
      if (part == 16) {
        EXPECT_GT(summary.cuts, 50u);
      }
      std::string wanted, got;
      for (const std::string& one : documents_of(text, split)) wanted += one + "|";
      for (const std::string& one : read_documents(all.out)) got += one + "|";
      // If a cut fell after the last line of a document, its newline stays.
      const auto squeezed = [](std::string all_of_it) {
        std::erase_if(all_of_it,
                      [](char c) { return c == '\n' || c == '\r' || c == ' ' || c == '\t'; });
        return all_of_it;
      };
      if (split == SplitDocuments::file) {
        EXPECT_TRUE(got == wanted) << part;
      } else {
        EXPECT_TRUE(squeezed(got) == squeezed(wanted)) << part;
      }
    }
  }
}

// A cut at the end of a line, or at a space if spaces are marked, changes no token.
TEST_F(Prepare, CutsDoNotChangeTokens) {
  for (
      const char* pattern :
      {"", "sentence piece",
       R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}) {
    const nlohmann::json json =
        pattern[0] == 's' ? sentence_piece_file() : byte_level_file(pattern);
    const std::string where = tokenizer("tok", json);
    std::string text;
    std::mt19937_64 random(9);
    for (int i = 0; i < 400; ++i) {
      text += random() % 9 == 0 ? "  indented" : "the world's 1234, hello";
      text += random() % 7 == 0 ? "\n\n" : random() % 5 == 0 ? " \n" : random() % 3 ? "\n" : "!\n";
    }
    PrepareOptions all = options({file("a.txt", text)});
    all.tokenizer = where;
    all.part_bytes = 700;
    all.restart = true;
    all.end_token = load_tokenizer(where)->end_of_text() ? "" : "a";
    const PrepareSummary summary = prepare(all);
    EXPECT_GT(summary.cuts, 5u);
    const auto loaded = load_tokenizer(where);
    std::vector<TokenId> wanted = ids_of(*loaded, text, {.special = false, .around = false});
    wanted.push_back(*summary.manifest.end_of_text);
    const auto data = open_tokens(all.out);
    std::vector<std::int64_t> ids(data->tokens());
    data->read(0, ids);
    EXPECT_TRUE(std::vector<TokenId>(ids.begin(), ids.end()) == wanted);
    EXPECT_TRUE(std::filesystem::exists(all.out + "/tokenizer.json"));
  }
}

// Training data starts like prompts: with the tokens that the post-processor puts before a text,
// whether or not another file names them.
TEST_F(Prepare, PrependsTheTokensOfThePostProcessor) {
  nlohmann::json json = sentence_piece_file();
  json["post_processor"] = nlohmann::json::parse(R"({"type": "TemplateProcessing", "single": [
      {"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
      "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}})");
  PrepareOptions all = options({file("a.txt", "the fox")});
  all.tokenizer = tokenizer("tok", json);
  all.end_token = "</s>";
  const auto ids_in = [&](const std::string& out) {
    all.out = dir_ / out;
    prepare(all);
    const auto data = open_tokens(all.out);
    std::vector<std::int64_t> ids(data->tokens());
    data->read(0, ids);
    return std::vector<TokenId>(ids.begin(), ids.end());
  };
  const auto loaded = load_tokenizer(all.tokenizer);
  EXPECT_EQ(loaded->begin_of_text(), std::nullopt);
  std::vector<TokenId> wanted = ids_of(*loaded, "the fox", {.around = true});
  EXPECT_EQ(wanted.front(), 1u);
  wanted.push_back(2);
  EXPECT_EQ(ids_in("as it is"), wanted);
  all.begin = PrepareOptions::Begin::always;
  EXPECT_EQ(ids_in("always"), wanted);
  all.begin = PrepareOptions::Begin::never;
  EXPECT_EQ(ids_in("never"), std::vector<TokenId>(wanted.begin() + 1, wanted.end()));
  // A token that is only named is prepended on request.
  json.erase("post_processor");
  all.tokenizer = tokenizer("tok", json);
  file("tok/tokenizer_config.json", R"({"bos_token": "<s>", "eos_token": "</s>"})");
  all.begin = PrepareOptions::Begin::as_tokenizer;
  EXPECT_EQ(ids_in("named"), std::vector<TokenId>(wanted.begin() + 1, wanted.end()));
  all.begin = PrepareOptions::Begin::always;
  EXPECT_EQ(ids_in("named always"), wanted);
}

TEST_F(Prepare, ReadsJsonLines) {
  const std::string lines =
      "{\"text\": \"one\"}\n\n  {\"id\": [1, {\"a\": null}], \"text\": \"zwei "
      "\\u00e4\\n\\ud83d\\ude00\"}\r\n"
      "{\"text\": \"\"}\n{\"text\": \"last\", \"x\": -1.5e3}";
  PrepareOptions all = options({file("a.jsonl", lines)});
  for (const std::size_t part : {1 << 20, 20}) {
    all.part_bytes = part;
    all.out = dir_ / str("out", part);
    const PrepareSummary summary = prepare(all);
    EXPECT_EQ(summary.counts.empty, 1u);
    EXPECT_EQ(read_documents(all.out),
              (std::vector<std::string>{"one", "zwei \xc3\xa4\n\xf0\x9f\x98\x80", "last"}));
  }
  all.text_field = "content";
  all.out = dir_ / "other";
  const std::string error = refused(all);
  EXPECT_TRUE(contains(error, "a.jsonl\" line 1: it has no \"content\", but \"text\"")) << error;
  EXPECT_TRUE(contains(error, "--text-field")) << error;
}

TEST_F(Prepare, ReportsTheEarliestBadLine) {
  std::string lines;
  for (int i = 1; i <= 400; ++i) {
    lines += i == 217 || i == 350 ? "{\"text\": 5}\n" : "{\"text\": \"all good here\"}\n";
  }
  PrepareOptions all = options({file("a.jsonl", lines)});
  all.part_bytes = 100;
  for (const int threads : {1, 2, 6}) {
    all.threads = threads;
    all.restart = true;
    const std::string error = refused(all);
    EXPECT_TRUE(contains(error, "line 217 byte 10: \"text\" is not a string")) << error;
  }
  // The folder is marked as unfinished.
  EXPECT_TRUE(contains(error_of([&] { open_tokens(all.out); }), "unfinished"));
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"{\"text\": \"a\"} x", "there is text after the value"},
      {"[1]", "must be an object in braces"},
      {"{\"text\": \"a\", \"text\": \"b\"}", "twice"},
      {"{\"text\": \"a\"", "it ends where '}' should be"},
      {"{\"text\": \"\\x\"}", "invalid escape"},
      {"{\"a\": 01, \"text\": \"\"}", "must be '}'"},
      {"{\"text\": \"a\tb\"}", "control character"},
      {"{\"a\": " + std::string(200, '[') + std::string(200, ']') + ", \"text\": \"a\"}", "deeply"},
  };
  for (const auto& [line, wanted] : bad) {
    all.inputs = {file("bad.jsonl", "{\"text\": \"good\"}\n" + line + "\n")};
    const std::string error = refused(all);
    EXPECT_TRUE(contains(error, wanted)) << error;
    EXPECT_TRUE(contains(error, "bad.jsonl\" line 2 byte ")) << error;
  }
  all.longest_line = 1024;
  all.inputs = {file("long.jsonl", "{\"text\": \"good\"}\n{\"text\": \"" + std::string(5000, 'a'))};
  EXPECT_TRUE(contains(refused(all), "long.jsonl\" line 2 has more than 1 KiB"));
}

TEST_F(Prepare, ReplacesOrRejectsInvalidUtf8) {
  PrepareOptions all = options({file("a.txt", "good\n\xff\xfe bad \xc3\n")});
  PrepareSummary summary = prepare(all);
  EXPECT_EQ(summary.counts.replaced, 3u);
  EXPECT_EQ(read_documents(all.out)[0], "good\n\xef\xbf\xbd\xef\xbf\xbd bad \xef\xbf\xbd\n");
  all.bad_utf8 = BadUtf8::refuse;
  all.out = dir_ / "refused";
  EXPECT_TRUE(contains(refused(all), "a.txt\", counted from byte 0: the text is not UTF-8"));
  all.inputs = {file("a.jsonl", "{\"text\": \"a\"}\n{\"text\": \"\xff\"}\n")};
  all.restart = true;
  EXPECT_TRUE(contains(refused(all), "a.jsonl\" line 2: the text is not UTF-8"));
  all.inputs = {file("b.jsonl", "{\"text\": \"\\ud800\"}\n")};
  EXPECT_TRUE(contains(refused(all), "b.jsonl\" line 1 byte 11: an unpaired surrogate"));
  all.bad_utf8 = BadUtf8::replace;
  all.out = dir_ / "replaced";
  EXPECT_EQ(prepare(all).counts.replaced, 1u);
  EXPECT_EQ(read_documents(all.out)[0], "\xef\xbf\xbd");
  // A byte order mark is not part of the text.
  all.inputs = {file("bom.txt", "\xef\xbb\xbftext")};
  all.out = dir_ / "bom";
  prepare(all);
  EXPECT_EQ(read_documents(all.out)[0], "text");
}

TEST_F(Prepare, RejectsInvalidInputs) {
  const std::string good = file("good.txt", "text");
  const auto says = [&](const std::vector<std::string>& inputs, const std::string& wanted) {
    PrepareOptions all = options(inputs, "bad");
    all.restart = true;
    const std::string error = refused(all);
    EXPECT_TRUE(contains(error, wanted)) << error;
  };
  says({}, "no input");
  says({dir_ / "nowhere.txt"}, "No such file");
  says({good, file("empty.txt", "")}, "empty.txt\" is empty");
  says({file("bom.txt", "\xef\xbb\xbf")}, "bom.txt\" is empty");
  says({file("blank.jsonl", "\n\n  \n")}, "no documents in the input");
  EXPECT_FALSE(std::filesystem::exists(dir_ / "bad"));
  says({file("a.jsonl", "{\"text\": \"\"}\n")}, "no documents in the input");
  says({file("a.parquet", "PAR1")}, "Convert it to one of these first");
  says({file("b.txt", std::string("a\0b", 3))}, "is not text: the byte at offset 1 is 0");
  std::filesystem::create_directory(dir_ / "folder");
  says({dir_ / "folder"}, "contains no text files");
  file("folder/x.csv", "1");
  says({dir_ / "folder"}, "but 1 other file");
  PrepareOptions all = options({good});
  all.out = good;
  EXPECT_TRUE(contains(error_of([&] { prepare(all); }), "is a regular file; must be a folder"));
  all.out = dir_ / "folder";
  EXPECT_TRUE(contains(error_of([&] { prepare(all); }), "contains other files, such as \"x.csv\""));
  all = options({good});
  all.end_token = "<none>";
  EXPECT_TRUE(contains(refused(all), "--end-token: the tokenizer has no token"));
}

TEST_F(Prepare, ReadsFoldersInOrder) {
  for (const char* name : {"in", "in/b", "in/.hidden", "in/out"}) {
    std::filesystem::create_directory(dir_ / name);
  }
  file("in/z.txt", "z");
  file("in/b/m.md", "m");
  file("in/a.jsonl", "{\"text\": \"a\"}");
  file("in/empty.txt", "");
  file("in/image.png", "x");
  file("in/.hidden/h.txt", "h");
  std::filesystem::create_symlink(dir_ / "in/z.txt", dir_ / "in/link.txt");
  const PrepareSummary summary = prepare(options({dir_ / "in"}, "in/out"));
  EXPECT_EQ(read_documents(dir_ / "in/out"), (std::vector<std::string>{"a", "m", "z"}));
  EXPECT_EQ(summary.empty_files, 1u);
  EXPECT_EQ(summary.left_out, 1u);
  EXPECT_TRUE(prepare(options({dir_ / "in"}, "in/out")).was_finished);
}

TEST_F(Prepare, AppendsOnlyWithTheSameTokenizer) {
  const std::string a = file("a.txt", "first"), b = file("b.txt", "second");
  PrepareOptions all = options({a});
  prepare(all);
  all.inputs = {b};
  EXPECT_TRUE(contains(error_of([&] { prepare(all); }), "add to them with --append"));
  all.append = true;
  const PrepareSummary summary = prepare(all);
  EXPECT_EQ(summary.counts.documents, 1u);
  EXPECT_EQ(summary.manifest.documents(), 2u);
  EXPECT_EQ(summary.manifest.bytes_of_text, 11u);
  EXPECT_EQ(read_documents(all.out), (std::vector<std::string>{"first", "second"}));
  const auto before = files_of(all.out);
  all.tokenizer = tokenizer("other", byte_level_file(""));
  all.end_token = "a";
  const std::string error = error_of([&] { prepare(all); });
  EXPECT_TRUE(contains(error, "A folder must have one tokenizer")) << error;
  all = options({file("p.jsonl", "{\"prompt\": \"a\", \"response\": \"b\"}")});
  all.append = true;
  all.format = DocumentFormat::prompt;
  EXPECT_TRUE(contains(error_of([&] { prepare(all); }), "have no loss mask"));
  all = options({file("blank.jsonl", "\n")});
  all.append = true;
  EXPECT_TRUE(contains(error_of([&] { prepare(all); }), "no documents"));
  EXPECT_TRUE(files_of(all.out) == before);
}

}  // namespace
}  // namespace tessera::data
