#include "tessera/checkpoint/step_folder.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <optional>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::checkpoint {
namespace {

constexpr std::string_view kStep = "step-";
constexpr std::string_view kTemporary = ".tmp-step-";
constexpr std::string_view kRemoved = ".old-step-";
constexpr std::string_view kProbe = ".try-";

// Returns the step if `name` is `prefix` and a number in the format of folder_name().
std::optional<std::int64_t> step_of(std::string_view name, std::string_view prefix) {
  if (name.substr(0, prefix.size()) != prefix) return std::nullopt;
  const std::string_view digits = name.substr(prefix.size());
  std::int64_t step = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (error != std::errc{} || end != digits.data() + digits.size() || step < 0) return std::nullopt;
  if (folder_name(step).substr(kStep.size()) != digits) return std::nullopt;
  return step;
}

std::string temporary_path(const std::string& dir, std::int64_t step) {
  return str(dir, "/.tmp-", folder_name(step));
}

std::string removed_path(const std::string& dir, std::int64_t step) {
  return str(dir, "/.old-", folder_name(step));
}

// Renames it first, so that a partially removed checkpoint is never read.
void remove_checkpoint(FileSystem& files, const std::string& dir, std::int64_t step) {
  const std::string away = removed_path(dir, step);
  files.rename(str(dir, "/", folder_name(step)), away);
  remove_tree(files, away);
}

void remove_leftover(FileSystem& files, const std::string& path, const Warn& warn) {
  try {
    remove_tree(files, path);
  } catch (const DataError& error) {
    if (warn) warn(str(path, " is no longer needed but stays: ", error.what()));
  }
}

}  // namespace

std::string folder_name(std::int64_t step) {
  char digits[24];
  std::snprintf(digits, sizeof(digits), "%08lld", static_cast<long long>(step));
  return std::string(kStep) + digits;
}

std::string shard_file_name(int rank) {
  char text[40];
  std::snprintf(text, sizeof(text), "rank-%05d.safetensors", rank);
  return text;
}

std::vector<std::int64_t> steps_in(FileSystem& files, const std::string& dir) {
  std::vector<std::int64_t> steps;
  if (!files.exists(dir + "/.")) return steps;  // does not exist, or is not a folder
  for (const std::string& name : files.list(dir)) {
    if (const auto step = step_of(name, kStep)) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

void try_folder(FileSystem& files, const std::string& dir) {
  files.make_folder(dir);
  const std::string draft = str(dir, "/", kProbe, ::getpid()), done = draft + "-done";
  try {
    files.remove(draft);  // left by a dead process with the same pid
    write_text(files, draft, std::string(kPageBytes, 'x'));
    files.rename(draft, done);
    files.sync_folder(dir);
  } catch (const DataError&) {
    try {
      files.remove(draft);
      files.remove(done);
    } catch (const DataError&) {  // report the first error
    }
    throw;
  }
  files.remove(done);
}

std::string begin_folder(FileSystem& files, const std::string& dir, std::int64_t step,
                         const Warn& warn) {
  files.make_folder(dir);
  const std::string path = temporary_path(dir, step);
  for (const std::string& name : files.list(dir)) {
    const std::string left = dir + "/" + name;
    if (left == path) {
      remove_tree(files, left);  // same name as the new folder
    } else if (step_of(name, kTemporary) || step_of(name, kRemoved) || name.starts_with(kProbe)) {
      remove_leftover(files, left, warn);
    }
  }
  files.make_folder(path);
  return path;
}

std::string publish_folder(FileSystem& files, const std::string& dir, const Manifest& manifest,
                           const Warn& warn) {
  const std::string temporary = temporary_path(dir, manifest.about.step);
  const std::string final_path = str(dir, "/", folder_name(manifest.about.step));
  try {
    check_complete(manifest, final_path);
  } catch (const DataError& error) {
    throw UsageError(error.what());  // an error of the caller, not of the disk
  }
  write_text(files, temporary + "/" + kManifestName, to_text(manifest));
  files.sync_folder(temporary);
  const std::string old =
      put_in_place(files, temporary, final_path, removed_path(dir, manifest.about.step));
  files.sync_folder(dir);
  if (!old.empty()) remove_leftover(files, old, warn);
  return final_path;
}

void apply_retention(FileSystem& files, const std::string& dir, std::int64_t step,
                     const Retention& retention) {
  if (retention.keep_last < 0 || retention.keep_every < 0) {
    throw UsageError(str("keep_last is ", retention.keep_last, " and keep_every is ",
                         retention.keep_every, "; both must be 0 or more"));
  }
  if (retention.keep_last == 0) return;
  std::vector<std::int64_t> steps = steps_in(files, dir);
  // Keeps later steps: they belong to a run that was rolled back.
  steps.erase(std::upper_bound(steps.begin(), steps.end(), step), steps.end());
  const auto keep = static_cast<std::size_t>(retention.keep_last);
  for (std::size_t i = 0; i + keep < steps.size(); ++i) {
    if (retention.keep_every > 0 && steps[i] % retention.keep_every == 0) continue;
    remove_checkpoint(files, dir, steps[i]);
  }
}

}  // namespace tessera::checkpoint
