#include "tessera/cli/checkpoint_verify.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tessera/checkpoint/hashes.h"
#include "tessera/cli/commands.h"
#include "tessera/cli/json_output.h"
#include "tessera/core/errors.h"
#include "tessera/core/files.h"
#include "tessera/core/log.h"
#include "tessera/core/publish.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using checkpoint::Checkpoint;

// Returns the folders in `path` that have checkpoints, to suggest them if `path` is one level too
// high.
std::vector<std::string> runs_in(const std::string& path) {
  const auto files = checkpoint::local_files();
  std::vector<std::string> runs;
  std::error_code ignored;
  for (const std::string& name : files->list(path)) {
    const std::string inner = (fs::path(path) / name).string();
    if (fs::is_directory(inner, ignored) && !checkpoint::steps_in(*files, inner).empty()) {
      runs.push_back(inner);
    }
  }
  return runs;
}

// Throws UsageError for a path that is neither a checkpoint nor the folder of a run.
[[noreturn]] void refuse_path(const std::string& path) {
  std::error_code ignored;
  if (path.empty()) throw UsageError("got \"\"; must be the folder of a checkpoint or of a run");
  const fs::path here(path);
  const fs::path parent = here.has_parent_path() ? here.parent_path() : fs::path(".");
  if (!fs::exists(here, ignored)) {
    std::vector<std::string> names;
    if (fs::is_directory(parent, ignored)) names = checkpoint::local_files()->list(parent.string());
    std::string suggestion = did_you_mean(here.filename().string(), names);
    std::erase_if(names, [](const std::string& name) { return !name.starts_with("step-"); });
    if (suggestion.empty() && !names.empty() && here.filename().string().starts_with("step")) {
      suggestion =
          str("; there are ", names.size(), ", from ", names.front(), " to ", names.back());
    }
    throw UsageError(str(path, ": there is no such folder", suggestion));
  }
  const bool of_checkpoint = fs::exists(parent / checkpoint::kManifestName, ignored);
  throw UsageError(str(path, " is ", kind_of_file(path),
                       "; must be the folder of a checkpoint or of a run",
                       of_checkpoint ? str("; did you mean ", parent.string(), "?") : ""));
}

std::vector<checkpoint::ListedHash> read_list(const std::string& path) {
  constexpr std::int64_t kMaxBytes = std::int64_t{256} << 20;
  try {
    return checkpoint::parse_hashes(read_small_file(path, kMaxBytes, "a list of SHA-256 hashes"),
                                    path);
  } catch (const UsageError& error) {
    throw UsageError(Flag("against"), error.what());
  }
}

}  // namespace

Checkpoint open_checkpoint(const std::string& path, bool with_files) {
  const auto files = checkpoint::local_files();
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) refuse_path(path);
  if (files->exists(path + "/" + checkpoint::kManifestName)) {
    Checkpoint from(path);
    if (with_files) from.check_files();
    return from;
  }
  const checkpoint::Latest latest = checkpoint::find_latest(path);
  for (const std::string& line : latest.skipped) write_all(2, line + "\n");
  if (!latest.folder.empty()) return Checkpoint(latest.folder);
  const std::vector<std::string> runs =
      latest.skipped.empty() ? runs_in(path) : std::vector<std::string>{};
  throw DataError(str(path, " has no readable checkpoint: no ", checkpoint::kManifestName,
                      ", and no step-… with one",
                      runs.empty() ? "" : str("; did you mean ", join(runs, " or "), "?")));
}

MegabyteBar::MegabyteBar(const std::string& label, std::int64_t total) {
  ProgressOptions options;
  options.label = label;
  options.unit = "MB";
  // Without a terminal, log progress only if it takes longer than this.
  options.plain_least = 5;
  bar_.emplace(std::max<std::int64_t>(1, total / kMega), options);
}

int verify_checkpoint(const std::string& path, bool json, const VerifyOptions& options) {
  if (!options.out.empty() && !options.sha256) {
    throw UsageError(Flag("out"), "needs --sha256, whose hashes it writes");
  }
  std::vector<checkpoint::ListedHash> listed;
  if (!options.against.empty()) listed = read_list(options.against);
  if (!options.out.empty()) check_publishable(options.out, "--out");
  Checkpoint from = open_checkpoint(path, false);  // missing files are reported as problems
  std::vector<std::string> problems;
  {
    MegabyteBar bar("verifying", from.bytes());
    problems = from.verify(bar.function());
  }
  std::vector<checkpoint::FileHash> hashes;
  if (problems.empty() && (options.sha256 || !options.against.empty())) {
    MegabyteBar bar("hashing", from.bytes());
    hashes = checkpoint::hash_files(from, *checkpoint::local_files(), bar.function());
    if (!options.against.empty()) {
      problems = checkpoint::compare_hashes(hashes, listed, from.folder(), options.against);
    }
  }
  const bool good = problems.empty();
  const std::string list = options.sha256 && good ? checkpoint::to_text(hashes) : "";
  if (!options.out.empty() && good) publish(options.out, list);
  if (json) {
    Json out = {{"folder", from.folder()},
                {"step", from.about().step},
                {"bytes", from.bytes()},
                {"good", good},
                {"problems", problems}};
    for (const checkpoint::FileHash& each : hashes) out["sha256"][each.name] = to_hex(each.hash);
    const int printed = print_out(json_text(out));
    return good ? printed : 1;
  }
  if (!good) {
    print_out(str(from.folder(), ": BAD\n  ", visible_lines(join(problems, "\n  ")), "\n"));
    return 1;
  }
  std::string report = str(from.folder(), ": good, ",
                           plural(static_cast<std::int64_t>(from.manifest().files.size()), "file"),
                           " with ", format_bytes(from.bytes()),
                           options.against.empty() ? "" : str(", as listed in ", options.against));
  if (!options.out.empty()) report += str("; hashes: ", options.out);
  const bool prints_list = options.sha256 && options.out.empty();
  // Stdout gets only the list, so that it can be redirected.
  if (!prints_list) return print_out(report + "\n");
  const int printed = print_out(list);
  write_all(2, report + "\n");
  return printed;
}

}  // namespace tessera::cli
