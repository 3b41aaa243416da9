// tessera import: converts settings of DeepSpeed or Megatron-LM to a file for tessera train.

#include "tessera/cli/import.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "tessera/cli/command_line.h"
#include "tessera/cli/commands.h"
#include "tessera/cli/json_output.h"
#include "tessera/core/errors.h"
#include "tessera/core/files.h"
#include "tessera/core/log.h"
#include "tessera/core/publish.h"
#include "tessera/core/text.h"
#include "tessera/huggingface/model_config.h"
#include "tessera/planner/toml_text.h"

namespace tessera::cli {
namespace {

constexpr std::int64_t kMaxImported = 1 << 20;

constexpr const char* kImportExamples =
    "  tessera import deepspeed ds_config.json --out run.toml\n"
    "  tessera import deepspeed ds_config.json --ranks 8 --json\n"
    "  tessera import megatron --tensor-model-parallel-size 8 --num-layers 24 --hidden-size 2048 "
    "\\\n"
    "      --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 \\\n"
    "      --micro-batch-size 4 --global-batch-size 64 --bf16 --use-distributed-optimizer\n"
    "  tessera import megatron --bf16 --use-distributed-optimizer --out run.toml --ranks 8\n"
    "  tessera plan --config run.toml --model gpt2-xl\n"
    "\n"
    "The TOML file is written to stdout or to --out. `tessera train --config` and `tessera plan\n"
    "--config` read it, and flags override it. Keys that have no counterpart, are not needed or\n"
    "are unknown are listed on stderr. Megatron's flags follow the word megatron.";

const planner::Field& train_field(std::string_view setting) {
  for (const planner::Field& field : planner::fields(planner::Command::train)) {
    if (field.name == setting) return field;
  }
  throw Error(str(quote(setting), " is not a setting of tessera train"));
}

struct ImportArguments {
  std::string out, model_out, device = "cuda";
  int ranks = 0;
  bool json = false, strict = false;
};

// Moves the options of this command, which may be anywhere, before all other words.
std::vector<std::string> own_options_first(int argc, char** argv) {
  std::vector<std::string> own, rest;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i], name = word.substr(0, word.find('='));
    const bool flag = name == "--json" || name == "--strict" || name == "--help" || name == "-h";
    const bool option =
        name == "--out" || name == "--ranks" || name == "--model-out" || name == "--device";
    (flag || option ? own : rest).push_back(word);
    if (option && name == word && i + 1 < argc) own.emplace_back(argv[++i]);
  }
  own.insert(own.begin(), argc > 0 ? argv[0] : "import");
  if (!rest.empty()) {
    own.emplace_back("--");
    own.insert(own.end(), rest.begin(), rest.end());
  }
  return own;
}

std::string deepspeed_text(const std::string& path) {
  if (path != "-") return read_small_file(path, kMaxImported, "a JSON config of DeepSpeed");
  std::string text{std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
  if (static_cast<std::int64_t>(text.size()) > kMaxImported) {
    throw DataError(str("stdin has ", text.size(), " bytes; must be at most ", kMaxImported));
  }
  return text;
}

Imported read_source(const std::vector<std::string>& words, int ranks) {
  const std::string source = words.front();
  if (source == "megatron") {
    return import_megatron({words.begin() + 1, words.end()}, ranks);
  }
  const bool direct = source.ends_with(".json");  // tessera import ds_config.json
  if (!direct && source != "deepspeed") {
    throw UsageError(str("got ", quote(source), "; must be deepspeed or megatron",
                         did_you_mean(source, {"deepspeed", "megatron"})));
  }
  if (words.size() != (direct ? 1U : 2U)) {
    throw UsageError(str("deepspeed: got ",
                         plural(static_cast<std::int64_t>(words.size()) - 1, "argument"),
                         "; must be one: the JSON file, or - for stdin"));
  }
  const std::string& path = words.back();
  return import_deepspeed(deepspeed_text(path), path == "-" ? "stdin" : path, ranks);
}

// Writes a config.json for a model that the settings cannot express.
void write_model(Imported& got, const std::string& folder) {
  if (!got.model) {
    if (!folder.empty()) {
      throw UsageError(Flag("model-out"),
                       "not needed, since the settings describe the model or have none; omit it");
    }
    return;
  }
  std::string config;
  try {
    config = huggingface::config_json(*got.model, "float32");
  } catch (const UsageError& error) {
    got.note("the model", Fate::missing, error.what());
    return;
  }
  if (folder.empty()) {
    got.note(
        "the model", Fate::open,
        "its sizes alone do not describe it: --model-out DIR writes a config.json for --model");
    return;
  }
  if (::mkdir(folder.c_str(), 0777) != 0 && errno != EEXIST) {
    throw UsageError(Flag("model-out"),
                     str("cannot create ", quote(folder), ": ", std::strerror(errno)));
  }
  publish(folder + "/" + huggingface::kConfigName, config);
  got.set("model", folder, "--model-out");
}

}  // namespace

const char* name(Fate fate) {
  switch (fate) {
    case Fate::changed: return "changed";
    case Fate::not_needed: return "not needed";
    case Fate::missing: return "no counterpart";
    case Fate::open: return "left open";
    case Fate::unknown: return "unknown";
  }
  return "";
}

void Imported::set(std::string_view setting, const std::string& text, const std::string& from) {
  const planner::Field& field = train_field(setting);
  try {
    planner::set(settings_, field, text);
  } catch (const UsageError& error) {
    throw UsageError(str(from, ": becomes ", error.what()));
  }
  for (auto& [known, source] : given_) {
    if (known == setting) {
      source = from;
      return;
    }
  }
  given_.emplace_back(setting, from);
}

void Imported::set(std::string_view setting, double value, const std::string& from) {
  char text[32];
  char* const end = std::to_chars(text, text + sizeof text, value).ptr;
  set(setting, std::string(text, end), from);
}

bool Imported::has(std::string_view setting) const {
  return std::any_of(given_.begin(), given_.end(),
                     [&](const auto& each) { return each.first == setting; });
}

bool Imported::complete() const {
  return std::none_of(notes_.begin(), notes_.end(), [](const ImportNote& note) {
    return note.fate == Fate::missing || note.fate == Fate::unknown;
  });
}

std::string Imported::toml() const {
  return planner::settings_toml(settings_, planner::fields(planner::Command::train),
                                [this](const planner::Field& field) -> std::optional<std::string> {
                                  for (const auto& [setting, from] : given_) {
                                    if (setting == field.name) return "  # " + from;
                                  }
                                  return std::nullopt;
                                });
}

std::string Imported::json() const {
  nlohmann::ordered_json out;
  out["settings"] = nlohmann::ordered_json::object();
  for (const auto& [setting, from] : given_) {
    const planner::Field& field = train_field(setting);
    nlohmann::ordered_json value = get(settings_, field);
    if (field.kind != planner::Field::Kind::text) {
      value = nlohmann::ordered_json::parse(value.get<std::string>());
    }
    out["settings"][setting] = {{"value", value}, {"from", from}};
  }
  out["notes"] = nlohmann::ordered_json::array();
  for (const ImportNote& each : notes_) {
    out["notes"].push_back({{"key", each.key}, {"fate", name(each.fate)}, {"text", each.text}});
  }
  out["complete"] = complete();
  out["toml"] = toml();
  return json_text(out);
}

std::string Imported::report() const {
  std::string text;
  for (const Fate fate :
       {Fate::unknown, Fate::missing, Fate::open, Fate::changed, Fate::not_needed}) {
    for (const ImportNote& each : notes_) {
      if (each.fate == fate) text += str(name(fate), ": ", each.key, ": ", each.text, "\n");
    }
  }
  return text;
}

void set_batch(Imported& out, BatchSizes sizes) {
  const auto given = [&] {
    std::vector<std::string> parts;
    if (sizes.global > 0) parts.push_back(str(sizes.global_key, " ", sizes.global));
    if (sizes.micro > 0) parts.push_back(str(sizes.micro_key, " ", sizes.micro));
    if (sizes.accumulation > 0) {
      parts.push_back(str(sizes.accumulation_key, " ", sizes.accumulation));
    }
    if (sizes.replicas > 0) parts.push_back(str(sizes.replicas, " replicas"));
    return join(parts, ", ");
  };
  // Floating point: the product may overflow an integer, and then contradicts the global batch.
  const auto part = [](std::int64_t n) { return n > 0 ? static_cast<double>(n) : 1.0; };
  const double rest = part(sizes.micro) * part(sizes.accumulation) * part(sizes.replicas);
  const bool all = sizes.micro > 0 && sizes.accumulation > 0 && sizes.replicas > 0;
  if (sizes.global > 0) {
    const auto global = static_cast<double>(sizes.global);
    if (rest > global || static_cast<std::int64_t>(global) % static_cast<std::int64_t>(rest) != 0 ||
        (all && rest != global)) {
      throw UsageError(str(given(),
                           ": contradict each other; global batch must be micro-batch · "
                           "accumulation · replicas"));
    }
    if (sizes.micro > 0 && sizes.accumulation > 0 && sizes.replicas == 0) {
      sizes.replicas = sizes.global / (sizes.micro * sizes.accumulation);
      out.set("dp", str(sizes.replicas), str(given(), " together"));
    }
    out.set("global-batch", str(sizes.global), sizes.global_key);
    if (sizes.micro == 0 && sizes.accumulation > 0 && sizes.replicas > 0) {
      sizes.micro = sizes.global / (sizes.accumulation * sizes.replicas);
      sizes.micro_key = str(given(), " together");
    }
  }
  if (sizes.micro > 0) {
    out.set("micro-batch", str(sizes.micro), sizes.micro_key);
  } else if (sizes.global > 0) {
    out.note(sizes.micro_key, Fate::open, "not set: give --micro-batch; the default is 16");
  }
  if (sizes.accumulation > 0) {
    out.set("grad-accum", str(sizes.accumulation), sizes.accumulation_key);
  }
}

int import_command(int argc, char** argv) {
  ImportArguments arguments;
  CommandLine line("import", "Converts settings of a DeepSpeed or Megatron-LM run to Tessera's.",
                   kImportExamples);
  line.takes_program();
  CLI::App& app = line.app();
  app.add_option("--out", arguments.out, "write the TOML to this file")->type_name("FILE");
  app.add_option("--model-out", arguments.model_out,
                 "write a config.json to this folder for a model that --layers, --hidden and "
                 "--heads cannot describe, and set --model to it")
      ->type_name("DIR");
  line.integer(app, "--ranks", arguments.ranks, 0, 1'000'000,
               "ranks of the whole job; 0: derived from the batch sizes");
  line.choice(app, "--device", arguments.device, {"cpu", "cuda"}, "where to train");
  app.add_flag("--json", arguments.json, "print settings, notes and the file as JSON");
  app.add_flag("--strict", arguments.strict, "fail if a key is unknown or has no counterpart");
  std::vector<std::string> words = own_options_first(argc, argv);
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  if (!line.parse(static_cast<int>(pointers.size()), pointers.data())) return 0;
  if (line.program().empty()) {
    throw UsageError("arguments are missing; must be deepspeed FILE.json, or megatron and flags");
  }
  Imported got = read_source(line.program(), arguments.ranks);
  got.set("device", arguments.device, "--device");
  write_model(got, arguments.model_out);
  write_all(2, got.report());
  if (arguments.strict && !got.complete()) {
    throw UsageError(Flag("strict"), "some keys are unknown or have no counterpart, see above");
  }
  if (!arguments.out.empty()) {
    check_publishable(arguments.out, "--out");
    publish(arguments.out, got.toml());
  }
  if (arguments.json) return print_out(got.json());
  return arguments.out.empty() ? print_out(got.toml()) : 0;
}

}  // namespace tessera::cli
