// tessera checkpoint: inspects, compares and rewrites checkpoints. Does not need torch.

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/lock.h"
#include "tessera/checkpoint/reshard.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/cli/checkpoint_verify.h"
#include "tessera/cli/command_line.h"
#include "tessera/cli/commands.h"
#include "tessera/cli/json_output.h"
#include "tessera/core/errors.h"
#include "tessera/core/files.h"
#include "tessera/core/log.h"
#include "tessera/core/progress.h"
#include "tessera/core/table.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/data/token_data.h"
#include "tessera/data/tokenizer.h"
#include "tessera/huggingface/export.h"
#include "tessera/huggingface/peft.h"

namespace tessera::cli {
namespace {

using Json = nlohmann::ordered_json;
using checkpoint::Checkpoint;

constexpr const char* kCheckpointExamples =
    "  tessera checkpoint inspect runs/a                      the newest valid one of the run\n"
    "  tessera checkpoint verify runs/a/step-00000120         reads every byte\n"
    "  tessera checkpoint diff runs/a/step-00000120 runs/b/step-00000120\n"
    "  tessera checkpoint reshard runs/a runs/wide --dp 4 --tp 2\n"
    "  tessera checkpoint export runs/a model.safetensors --dtype bf16\n"
    "  tessera checkpoint export runs/a out/model --format huggingface\n"
    "\n"
    "`tessera checkpoint COMMAND --help` describes a command.";
constexpr const char* kInspectExamples =
    "  tessera checkpoint inspect runs/a                      the newest valid one of the run\n"
    "  tessera checkpoint inspect runs/a/step-00000120 --params\n"
    "  tessera checkpoint inspect runs/a --json | jq .step";
constexpr const char* kVerifyExamples =
    "  tessera checkpoint verify runs/a/step-00000120         detects bit flips\n"
    "  tessera checkpoint verify runs/a --sha256 --out ~/safe/a.sha256\n"
    "  tessera checkpoint verify runs/a --against ~/safe/a.sha256  detects forgery too\n"
    "  cd runs/a/step-00000120 && sha256sum -c ~/safe/a.sha256   the same without Tessera\n"
    "\n"
    "The checksums are stored in the checkpoint, so a deliberate change can include them.\n"
    "A list of hashes that you keep elsewhere, writable only by you, detects that.";
constexpr const char* kDiffExamples =
    "  tessera checkpoint diff runs/a/step-00000120 runs/b/step-00000120\n"
    "  tessera checkpoint diff runs/a runs/a/step-00000100 --json";
constexpr const char* kReshardExamples =
    "  tessera checkpoint reshard runs/a runs/wide --dp 4 --tp 2     8 files in runs/wide/step-…\n"
    "  tessera checkpoint reshard runs/a runs/one                    a single file";
constexpr const char* kExportExamples =
    "  tessera checkpoint export runs/a model.safetensors --dtype bf16\n"
    "  tessera checkpoint export runs/a/step-00000120 moments.safetensors --state moment1\n"
    "  tessera checkpoint export runs/a out/model --format huggingface --dtype bf16\n"
    "  tessera checkpoint export runs/a out/model --format huggingface --tokenizer folder\n"
    "  tessera checkpoint export runs/tuned out/adapter --format peft --base folder\n"
    "  tessera checkpoint export runs/tuned out/merged --format huggingface --base folder";

std::string padded(const std::string& text, std::size_t width) {
  return text.size() < width ? text + std::string(width - text.size(), ' ') : text;
}

// Total of one state over all parameters and files.
struct StateTotal {
  checkpoint::DType dtype = checkpoint::DType::f32;
  std::int64_t elements = 0;
  std::int64_t bytes() const { return elements * checkpoint::bytes_of(dtype); }
};
std::map<std::string, StateTotal> totals_of(const Checkpoint& from) {
  std::map<std::string, StateTotal> totals;
  for (const checkpoint::StoredFile& file : from.manifest().files) {
    for (const checkpoint::StoredTensor& tensor : file.tensors) {
      StateTotal& total = totals[str(tensor.state, " ", checkpoint::stored_name(tensor.dtype))];
      total.dtype = tensor.dtype;
      total.elements += tensor.elements();
    }
  }
  return totals;
}

Json inspect_json(const Checkpoint& from) {
  const checkpoint::Description& about = from.about();
  Json out = {{"folder", from.folder()},
              {"step", about.step},
              {"samples", about.samples},
              {"seed", about.seed},
              {"mesh", axes_json<Json>(about.mesh)},
              {"stage", about.stage},
              {"layout", about.layout},
              {"model", Json::parse(about.model)},
              {"extra", about.extra},
              {"bytes", from.bytes()},
              {"files", Json::array()},
              {"params", Json::array()}};
  for (const checkpoint::StoredFile& file : from.manifest().files) {
    out["files"].push_back(
        {{"name", file.name}, {"bytes", file.bytes}, {"tensors", file.tensors.size()}});
  }
  for (const ParamSpec& spec : about.params) {
    Json states = Json::object();
    for (const auto& [state, dtype] : from.states(spec.name))
      states[state] = checkpoint::stored_name(dtype);
    out["params"].push_back({{"name", spec.name}, {"shape", spec.shape}, {"states", states}});
  }
  return out;
}

int inspect(const std::string& path, bool params, bool json) {
  Checkpoint from = open_checkpoint(path);
  if (json) return print_out(json_text(inspect_json(from)));
  const checkpoint::Description& about = from.about();
  std::int64_t elements = 0;
  for (const ParamSpec& spec : about.params) elements += checkpoint::elements_of(spec.shape);
  Table facts("ll");
  facts.row({"step", format_grouped(about.step)});
  facts.row({"samples", format_grouped(about.samples)});
  facts.row({"seed", str(about.seed)});
  facts.row({"saved by", str(about.mesh.words(" · "), ", stage ", about.stage, ", layout ",
                             visible(about.layout))});
  facts.row({"model", visible(json_words(Json::parse(about.model)), 2000)});
  facts.row({"params", str(about.params.size(), " with ", format_count(elements), " elements")});
  facts.row({"files", str(from.manifest().files.size(), " with ", format_bytes(from.bytes()))});
  for (const auto& [key, value] : about.extra) {
    if (!value.empty()) facts.row({visible(key), visible(value, 1000)});
  }
  std::string text = str(from.folder(), "\n", facts.text());
  text += "  states\n";
  for (const auto& [state, total] : totals_of(from)) {
    text += str("    ", padded(visible(state), 12), " ", format_bytes(total.bytes()), "\n");
  }
  if (params) {
    for (const ParamSpec& spec : about.params) {
      std::vector<std::string> sizes, states;
      for (const std::int64_t size : spec.shape) sizes.push_back(std::to_string(size));
      for (const auto& [state, dtype] : from.states(spec.name)) {
        states.push_back(str(visible(state), " ", checkpoint::stored_name(dtype)));
      }
      text += str("  ", padded(visible(spec.name), 32), " [", join(sizes, ", "), "]  ",
                  join(states, ", "), "\n");
    }
  }
  return print_out(text);
}

int diff(const std::string& left, const std::string& right, bool json) {
  Checkpoint a = open_checkpoint(left), b = open_checkpoint(right);
  checkpoint::Difference difference;
  {
    MegabyteBar bar("comparing", a.bytes());
    difference = checkpoint::diff(a, b, bar.function());
  }
  const bool same = difference.states.empty();
  if (json) {
    Json states = Json::array();
    for (const checkpoint::StateDifference& d : difference.states) {
      states.push_back({{"param", d.param},
                        {"state", d.state},
                        {"reason", d.reason},
                        {"elements", d.elements},
                        {"first", d.first},
                        {"largest", d.largest}});
    }
    const Json out = {{"a", a.folder()},
                      {"b", b.folder()},
                      {"same", same},
                      {"about", difference.about},
                      {"equal_states", difference.equal},
                      {"states", states}};
    print_out(json_text(out));
    return same ? 0 : 1;
  }
  std::string text = str("A ", a.folder(), "\nB ", b.folder(), "\n");
  for (const std::string& line : difference.about) text += "  " + visible(line, 2000) + "\n";
  for (const checkpoint::StateDifference& d : difference.states) {
    text +=
        str("  ", visible(d.param), d.state.empty() ? "" : " ", visible(d.state), ": ", d.reason);
    if (d.elements > 0) {
      text += str(d.reason.empty() ? "" : "; ", format_grouped(d.elements),
                  " elements differ, by at most ", d.largest, ", the first at ", d.first);
    }
    text += "\n";
  }
  text += str(same ? "Same: " : "", difference.equal, " states have the same bits",
              same ? "" : str(", ", difference.states.size(), " do not"), "\n");
  print_out(text);
  return same ? 0 : 1;
}

int reshard(const std::string& path, const std::string& to, const Axes& mesh) {
  Checkpoint from = open_checkpoint(path);
  checkpoint::check_reshard(from, to, mesh, *checkpoint::local_files());
  // Without the lock, resharding would remove the unfinished saves of a run in this folder.
  const checkpoint::FolderLock lock(to, "tessera checkpoint reshard");
  if (!lock.missing().empty()) write_all(2, "warning: " + lock.missing() + "\n");
  checkpoint::Saved saved;
  {
    MegabyteBar bar("resharding", from.bytes());
    saved = checkpoint::reshard(from, to, mesh, checkpoint::local_files(), bar.function());
  }
  return print_out(str(saved.folder, ": ", mesh.world(), " shards (", mesh.words(" · "), "), ",
                       format_bytes(saved.bytes), "\n"));
}

// Arguments of `tessera checkpoint export`.
struct ExportArguments {
  std::string from;  // a checkpoint, or the folder of a run
  std::string to;
  std::string format = "safetensors";  // or huggingface, peft
  std::string state, dtype;
  std::string shard_size = "5GB", tokenizer;  // huggingface
  std::string base;                           // base model of a checkpoint with adapters
};

constexpr std::array kExportDTypes = {DType::f32, DType::bf16, DType::f16};

std::optional<DType> export_dtype(const std::string& text) {
  if (text.empty() || text == "auto") return std::nullopt;
  try {
    return parse_dtype(text, kExportDTypes);
  } catch (const UsageError& error) {
    throw UsageError(Flag("dtype"), error.what());
  }
}

// Returns true if the model was trained on bytes, so that there is no tokenizer.json.
bool read_as_bytes(const checkpoint::Checkpoint& from) {
  const auto& extra = from.about().extra;
  const auto tokenizer = extra.find("tokenizer"), data = extra.find("data");
  if (tokenizer != extra.end() && !tokenizer->second.empty()) {
    return tokenizer->second == data::byte_tokenizer()->fingerprint();
  }
  return data != extra.end() && kind_of_file(data->second) == "a regular file" &&
         !data::is_token_data(data->second);
}

// Sets the begin and end tokens from the tokenizer that is exported with the model.
void name_end_tokens(const checkpoint::Checkpoint& from, huggingface::FolderOptions& options) {
  const std::string folder =
      options.tokenizer.empty() ? huggingface::companions_of(from.folder()) : options.tokenizer;
  if (folder.empty() || kind_of_file(folder + "/tokenizer.json") != "a regular file") return;
  try {
    const auto tokenizer = data::load_tokenizer(folder);
    options.end_token = tokenizer->end_of_text();
    options.begin_token = tokenizer->begin_of_text();
    const std::vector<data::TokenId> before = tokenizer->before_text();
    if (!options.begin_token && before.size() == 1) options.begin_token = before.front();
  } catch (const Error&) {
    // The tokenizer files are copied even if they cannot be parsed here.
  }
}

// Throws UsageError if `path` is a file other than safetensors. An earlier export may be replaced;
// another kind of file suggests a mistyped name.
void refuse_other_file(const std::string& path) {
  if (kind_of_file(path) != "a regular file") return;
  const auto file = checkpoint::local_files()->open(path);
  if (file->size() == 0) return;
  try {
    checkpoint::read_header(*file, path);
  } catch (const DataError&) {
    throw UsageError(str(quote(path),
                         " exists and is not a safetensors file. Use another name, or remove "
                         "it first."));
  }
}

int export_file(const ExportArguments& arguments) {
  refuse_other_file(arguments.to);
  checkpoint::Checkpoint from = open_checkpoint(arguments.from);
  checkpoint::ExportOptions options;
  options.state = arguments.state;
  options.dtype = export_dtype(arguments.dtype);
  std::int64_t written = 0;
  {
    MegabyteBar bar("exporting", from.bytes());
    options.report = bar.function();
    written = checkpoint::export_model(from, arguments.to, options);
  }
  return print_out(str(arguments.to, ": ", from.about().params.size(), " tensors of step ",
                       from.about().step, ", ", format_bytes(written), "\n"));
}

int export_huggingface(const ExportArguments& arguments) {
  if (!arguments.state.empty()) {
    throw UsageError(Flag("state"),
                     "a Hugging Face folder holds only parameters; use --format safetensors");
  }
  huggingface::FolderOptions options;
  options.dtype = export_dtype(arguments.dtype);
  options.tokenizer = arguments.tokenizer;
  options.base = arguments.base;
  try {
    options.shard_bytes = parse_bytes(arguments.shard_size);
  } catch (const UsageError& error) {
    throw UsageError(Flag("shard-size"), error.what());
  }
  checkpoint::Checkpoint from = open_checkpoint(arguments.from);
  name_end_tokens(from, options);
  huggingface::WrittenFolder written;
  {
    MegabyteBar bar("exporting", from.bytes());
    options.report = bar.function();
    written = huggingface::export_folder(from, arguments.to, options);
  }
  const std::string beside = !written.companions.empty() ? join(written.companions, ", ")
                             : read_as_bytes(from)
                                 ? "trained on bytes: tessera generate needs --tokenizer bytes"
                                 : "no tokenizer files (--tokenizer DIR adds them)";
  return print_out(str(arguments.to, ": step ", from.about().step, ", ",
                       format_bytes(written.bytes), " in ", plural(written.files, "file"), "; ",
                       beside, "\n"));
}

int export_peft(const ExportArguments& arguments) {
  if (!arguments.state.empty() || !arguments.tokenizer.empty()) {
    throw UsageError("--format peft: exports only adapters; omit --state and --tokenizer",
                     "format");
  }
  huggingface::AdapterOptions options;
  options.dtype = export_dtype(arguments.dtype).value_or(DType::f32);
  checkpoint::Checkpoint from = open_checkpoint(arguments.from);
  options.base = arguments.base;
  if (const auto start = from.about().extra.find("init_from");
      options.base.empty() && start != from.about().extra.end()) {
    options.base = start->second;
  }
  const huggingface::WrittenAdapter written =
      huggingface::export_adapter(from, arguments.to, options);
  return print_out(str(arguments.to, ": step ", from.about().step, ", ",
                       plural(written.tensors, "tensor"), " of adapters, ",
                       format_bytes(written.bytes), "\n"));
}

int export_checkpoint(const ExportArguments& arguments) {
  if (arguments.format == "peft") return export_peft(arguments);
  return arguments.format == "huggingface" ? export_huggingface(arguments) : export_file(arguments);
}

// Arguments of all subcommands.
struct CheckpointArguments {
  std::string path, other;  // checkpoints, or folders of runs
  bool json = false, params = false;
  VerifyOptions checks;
  PerAxis<int> sizes{1};
  ExportArguments exported;
};

void add_verify_flags(CLI::App& app, VerifyOptions& checks) {
  app.add_flag("--sha256", checks.sha256,
               "print the SHA-256 hash of every file like sha256sum, if all are valid");
  app.add_option("--out", checks.out, "write these hashes to a file instead; keep it elsewhere")
      ->type_name("FILE");
  app.add_option("--against", checks.against,
                 "compare with such a list; the exit status is 1 if a file was changed")
      ->type_name("FILE");
}

void add_export_flags(CommandLine& line, CLI::App& app, ExportArguments& exported) {
  app.add_option("TO", exported.to, "file or folder to write")->required()->type_name("");
  line.choice(app, "--format", exported.format, {"safetensors", "huggingface", "peft"},
              "safetensors: a file with Tessera's names; huggingface: a folder; peft: a "
              "folder with the run's adapters (--lora-rank) that peft reads");
  app.add_option("--state", exported.state, "state to export; by default param and buffers");
  app.add_option("--dtype", exported.dtype,
                 "f32, bf16 or f16, rounded to nearest; by default (or auto) as stored");
  app.add_option("--base", exported.base,
                 "for a run with adapters: the model it was tuned from. huggingface: required, "
                 "the adapters are merged into it; peft: its name in adapter_config.json")
      ->type_name("DIR");
  app.add_option("--shard-size", exported.shard_size,
                 "huggingface: largest file; a larger model is split into several, with an index")
      ->type_name("SIZE");
  app.add_option("--tokenizer", exported.tokenizer,
                 "huggingface: folder whose tokenizer files and generation_config.json to copy; "
                 "by default those that the run started from")
      ->type_name("DIR");
}

}  // namespace

int checkpoint_command(int argc, char** argv) {
  CommandLine line("checkpoint",
                   "Inspects, verifies, compares, reshards and exports checkpoints. DIR is a "
                   "checkpoint, or the folder of a run: then its newest valid checkpoint is used.",
                   kCheckpointExamples);
  CheckpointArguments given;
  const auto command = [&](const char* name, const char* help, const char* examples) -> CLI::App& {
    CLI::App& app = *line.app().add_subcommand(name, help);
    app.footer(str("Examples:\n", examples));
    app.add_option("DIR", given.path, "folder of a checkpoint or of a run")
        ->required()
        ->type_name("");
    return app;
  };
  CLI::App& inspects = command("inspect", "Shows the contents of a checkpoint.", kInspectExamples);
  inspects.add_flag("--params", given.params, "list the parameters too");
  CLI::App& verifies =
      command("verify", "Reads every byte; the exit status is 1 if anything is damaged or missing.",
              kVerifyExamples);
  add_verify_flags(verifies, given.checks);
  CLI::App& diffs =
      command("diff", "Compares the tensors bit by bit; the exit status is 1 if any differs.",
              kDiffExamples);
  diffs.add_option("OTHER", given.other, "folder of the checkpoint to compare with")
      ->required()
      ->type_name("");
  for (CLI::App* app : {&inspects, &verifies, &diffs}) {
    app->add_flag("--json", given.json, "print JSON");
  }
  CLI::App& reshards =
      command("reshard",
              "Rewrites a checkpoint as another mesh would have saved it. Loading never needs "
              "this: it accepts checkpoints of any mesh.",
              kReshardExamples);
  reshards.add_option("TO", given.other, "folder in which to create step-…")
      ->required()
      ->type_name("");
  for (const Axis axis : kPrintedAxes) {
    line.integer(reshards, axis_flag(axis), given.sizes[axis], 1, 1 << 20,
                 std::string(axis_help(axis)));
  }
  CLI::App& exports =
      command("export",
              "Writes the parameters as one plain safetensors file, or as a folder that Hugging "
              "Face's from_pretrained() reads.",
              kExportExamples);
  add_export_flags(line, exports, given.exported);
  line.app().require_subcommand(1);
  return line.run(argc, argv, [&] {
    if (inspects.parsed()) return inspect(given.path, given.params, given.json);
    if (verifies.parsed()) return verify_checkpoint(given.path, given.json, given.checks);
    if (diffs.parsed()) return diff(given.path, given.other, given.json);
    if (reshards.parsed()) {
      Axes mesh;
      for (const Axis axis : kAllAxes) mesh.set_given(axis, given.sizes[axis]);
      mesh.check_replicas();
      return reshard(given.path, given.other, mesh);
    }
    given.exported.from = given.path;
    return export_checkpoint(given.exported);
  });
}

}  // namespace tessera::cli
