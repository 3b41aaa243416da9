// tessera data: makes tokens of texts, and looks at them. No torch: they are files.

#include "tessera/cli/data.h"

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tessera/cli/checkpoint_verify.h"
#include "tessera/cli/command_line.h"
#include "tessera/cli/commands.h"
#include "tessera/cli/json_text.h"
#include "tessera/core/errors.h"
#include "tessera/core/log.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/data/chat_template.h"
#include "tessera/data/token_data.h"

namespace tessera::cli {
namespace {

using DataJson = nlohmann::ordered_json;

constexpr const char* kDataExamples =
    "  tessera data prepare book.txt --out tokens             a byte is a token\n"
    "  tessera data prepare --tokenizer bytes rows.jsonl --text-field model --out tokens-rows\n"
    "  tessera data inspect tokens                            counts, lengths, a sample\n"
    "  tessera data verify tokens                             reads every byte\n"
    "\n"
    "`tessera data COMMAND --help` describes a command.";
constexpr const char* kPrepareExamples =
    "  tessera data prepare --tokenizer gpt2/ book.txt --out tokens    a folder of Hugging Face\n"
    "  tessera data prepare --tokenizer gpt2/tokenizer.json web.jsonl.zst wiki/ --out tokens\n"
    "  tessera data prepare notes.txt --split-documents blank-line --out tokens\n"
    "  tessera data prepare --tokenizer qwen/ --format chat chats.jsonl --out tokens\n"
    "  tessera data prepare --format prompt questions.jsonl --out tokens   learns the responses\n"
    "  tessera data prepare more.txt --out tokens --append\n"
    "\n"
    "A folder is searched for .txt, .text, .md, .jsonl and .ndjson, each also as .gz or .zst.\n"
    "A run that was killed goes on where it stopped when the same command is given again.";
constexpr const char* kInspectDataExamples =
    "  tessera data inspect tokens\n"
    "  tessera data inspect tokens --sample 10\n"
    "  tessera data inspect tokens --json | jq .tokens\n"
    "  tessera data inspect fineweb_train_000001.bin          of llm.c or nanoGPT";
constexpr const char* kVerifyDataExamples =
    "  tessera data verify tokens\n"
    "  tessera data verify train.bin --vocab 50257            is every token below it?";

std::string grouped(std::uint64_t count) {
  return format_grouped(static_cast<std::int64_t>(count));
}

DataJson summary_json(const data::PrepareOptions& options, const data::PrepareSummary& summary) {
  const data::TokenManifest& manifest = summary.manifest;
  DataJson out = {{"folder", options.out},
                  {"tokens", manifest.tokens()},
                  {"documents", manifest.documents()},
                  {"bytes_of_text", manifest.bytes_of_text},
                  {"shards", manifest.shards.size()},
                  {"bytes_per_token", manifest.bytes_per_token},
                  {"masked", manifest.masked},
                  {"tokenizer",
                   {{"name", manifest.tokenizer},
                    {"fingerprint", manifest.fingerprint},
                    {"vocab", manifest.vocab}}},
                  {"input_files", summary.input_files},
                  {"input_bytes", summary.input_bytes},
                  {"was_finished", summary.was_finished}};
  if (summary.was_finished) return out;
  out["added"] = {{"documents", summary.counts.documents},
                  {"bytes_of_text", summary.counts.bytes_of_text}};
  if (manifest.masked) out["added"]["learnt_tokens"] = summary.counts.learnt;
  out["invalid_utf8_replaced"] = summary.counts.replaced;
  out["empty_documents"] = summary.counts.empty;
  out["empty_files"] = summary.empty_files;
  out["files_left_out"] = summary.left_out;
  out["cuts"] = summary.cuts;
  out["resumed_at"] = summary.resumed_at;
  return out;
}

std::string summary_text(const data::PrepareOptions& options, const data::PrepareSummary& summary) {
  const data::TokenManifest& manifest = summary.manifest;
  std::string text = str(
      options.out, ": ", grouped(manifest.tokens()), " tokens in ", grouped(manifest.documents()),
      manifest.documents() == 1 ? " document" : " documents", " (", manifest.tokenizer,
      ", vocabulary ", grouped(static_cast<std::uint64_t>(manifest.vocab)), ", ",
      plural(static_cast<std::int64_t>(manifest.shards.size()), "shard"), ")\n");
  if (summary.was_finished) return text + "  it was finished already: nothing to do\n";
  const data::DocumentCounts& counts = summary.counts;
  const auto note = [&](std::uint64_t count, const char* noun, const char* what) {
    if (count > 0)
      text += str("  ", grouped(count), " ", noun, count == 1 ? " " : "s ", what, "\n");
  };
  if (manifest.masked) note(counts.learnt, "token", "to be learnt");
  note(summary.resumed_at, "byte", "of the input had been done before");
  note(counts.replaced, "sequence", "of bytes that are no UTF-8 became U+FFFD");
  note(counts.empty, "empty document", "left out");
  note(summary.empty_files, "empty file", "left out");
  note(summary.left_out, "other file", "of the folders left out: neither text nor .jsonl by name");
  note(summary.cuts, "cut", "in documents longer than 1 MiB, at line ends where there are any");
  return text;
}

}  // namespace

int prepare_data(const data::PrepareOptions& options, bool json) {
  data::PrepareSummary summary;
  {
    std::optional<MegabyteBar> bar;
    data::PrepareOptions told = options;
    told.told = [&](std::uint64_t done, std::uint64_t total) {
      if (!bar) bar.emplace("preparing", static_cast<std::int64_t>(total));
      bar->function()(static_cast<std::int64_t>(done));
    };
    summary = data::prepare(told);
  }
  for (const std::string& note : summary.notes) {
    write_all(2, str("tessera data prepare: note: ", visible_lines(note), "\n"));
  }
  return print_out(json ? json_text(summary_json(options, summary))
                        : summary_text(options, summary));
}

int data_command(int argc, char** argv) {
  CommandLine line("data",
                   "Makes tokens of texts, once, for all runs that train on them; and looks at "
                   "them.",
                   kDataExamples);
  data::PrepareOptions options;
  std::string format = "text", split = "file", invalid = "replace", begin = "auto", path;
  std::int64_t longest_line = static_cast<std::int64_t>(options.longest_line), vocab = 0;
  bool json = false;
  int samples = 3;
  const auto command = [&](const char* name, const char* help, const char* examples) -> CLI::App& {
    CLI::App& app = *line.app().add_subcommand(name, help);
    app.footer(str("Examples:\n", examples));
    app.add_flag("--json", json, "print JSON");
    return app;
  };

  CLI::App& prepares =
      command("prepare", "Writes a folder of tokens from texts and JSON lines.", kPrepareExamples);
  prepares
      .add_option("INPUT", options.inputs,
                  "files of text or JSON lines, also as .gz or .zst, and "
                  "folders of them")
      ->required()
      ->type_name("");
  prepares.add_option("--out", options.out, "the folder to write")->required()->type_name("DIR");
  prepares
      .add_option("--tokenizer", options.tokenizer,
                  "bytes, a tokenizer.json, or a folder that has one")
      ->type_name("bytes|FILE|DIR")
      ->default_str(options.tokenizer);
  line.choice(prepares, "--format", format, {"text", "prompt", "chat"},
              "what a line of JSON is: a text; \"prompt\" and \"response\" (or \"completion\"); "
              "\"messages\" with \"role\" and \"content\". Of the last two only the response, or "
              "what the assistant says, is learnt");
  prepares.add_option("--text-field", options.text_field, "the field of JSON lines with the text")
      ->default_str(options.text_field);
  prepares
      .add_option("--template", options.chat_template,
                  "how a conversation is written: chatml, llama3, mistral or plain (no Jinja)")
      ->default_str(options.chat_template);
  line.choice(prepares, "--split-documents", split, {"file", "blank-line", "line"},
              "what one document of a text is: the file, what stands between blank lines, a line");
  line.choice(prepares, "--invalid-utf8", invalid, {"replace", "refuse"},
              "bytes that are no UTF-8: U+FFFD in their place, counted, or an error");
  prepares.add_flag("--allow-special", options.special_text,
                    "text such as <|endoftext|> inside a document becomes that token; otherwise it "
                    "stays text");
  prepares
      .add_option("--end-token", options.end_token,
                  "the token behind each document, by its text; otherwise the tokenizer's own")
      ->type_name("TEXT");
  line.choice(prepares, "--begin-token", begin, {"auto", "always", "never"},
              "the tokenizer's token that begins a text, in front of each document; auto: where "
              "the tokenizer itself puts it");
  line.integer(prepares, "--threads", options.threads, 0, 4096, "0: one for each core");
  line.bytes(prepares, "--shard-size", options.shard_bytes, "of tokens in one file, at most");
  line.bytes(prepares, "--longest-line", longest_line, "of JSON lines; a longer one is an error");
  prepares.add_flag("--append", options.append, "add to the tokens that the folder has");
  prepares.add_flag("--restart", options.restart,
                    "begin anew: what the folder has of tokens is removed");

  CLI::App& inspects =
      command("inspect", "Shows what a folder of tokens or a .bin holds.", kInspectDataExamples);
  line.integer(inspects, "--sample", samples, 0, 10'000, "so many documents, decoded");
  CLI::App& verifies = command(
      "verify", "Reads every byte; the status is 1 if anything is damaged.", kVerifyDataExamples);
  int wanted_vocab = 0;
  line.integer(verifies, "--vocab", wanted_vocab, 0, INT32_MAX,
               "every token has to be below it; 0: below the tokenizer's own");
  for (CLI::App* app : {&inspects, &verifies}) {
    app->add_option("PATH", path, "a folder of tokens, or a .bin of llm.c or nanoGPT")
        ->required()
        ->type_name("");
  }
  line.app().require_subcommand(1);
  return line.run(argc, argv, [&] {
    if (inspects.parsed()) return inspect_data(path, samples, json);
    vocab = wanted_vocab;
    if (verifies.parsed()) return verify_data(path, vocab, json);
    options.format = format == "text"     ? data::DocumentFormat::text
                     : format == "prompt" ? data::DocumentFormat::prompt
                                          : data::DocumentFormat::chat;
    options.split = split == "file"   ? data::SplitDocuments::file
                    : split == "line" ? data::SplitDocuments::line
                                      : data::SplitDocuments::blank_line;
    options.bad_utf8 = invalid == "replace" ? data::BadUtf8::replace : data::BadUtf8::refuse;
    options.begin = begin == "auto"    ? data::PrepareOptions::Begin::as_tokenizer
                    : begin == "never" ? data::PrepareOptions::Begin::never
                                       : data::PrepareOptions::Begin::always;
    if (options.shard_bytes < 1 << 16) {
      throw UsageError(str("--shard-size: got ", format_bytes(options.shard_bytes),
                           ", wanted at least 65,536 bytes"));
    }
    if (longest_line < 1 << 10) {
      throw UsageError(str("--longest-line: got ", longest_line, ", wanted at least 1,024 bytes"));
    }
    options.longest_line = static_cast<std::size_t>(longest_line);
    return prepare_data(options, json);
  });
}

}  // namespace tessera::cli
