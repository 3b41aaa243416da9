#include "tessera/checkpoint/hashes.h"

#include <algorithm>
#include <map>
#include <set>

#include "tessera/checkpoint/buffer.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::checkpoint {
namespace {

constexpr std::int64_t kHashBytes = std::int64_t{4} << 20;  // bytes per read
constexpr std::size_t kDigits = 64;

std::string base_name(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path.substr(path.rfind('/') + 1);
}

bool is_hash(std::string_view text) {
  return text.size() == kDigits && text.find_first_not_of("0123456789abcdef") == text.npos;
}

}  // namespace

std::vector<FileHash> hash_files(const Checkpoint& from, FileSystem& files,
                                 const BytesDone& progress) {
  std::vector<std::string> names = {kManifestName};
  for (const StoredFile& file : from.manifest().files) names.push_back(file.name);
  std::vector<FileHash> hashes;
  const Charge uncharged;
  Buffer buffer(uncharged);
  std::int64_t done = 0;
  for (const std::string& name : names) {
    const std::unique_ptr<File> file = files.open(from.folder() + "/" + name);
    const std::int64_t size = file->size();
    Sha256 hash;
    for (std::int64_t at = 0; at < size; at += kHashBytes) {
      const std::int64_t bytes = std::min(kHashBytes, size - at);
      std::byte* const into = buffer.get(bytes);
      file->read(at, into, bytes);
      hash.add(into, static_cast<std::size_t>(bytes));
      done += bytes;
      if (progress) progress(done);
    }
    hashes.push_back({name, hash.finish()});
  }
  return hashes;
}

std::string to_text(const std::vector<FileHash>& hashes) {
  std::string text;
  for (const FileHash& each : hashes)
    text += str(tessera::to_hex(each.hash), "  ", each.name, "\n");
  return text;
}

std::vector<ListedHash> parse_hashes(std::string_view text, const std::string& where) {
  std::vector<ListedHash> listed;
  std::set<std::string> paths;
  int number = 0;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == text.npos ? text.size() : end + 1);
    ++number;
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (line.empty()) continue;
    // Two spaces, or a space and a star for binary files.
    if (line.size() < kDigits + 3 || !is_hash(line.substr(0, kDigits)) || line[kDigits] != ' ' ||
        (line[kDigits + 1] != ' ' && line[kDigits + 1] != '*')) {
      throw DataError(str(where, ", line ", number, ": got ", quote(line),
                          "; must be 64 digits of a SHA-256 hash, two spaces and a name, as "
                          "written by sha256sum and `tessera checkpoint verify --sha256`"));
    }
    std::string path(line.substr(kDigits + 2));
    while (path.starts_with("./")) path.erase(0, 2);
    if (path.empty()) throw DataError(str(where, ", line ", number, ": the hash has no file name"));
    if (!paths.insert(path).second) {
      throw DataError(str(where, ", line ", number, ": ", quote(path), " appears twice"));
    }
    listed.push_back({std::move(path), std::string(line.substr(0, kDigits))});
  }
  return listed;
}

std::vector<std::string> compare_hashes(const std::vector<FileHash>& have,
                                        const std::vector<ListedHash>& listed,
                                        const std::string& folder, const std::string& where) {
  std::map<std::string, std::string> expected;
  std::vector<std::string> problems;
  for (const ListedHash& each : listed) {
    const std::size_t slash = each.path.rfind('/');
    if (slash != std::string::npos && base_name(each.path.substr(0, slash)) != base_name(folder)) {
      continue;
    }
    const auto [at, inserted] = expected.emplace(base_name(each.path), each.hex);
    if (!inserted && at->second != each.hex) {
      problems.push_back(str(where, " has two hashes of ", at->first));
    }
  }
  if (expected.empty()) {
    return {str(where, " has no hash of ", folder, ": it belongs to another checkpoint")};
  }
  for (const FileHash& each : have) {
    const auto found = expected.find(each.name);
    const std::string hex = tessera::to_hex(each.hash);
    if (found == expected.end()) {
      problems.push_back(str(folder, "/", each.name, " is not in ", where));
      continue;
    }
    if (found->second != hex) {
      problems.push_back(str(folder, "/", each.name, " was changed: its SHA-256 is ", hex,
                             ", expected ", found->second));
    }
    expected.erase(found);
  }
  for (const auto& [name, hex] : expected) {
    problems.push_back(str(folder, "/", name, " is in ", where, " but not in the checkpoint"));
  }
  return problems;
}

}  // namespace tessera::checkpoint
