#include "tessera/data/input_list.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "tessera/core/errors.h"
#include "tessera/core/files.h"
#include "tessera/core/text.h"
#include "tessera/data/token_data.h"

namespace tessera::data {
namespace {

namespace fs = std::filesystem;

// Returns the lowercase file name without the compression extension.
std::string inner_name(const std::string& path) {
  std::string name = fs::path(path).filename().string();
  for (char& c : name) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  for (const std::string_view ending : {".gz", ".zst"}) {
    if (name.ends_with(ending)) return name.substr(0, name.size() - ending.size());
  }
  return name;
}

bool ends_in(const std::string& name, std::initializer_list<std::string_view> endings) {
  return std::any_of(endings.begin(), endings.end(),
                     [&](std::string_view ending) { return name.ends_with(ending); });
}

bool is_jsonl(const std::string& name) { return ends_in(name, {".jsonl", ".ndjson"}); }

InputFile stat_input(const std::string& path, bool named) {
  const std::string name = inner_name(path);
  if (ends_in(name, {".json", ".parquet", ".arrow", ".csv", ".tsv", ".bin", ".zip", ".bz2", ".xz",
                     ".7z", ".tar", ".tgz", ".pdf", ".docx"})) {
    throw UsageError(str(quote(path),
                         ": must be text, JSON lines (.jsonl) or a folder, each also "
                         "as .gz or .zst. Convert it to one of these first."));
  }
  // Throws if it is not a regular file.
  const Fd fd = open_regular(path, "a text, JSON lines (.jsonl) or a folder");
  struct stat about {};
  if (::fstat(fd.get(), &about) != 0) {
    throw UsageError(str("cannot stat ", quote(path), ": ", std::strerror(errno)));
  }
  return {path, is_jsonl(name), named, static_cast<std::uint64_t>(about.st_size),
          std::int64_t{about.st_mtim.tv_sec} * 1'000'000'000 + about.st_mtim.tv_nsec};
}

void list_folder(const fs::path& folder, const fs::path& out, InputList& list) {
  std::vector<fs::directory_entry> entries;
  std::error_code error;
  fs::directory_iterator all(folder, error);
  if (error) {
    throw UsageError(str("cannot list ", quote(folder.string()), ": ", error.message()));
  }
  for (const fs::directory_entry& entry : all) entries.push_back(entry);
  std::sort(entries.begin(), entries.end());
  for (const fs::directory_entry& entry : entries) {
    if (entry.path().filename().string().starts_with(".") || entry.is_symlink(error)) continue;
    if (entry.is_directory(error)) {
      if (fs::equivalent(entry.path(), out, error) || is_token_data(entry.path().string()))
        continue;
      list_folder(entry.path(), out, list);
      continue;
    }
    const std::string name = inner_name(entry.path().string());
    const bool text = ends_in(name, {".txt", ".text", ".md"});
    if (!entry.is_regular_file(error) || !(text || is_jsonl(name))) {
      ++list.left_out;
      continue;
    }
    list.files.push_back(stat_input(entry.path().string(), false));
  }
}

}  // namespace

InputList list_inputs(const std::vector<std::string>& inputs, const std::string& out) {
  if (inputs.empty()) throw UsageError("no input; give files or folders");
  InputList list;
  for (const std::string& input : inputs) {
    std::error_code error;
    if (!fs::is_directory(input, error)) {
      list.files.push_back(stat_input(input, true));
      continue;
    }
    const std::size_t before = list.files.size();
    const std::uint64_t left_out = list.left_out;
    list_folder(input, out, list);
    if (list.files.size() > before) continue;
    const std::uint64_t others = list.left_out - left_out;
    throw UsageError(
        str(quote(input), " contains no text files",
            others > 0 ? str(", but ", others, others == 1 ? " other file" : " other files") : "",
            "; they must end in .txt, .text, .md, .jsonl or .ndjson, each also with .gz or .zst"));
  }
  for (const InputFile& file : list.files) list.bytes += file.bytes;
  return list;
}

}  // namespace tessera::data
