#include "tessera/data/prepare.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <string>
#include <thread>

#include "tessera/checkpoint/checksum.h"
#include "tessera/checkpoint/file_system.h"
#include "tessera/checkpoint/lock.h"
#include "tessera/core/crypto.h"
#include "tessera/core/errors.h"
#include "tessera/core/files.h"
#include "tessera/core/publish.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/data/documents.h"
#include "tessera/data/prepare_run.h"
#include "tessera/data/prepare_state.h"
#include "tessera/data/token_data.h"

namespace tessera::data {

namespace {

namespace fs = std::filesystem;
using Call = std::map<std::string, std::string>;

// Names used in flags and files.
std::string name_of(DocumentFormat format) {
  return format == DocumentFormat::text     ? "text"
         : format == DocumentFormat::prompt ? "prompt"
                                            : "chat";
}
std::string name_of(SplitDocuments split) {
  return split == SplitDocuments::file   ? "file"
         : split == SplitDocuments::line ? "line"
                                         : "blank-line";
}

// Files that a tokenizer's folder may contain.
constexpr std::array<const char*, 8> kTokenizerFiles = {"tokenizer.json",
                                                        "tokenizer_config.json",
                                                        "special_tokens_map.json",
                                                        "added_tokens.json",
                                                        "vocab.json",
                                                        "merges.txt",
                                                        "tokenizer.model",
                                                        "chat_template.jinja"};

constexpr std::int64_t kMaxStateBytes = std::int64_t{256} << 20;
// Hash of the inputs' names and sizes: equal on every machine.
constexpr const char* kNames = "names";
// Hash of the inputs' paths, sizes and times on this machine.
constexpr const char* kInputs = "inputs";
constexpr const char* kAppendedTo = "appended_to";

DocumentOptions document_options(const PrepareOptions& options, const Tokenizer& tokenizer) {
  DocumentOptions out;
  out.format = options.format;
  out.split = options.split;
  out.text_field = options.text_field;
  out.chat_template = options.chat_template;
  out.bad_utf8 = options.bad_utf8;
  out.special_text = options.special_text;
  const std::optional<TokenId> end =
      options.end_token.empty() ? tokenizer.end_of_text() : tokenizer.find(options.end_token);
  if (!end) {
    throw UsageError(
        options.end_token.empty()
            ? str("the tokenizer ", quote(options.tokenizer),
                  " names no end-of-document token. Select one with --end-token.")
            : str("--end-token: the tokenizer has no token ", quote(options.end_token)));
  }
  out.end = *end;
  // [Note: beginning of a text]
  if (options.begin != PrepareOptions::Begin::never) out.begin = tokenizer.before_text();
  if (options.begin == PrepareOptions::Begin::always && out.begin.empty()) {
    const std::optional<TokenId> begin = tokenizer.begin_of_text();
    if (!begin) {
      throw UsageError("--begin-token always: the tokenizer names no begin-of-text token",
                       "begin-token");
    }
    out.begin = {*begin};
  }
  return out;
}

// Returns everything that determines the output.
Call call_of(const PrepareOptions& options, const DocumentOptions& documents,
             const Tokenizer& tokenizer, const InputList& list) {
  Sha256 names, inputs;
  for (const InputFile& file : list.files) {
    names.add(str(fs::path(file.path).filename().string(), "\n", file.bytes, "\n"));
    inputs.add(str(fs::absolute(file.path).lexically_normal().string(), "\n", file.bytes, "\n",
                   file.changed, "\n"));
  }
  std::vector<std::string> begins;
  for (const TokenId id : documents.begin) begins.push_back(std::to_string(id));
  Call call = {{"tokenizer", tokenizer.fingerprint()},
               {"format", name_of(options.format)},
               {"invalid_utf8", options.bad_utf8 == BadUtf8::replace ? "replace" : "refuse"},
               {"special_text", options.special_text ? "allowed" : "text"},
               {"begin_token", begins.empty() ? "none" : join(begins, " ")},
               {"end_token", std::to_string(documents.end)},
               {"part_bytes", std::to_string(options.part_bytes)},
               {"shard_bytes", std::to_string(options.shard_bytes)},
               {kNames, to_hex(names.finish())},
               {kInputs, to_hex(inputs.finish())}};
  const auto any = [&](bool jsonl) {
    return std::any_of(list.files.begin(), list.files.end(),
                       [&](const InputFile& file) { return file.jsonl == jsonl; });
  };
  if (any(false)) call["split_documents"] = name_of(options.split);
  if (any(true) && options.format == DocumentFormat::text) call["text_field"] = options.text_field;
  if (options.format == DocumentFormat::chat) call["template"] = options.chat_template;
  return call;
}

// Returns an id of the call that is equal on every machine.
std::string call_id(Call call) {
  call.erase(kInputs);
  Sha256 all;
  for (const auto& [key, value] : call) all.add(str(key, "=", value, "\n"));
  return to_hex(all.finish()).substr(0, 16);
}

std::string differences(const Call& before, const Call& now) {
  std::vector<std::string> all;
  Call every = before;
  every.insert(now.begin(), now.end());
  for (const auto& [key, value] : every) {
    const auto then = before.find(key), today = now.find(key);
    const bool there = then != before.end() && today != now.end();
    if (key == kNames || (there && then->second == today->second)) continue;
    const auto shown = [&](auto at, const Call& in) {
      return at == in.end() ? "none" : quote(at->second.substr(0, 40));
    };
    all.push_back(key == kInputs
                      ? "the input files"
                      : str(key, " (", shown(then, before), ", now ", shown(today, now), ")"));
  }
  return join(all, ", ");
}

std::string in_folder(const std::string& folder, const std::string& name) {
  return str(folder, "/", name);
}

bool is_there(const std::string& path) {
  std::error_code error;
  return fs::exists(fs::symlink_status(path, error));
}

// Returns true for temporary files that a killed prepare leaves behind.
bool is_own_draft(const std::string& name) {
  const std::string_view file = published_by(name);
  return file == kPreparingName || file == kTokensName ||
         std::find(kTokenizerFiles.begin(), kTokenizerFiles.end(), file) != kTokenizerFiles.end();
}

// The caller must hold the lock of the folder.
void remove_own_drafts(const std::string& out) {
  for (const std::string& name : checkpoint::local_files()->list(out)) {
    if (is_own_draft(name)) ::unlink(in_folder(out, name).c_str());
  }
}

// Throws if `out` contains files that prepare did not write.
void check_out(const std::string& out) {
  std::error_code error;
  if (out.empty()) throw UsageError(Flag("out"), "got \"\", must be the folder to write");
  if (!is_there(out)) return;
  if (!fs::is_directory(out, error)) {
    throw UsageError(Flag("out"), str(quote(out), " is ", kind_of_file(out), "; must be a folder"));
  }
  if (is_there(in_folder(out, kTokensName)) || is_there(in_folder(out, kPreparingName))) return;
  for (const std::string& name : checkpoint::local_files()->list(out)) {
    if (name.starts_with(".") || is_own_draft(name)) continue;
    throw UsageError(Flag("out"), str(quote(out), " contains other files, such as ", quote(name),
                                      "; must be a new folder, an empty one, or one with tokens"));
  }
}

bool is_shard_file(const std::string& name) {
  return name.starts_with("tokens-") &&
         (name.ends_with(".bin") || name.ends_with(".idx") || name.ends_with(".mask"));
}

// Removes tokens.json first: without it the folder counts as unfinished.
void remove_tokens(const std::string& out) {
  const auto files = checkpoint::local_files();
  files->remove(in_folder(out, kTokensName));
  for (const std::string& name : files->list(out)) {
    if (is_shard_file(name)) files->remove(in_folder(out, name));
  }
  files->remove(in_folder(out, kPreparingName));
}

// Cleans up after an input without documents.
void remove_empty_output(const std::string& out, bool appended) {
  ::unlink(in_folder(out, kPreparingName).c_str());
  if (appended) return;
  for (const char* name : kTokenizerFiles) ::unlink(in_folder(out, name).c_str());
  ::unlink(in_folder(out, ".lock").c_str());
  ::rmdir(out.c_str());
}

void copy_tokenizer(const std::string& from, const std::string& out) {
  if (from == "bytes") return;
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  std::error_code error;
  const bool folder = fs::is_directory(from, error);
  const fs::path beside = folder ? fs::path(from) : fs::path(from).parent_path();
  if (fs::equivalent(beside.empty() ? "." : beside, out, error)) return;
  for (const char* name : kTokenizerFiles) {
    fs::path path = beside / name;
    if (!folder && std::string(name) == "tokenizer.json") path = from;
    if (fs::is_regular_file(path, error)) {
      publish(in_folder(out, name), read_small_file(path.string(), kMost));
    }
  }
}

// State of the folder that a call resumes from.
struct Start {
  PrepareState state;
  std::optional<TokenManifest> base;  // manifest to append to
  bool finished = false;
};

Start start_from(const PrepareOptions& options, const Tokenizer& tokenizer, bool masked,
                 Call& call) {
  const std::string& out = options.out;
  const std::string state_path = in_folder(out, kPreparingName);
  Start start;
  if (options.restart) {
    remove_tokens(out);
  } else if (is_there(in_folder(out, kTokensName))) {
    TokenManifest manifest = read_token_manifest(out);
    const auto last = manifest.reading.find("call");
    const std::string number = last == manifest.reading.end() ? "" : last->second;
    std::optional<PrepareState> left;  // left by a run that was stopped between its last two steps
    if (is_there(state_path)) {
      left = parse_prepare_state(read_small_file(state_path, kMaxStateBytes), state_path);
      if (call_id(left->call) != number) left.reset();
    }
    Call same = call;
    if (left && left->call.contains(kAppendedTo)) same[kAppendedTo] = left->call.at(kAppendedTo);
    if (call_id(left ? same : call) == number) {
      if (left) checkpoint::local_files()->remove(state_path);
      start.finished = true;
      start.base = std::move(manifest);
      return start;
    }
    if (!options.append) {
      throw UsageError(
          Flag("out"),
          str(quote(out), " has ", format_grouped(static_cast<std::int64_t>(manifest.tokens())),
              " tokens from another call. Choose another folder, add to them "
              "with --append, or replace them with --restart."));
    }
    if (manifest.fingerprint != tokenizer.fingerprint()) {
      throw UsageError(
          Flag("append"),
          str("the tokens in ", quote(out), " were made with the tokenizer ",
              quote(manifest.tokenizer), " (", manifest.fingerprint.substr(0, 12),
              "), but --tokenizer ", options.tokenizer, " is ", quote(tokenizer.name()), " (",
              tokenizer.fingerprint().substr(0, 12), "). A folder must have one tokenizer."));
    }
    if (manifest.masked != masked) {
      throw UsageError(
          Flag("append"),
          str("the tokens in ", quote(out),
              manifest.masked ? " have a loss mask" : " have no loss mask", ", those of --format ",
              name_of(options.format), manifest.masked ? " do not" : " do",
              ". Prepare them in a separate folder."));
    }
    call[kAppendedTo] = checkpoint::to_hex({checkpoint::crc32c(to_text(manifest))});
    for (std::size_t i = 0; i < manifest.shards.size(); ++i) {
      if (manifest.shards[i].name != shard_name(i)) {
        throw UsageError(Flag("append"),
                         str("the shards in ", quote(out), " have other names; expected ",
                             shard_name(i), ".bin"));
      }
    }
    start.state.writer.finished = manifest.shards;
    start.base = std::move(manifest);
  }
  start.state.call = call;
  if (!is_there(state_path)) return start;
  PrepareState state = parse_prepare_state(read_small_file(state_path, kMaxStateBytes), state_path);
  if (state.call != call) {
    throw UsageError(
        Flag("out"),
        str(quote(out), " is unfinished, from a call that differed in ",
            differences(state.call, call),
            ". Finish that call, choose another folder, or start over with --restart."));
  }
  start.state = std::move(state);
  return start;
}

// Formats other than text consist of JSON lines.
void check_extensions(const PrepareOptions& options, const InputList& list) {
  if (options.format == DocumentFormat::text) return;
  for (const InputFile& file : list.files) {
    if (file.jsonl) continue;
    throw UsageError(str("--format ", name_of(options.format), ": ", quote(file.path),
                         " does not end in .jsonl or .ndjson; must be a file of JSON lines"),
                     "format");
  }
}

std::vector<std::string> notes_of(const PrepareOptions& options, const Tokenizer& tokenizer) {
  std::vector<std::string> notes = tokenizer.notes();
  if (options.format == DocumentFormat::chat) {
    for (std::string& note : template_notes(options.chat_template, options.tokenizer)) {
      notes.push_back(std::move(note));
    }
  }
  return notes;
}

// Encodes the input from `state` on. Sets the shards of the manifest, and the counts of the
// summary.
void write_shards(const PrepareOptions& options, const Tokenizer& tokenizer,
                  const DocumentEncoder& encoder, const InputList& list, const PrepareState& state,
                  PrepareSummary& summary) {
  TokenWriter writer(
      {.folder = options.out,
       .bytes_per_token = bytes_per_token(tokenizer.vocab()),
       .masked = encoder.masked(),
       .shard_bytes = options.shard_bytes,
       .direct_bytes = list.bytes >= options.direct_input ? options.direct_bytes : 0},
      state.writer);
  PartReader reader(list,
                    {.split = options.split,
                     .part_bytes = options.part_bytes,
                     .longest_line = options.longest_line,
                     .at_space = tokenizer.may_cut_at_space()},
                    state.position);
  summary.resumed_at = state.position.offset + reader.consumed();
  RunOptions running;
  running.threads = options.threads > 0
                        ? options.threads
                        : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  running.save_seconds = options.save_seconds;
  running.save = [&](const InputPosition& position, const WriterState& written,
                     const DocumentCounts& counts) {
    publish(in_folder(options.out, kPreparingName),
            to_text(PrepareState{state.call, position, written, counts}));
  };
  if (options.report) {
    running.report = [&](std::uint64_t done) { options.report(done, list.bytes); };
  }
  PrepareRun run(reader, encoder, writer, running, state.counts);
  run.run();
  summary.counts = run.counts();
  summary.empty_files = reader.position().empty_files;
  summary.cuts = reader.position().cuts;
  summary.manifest.shards = writer.finish();
}

// Sets everything in the manifest but its shards.
void describe_tokens(TokenManifest& manifest, const Tokenizer& tokenizer,
                     const DocumentOptions& documents, bool masked, const InputList& list,
                     const Call& call) {
  manifest.tokenizer = tokenizer.name();
  manifest.fingerprint = tokenizer.fingerprint();
  manifest.vocab = tokenizer.vocab();
  manifest.end_of_text = documents.end;
  manifest.bytes_per_token = bytes_per_token(tokenizer.vocab());
  manifest.masked = masked;
  for (const char* key : {"format", "split_documents", "text_field", "template", "invalid_utf8",
                          "special_text", "begin_token"}) {
    if (const auto found = call.find(key); found != call.end())
      manifest.reading[key] = found->second;
  }
  manifest.reading["input"] =
      str(plural(static_cast<std::int64_t>(list.files.size()), "file"), ", ",
          format_grouped(static_cast<std::int64_t>(list.bytes)), " bytes");
  manifest.reading["call"] = call_id(call);
}

}  // namespace

PrepareSummary prepare(const PrepareOptions& options) {
  const auto tokenizer = load_tokenizer(options.tokenizer);
  const DocumentOptions documents = document_options(options, *tokenizer);
  const DocumentEncoder encoder(*tokenizer, documents);
  const InputList list = list_inputs(options.inputs, options.out);
  check_extensions(options, list);
  Call call = call_of(options, documents, *tokenizer, list);
  check_out(options.out);
  const checkpoint::FolderLock lock(options.out, "tessera data prepare");

  PrepareSummary summary;
  summary.notes = notes_of(options, *tokenizer);
  summary.input_bytes = list.bytes;
  summary.input_files = list.files.size();
  summary.left_out = list.left_out;
  Start start = start_from(options, *tokenizer, encoder.masked(), call);
  remove_own_drafts(options.out);
  if (start.finished) {
    summary.manifest = std::move(*start.base);
    summary.was_finished = true;
    return summary;
  }
  const std::string state_path = in_folder(options.out, kPreparingName);
  if (!is_there(state_path)) publish(state_path, to_text(start.state));
  copy_tokenizer(options.tokenizer, options.out);

  write_shards(options, *tokenizer, encoder, list, start.state, summary);
  TokenManifest& manifest = summary.manifest;
  if (manifest.documents() == (start.base ? start.base->documents() : 0)) {
    remove_empty_output(options.out, start.base.has_value());
    throw DataError(str(
        "no documents in the input: ", plural(static_cast<std::int64_t>(list.files.size()), "file"),
        " with ", list.bytes, " bytes, all without text"));
  }
  describe_tokens(manifest, *tokenizer, documents, encoder.masked(), list, call);
  manifest.bytes_of_text =
      summary.counts.bytes_of_text + (start.base ? start.base->bytes_of_text : 0);
  manifest.reading["replaced"] = std::to_string(summary.counts.replaced);
  checkpoint::local_files()->sync_folder(options.out);
  publish(in_folder(options.out, kTokensName), to_text(manifest));
  checkpoint::local_files()->remove(state_path);
  return summary;
}

}  // namespace tessera::data
