#include "tessera/data/token_data.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "tessera/core/errors.h"
#include "tessera/core/files.h"
#include "tessera/core/text.h"
#include "tessera/data/token_files.h"

namespace tessera::data {
namespace {

// Header of a .bin of llm.c: magic number, version, number of tokens.
constexpr std::size_t kHeaderNumbers = 256;
struct BinKind {
  std::int32_t magic, version;
  int width;
};
constexpr std::array<BinKind, 2> kBinKinds = {{{20240520, 1, 2}, {20240801, 7, 4}}};

bool is_token_folder(const std::string& path) {
  struct stat about {};
  return ::stat(path.c_str(), &about) == 0 && S_ISDIR(about.st_mode);
}

[[noreturn]] void refuse_size(const std::string& path, std::uint64_t got, std::uint64_t wanted,
                              const std::string& what) {
  throw DataError(str(quote(path), " has ", got, " bytes, expected ", wanted, " for ", what,
                      ": it ", got < wanted ? "was truncated" : "was changed",
                      ". Copy it again, or prepare it again."));
}

TokenFile open_shard(const std::string& folder, const TokenManifest& manifest,
                     const TokenShard& about) {
  TokenFile file;
  file.about = about;
  file.path = str(folder, "/", about.name, ".bin");
  file.width = manifest.bytes_per_token;
  file.indexed = true;
  const auto map = [&](const char* ending, std::uint64_t wanted, const std::string& what) {
    const std::string path = str(folder, "/", about.name, ending);
    MappedFile mapped = map_file_of_folder(path);
    if (mapped.size() != wanted) refuse_size(path, mapped.size(), wanted, what);
    return mapped;
  };
  const std::string tokens = str(about.tokens, " tokens");
  // No overflow: a manifest has at most kMostTokens.
  file.bin = map(".bin", about.tokens * static_cast<std::uint64_t>(file.width), tokens);
  file.idx = map(".idx", about.documents * 8, str(about.documents, " documents"));
  if (manifest.masked) file.mask = map(".mask", (about.tokens + 7) / 8, tokens);
  return file;
}

TokenFile open_bin(const std::string& path) {
  TokenFile file;
  file.path = path;
  file.bin = MappedFile(open_regular(path, "a folder of tokens, or a .bin"), path);
  const std::uint64_t size = file.bin.size();
  std::array<std::int32_t, 3> header{};
  if (size >= sizeof header) std::memcpy(header.data(), file.bin.bytes().data(), sizeof header);
  for (const BinKind& kind : kBinKinds) {
    if (header[0] != kind.magic) continue;
    file.data_begin = kHeaderNumbers * sizeof(std::int32_t);
    file.width = kind.width;
    if (header[1] != kind.version) {
      throw DataError(str(quote(path), " has the version ", header[1], ", must be ", kind.version,
                          " for the magic number ", kind.magic));
    }
    const auto tokens = static_cast<std::uint64_t>(std::max(header[2], 0));
    const std::uint64_t wanted = file.data_begin + tokens * static_cast<std::uint64_t>(kind.width);
    if (header[2] < 0 || size != wanted) {
      refuse_size(path, size, wanted,
                  str("a header and the ", header[2], " tokens that it declares"));
    }
  }
  const auto width = static_cast<std::uint64_t>(file.width);
  if (size % width != 0) {
    throw DataError(str(quote(path), " has ", size, " bytes, must be two per token"));
  }
  file.about.tokens = (size - file.data_begin) / width;
  if (file.about.tokens == 0) throw DataError(str(quote(path), " has no tokens"));
  file.about.documents = 1;
  return file;
}

}  // namespace

bool is_token_data(const std::string& path) {
  struct stat about {};
  if (is_token_folder(path)) return ::stat(str(path, "/", kTokensName).c_str(), &about) == 0;
  return path.ends_with(".bin") && ::stat(path.c_str(), &about) == 0 && S_ISREG(about.st_mode);
}

std::unique_ptr<TokenData> open_tokens(const std::string& path) {
  if (!is_token_folder(path)) {
    std::vector<TokenFile> files;
    files.push_back(open_bin(path));
    return std::make_unique<TokenFiles>(path, std::nullopt, std::move(files));
  }
  struct stat about {};
  if (::stat(str(path, "/", kTokensName).c_str(), &about) != 0) {
    if (::stat(str(path, "/", kPreparingName).c_str(), &about) == 0) {
      throw DataError(str(quote(path), " is unfinished: it has ", kPreparingName, " and no ",
                          kTokensName,
                          "; run the same `tessera data prepare` again to "
                          "resume it"));
    }
    throw UsageError(str(quote(path), " has no ", kTokensName,
                         "; must be a folder written by `tessera data prepare`, or a .bin"));
  }
  TokenManifest manifest = read_token_manifest(path);
  std::vector<TokenFile> files;
  for (const TokenShard& shard : manifest.shards) {
    files.push_back(open_shard(path, manifest, shard));
  }
  return std::make_unique<TokenFiles>(path, std::move(manifest), std::move(files));
}

}  // namespace tessera::data
