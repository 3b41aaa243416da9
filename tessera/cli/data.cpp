// tessera data: tokenizes text, and inspects and verifies tokens. Does not need torch.

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tessera/cli/checkpoint_verify.h"
#include "tessera/cli/command_line.h"
#include "tessera/cli/commands.h"
#include "tessera/cli/data_inspect.h"
#include "tessera/cli/json_output.h"
#include "tessera/core/errors.h"
#include "tessera/core/log.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/data/prepare.h"

namespace tessera::cli {
namespace {

using DataJson = nlohmann::ordered_json;

constexpr const char* kDataExamples =
    "  tessera data prepare book.txt --out tokens             one token per byte\n"
    "  tessera data prepare --tokenizer bytes rows.jsonl --text-field model --out tokens-rows\n"
    "  tessera data inspect tokens                            counts, lengths, a sample\n"
    "  tessera data verify tokens                             reads every byte\n"
    "\n"
    "`tessera data COMMAND --help` describes a command.";
constexpr const char* kPrepareExamples =
    "  tessera data prepare --tokenizer gpt2/ book.txt --out tokens    a Hugging Face folder\n"
    "  tessera data prepare --tokenizer gpt2/tokenizer.json web.jsonl.zst wiki/ --out tokens\n"
    "  tessera data prepare notes.txt --split-documents blank-line --out tokens\n"
    "  tessera data prepare --tokenizer qwen/ --format chat chats.jsonl --out tokens\n"
    "  tessera data prepare --format prompt questions.jsonl --out tokens   trains on the "
    "responses\n"
    "  tessera data prepare more.txt --out tokens --append\n"
    "\n"
    "A folder is searched for .txt, .text, .md, .jsonl and .ndjson, each also as .gz or .zst.\n"
    "Run the same command again to continue a run that was killed.";
constexpr const char* kInspectDataExamples =
    "  tessera data inspect tokens\n"
    "  tessera data inspect tokens --sample 10\n"
    "  tessera data inspect tokens --json | jq .tokens\n"
    "  tessera data inspect fineweb_train_000001.bin          from llm.c or nanoGPT";
constexpr const char* kVerifyDataExamples =
    "  tessera data verify tokens\n"
    "  tessera data verify train.bin --vocab 50257            checks that tokens are below it";

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
  if (manifest.masked) out["added"]["learned_tokens"] = summary.counts.learned;
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
  if (summary.was_finished) return text + "  already finished: nothing to do\n";
  const data::DocumentCounts& counts = summary.counts;
  const auto note = [&](std::uint64_t count, const char* noun, const char* what) {
    if (count > 0)
      text += str("  ", grouped(count), " ", noun, count == 1 ? " " : "s ", what, "\n");
  };
  if (manifest.masked) note(counts.learned, "token", "to train on");
  note(summary.resumed_at, "byte", "of the input done by an earlier run");
  note(counts.replaced, "sequence", "of invalid UTF-8 replaced by U+FFFD");
  note(counts.empty, "empty document", "skipped");
  note(summary.empty_files, "empty file", "skipped");
  note(summary.left_out, "other file", "of the folders skipped: the names are not text or .jsonl");
  note(summary.cuts, "cut", "in documents longer than 1 MiB, at line ends if there are any");
  return text;
}

int prepare_data(const data::PrepareOptions& options, bool json) {
  data::PrepareSummary summary;
  {
    std::optional<MegabyteBar> bar;
    data::PrepareOptions reporting = options;
    reporting.report = [&](std::uint64_t done, std::uint64_t total) {
      if (!bar) bar.emplace("preparing", static_cast<std::int64_t>(total));
      bar->function()(static_cast<std::int64_t>(done));
    };
    summary = data::prepare(reporting);
  }
  for (const std::string& note : summary.notes) {
    write_all(2, str("tessera data prepare: note: ", visible_lines(note), "\n"));
  }
  return print_out(json ? json_text(summary_json(options, summary))
                        : summary_text(options, summary));
}

// Arguments of `tessera data prepare` as given, for the options that are not text or numbers.
struct PrepareArguments {
  data::PrepareOptions options;
  std::string format = "text", split = "file", invalid = "replace", begin = "auto";
  std::int64_t longest_line = static_cast<std::int64_t>(options.longest_line);
};

void add_prepare_flags(CommandLine& line, CLI::App& app, PrepareArguments& given) {
  data::PrepareOptions& options = given.options;
  app.add_option("INPUT", options.inputs,
                 "files of text or JSON lines, also as .gz or .zst, and folders of them")
      ->required()
      ->type_name("");
  app.add_option("--out", options.out, "folder to write")->required()->type_name("DIR");
  app.add_option("--tokenizer", options.tokenizer, "bytes, a tokenizer.json, or a folder with one")
      ->type_name("bytes|FILE|DIR")
      ->default_str(options.tokenizer);
  line.choice(app, "--format", given.format, {"text", "prompt", "chat"},
              "content of a JSON line: a text; \"prompt\" and \"response\" (or \"completion\"); "
              "\"messages\" with \"role\" and \"content\". For the last two the loss covers only "
              "the response or the assistant's messages");
  app.add_option("--text-field", options.text_field, "field of a JSON line with the text")
      ->default_str(options.text_field);
  app.add_option("--template", options.chat_template,
                 "format of a conversation: chatml, llama3, mistral or plain (no Jinja)")
      ->default_str(options.chat_template);
  line.choice(app, "--split-documents", given.split, {"file", "blank-line", "line"},
              "document boundaries in a text file: one per file, at blank lines, or one per line");
  line.choice(app, "--invalid-utf8", given.invalid, {"replace", "refuse"},
              "for invalid UTF-8: replace it by U+FFFD and count it, or fail");
  app.add_flag("--allow-special", options.special_text,
               "encode text such as <|endoftext|> in a document as that token instead of as "
               "text");
  app.add_option("--end-token", options.end_token,
                 "text of the token after each document; by default the tokenizer's own")
      ->type_name("TEXT");
  line.choice(app, "--begin-token", given.begin, {"auto", "always", "never"},
              "the tokenizer's begin-of-text token before each document; auto: if the tokenizer "
              "itself adds it");
  line.integer(app, "--threads", options.threads, 0, 4096, "threads; 0: one per core");
  line.bytes(app, "--shard-size", options.shard_bytes, "largest file of tokens");
  line.bytes(app, "--longest-line", given.longest_line,
             "largest JSON line; a longer one is an error");
  app.add_flag("--append", options.append, "append to the tokens in the folder");
  app.add_flag("--restart", options.restart, "start over: remove the tokens that the folder holds");
}

// Returns the options that the arguments stand for. Throws UsageError.
data::PrepareOptions options_of(const PrepareArguments& given) {
  data::PrepareOptions options = given.options;
  options.format = given.format == "text"     ? data::DocumentFormat::text
                   : given.format == "prompt" ? data::DocumentFormat::prompt
                                              : data::DocumentFormat::chat;
  options.split = given.split == "file"   ? data::SplitDocuments::file
                  : given.split == "line" ? data::SplitDocuments::line
                                          : data::SplitDocuments::blank_line;
  options.bad_utf8 = given.invalid == "replace" ? data::BadUtf8::replace : data::BadUtf8::refuse;
  options.begin = given.begin == "auto"    ? data::PrepareOptions::Begin::as_tokenizer
                  : given.begin == "never" ? data::PrepareOptions::Begin::never
                                           : data::PrepareOptions::Begin::always;
  if (options.shard_bytes < 1 << 16) {
    throw UsageError(Flag("shard-size"), str("got ", format_bytes(options.shard_bytes),
                                             "; must be at least 65,536 bytes"));
  }
  if (given.longest_line < 1 << 10) {
    throw UsageError(Flag("longest-line"),
                     str("got ", given.longest_line, "; must be at least 1,024 bytes"));
  }
  options.longest_line = static_cast<std::size_t>(given.longest_line);
  return options;
}

}  // namespace

int data_command(int argc, char** argv) {
  CommandLine line("data",
                   "Tokenizes text once for all runs that train on it, and inspects and verifies "
                   "tokens.",
                   kDataExamples);
  bool json = false;
  const auto command = [&](const char* name, const char* help, const char* examples) -> CLI::App& {
    CLI::App& app = *line.app().add_subcommand(name, help);
    app.footer(str("Examples:\n", examples));
    app.add_flag("--json", json, "print JSON");
    return app;
  };
  PrepareArguments given;
  CLI::App& prepares =
      command("prepare", "Tokenizes text and JSON lines into a folder.", kPrepareExamples);
  add_prepare_flags(line, prepares, given);
  CLI::App& inspects = command("inspect", "Shows the contents of a folder of tokens or a .bin.",
                               kInspectDataExamples);
  int samples = 3, vocab = 0;
  line.integer(inspects, "--sample", samples, 0, 10'000, "number of documents to show decoded");
  CLI::App& verifies =
      command("verify", "Reads every byte; the exit status is 1 if anything is damaged.",
              kVerifyDataExamples);
  line.integer(verifies, "--vocab", vocab, 0, INT32_MAX,
               "every token must be below this; 0: the vocabulary of the tokenizer");
  std::string path;
  for (CLI::App* app : {&inspects, &verifies}) {
    app->add_option("PATH", path, "folder of tokens, or a .bin from llm.c or nanoGPT")
        ->required()
        ->type_name("");
  }
  line.app().require_subcommand(1);
  return line.run(argc, argv, [&] {
    if (inspects.parsed()) return inspect_data(path, samples, json);
    if (verifies.parsed()) return verify_data(path, vocab, json);
    return prepare_data(options_of(given), json);
  });
}

}  // namespace tessera::cli
