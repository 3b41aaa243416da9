#include "tessera/data/token_data.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/files.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/core/utf8.h"
#include "tessera/data/mapped_file.h"
#include "tessera/data/token_files.h"
#include "tessera/data/tokenizer.h"

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
  // No overflow: a manifest has at most kMaxTokens.
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

namespace {

// Enough to recognize files that are not text.
constexpr std::size_t kCheckedBytes = 16 << 20;

// Without this check a model would be trained on images or archives without an error.
void refuse_binary(std::span<const unsigned char> bytes, const std::string& path) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()),
                              std::min(bytes.size(), kCheckedBytes));
  const std::size_t at = std::min(text.find('\0'), utf8_valid_until(text));
  // The checked part may end inside of a character.
  if (at == text.size() || utf8_sequence(text, at).kind == Utf8Sequence::Kind::truncated) return;
  throw DataError(str("--data: ", quote(path), " is not text: the byte at offset ", at, " is 0x",
                      hex(bytes[at], 2), bytes[at] == 0 ? "" : ", which is not UTF-8 there",
                      "; must be UTF-8 text (iconv converts other encodings)"));
}

class TextTokens final : public TokenData {
 public:
  explicit TextTokens(std::string path)
      : path_(std::move(path)),
        file_(open_regular(path_,
                           "synthetic or a text file, a .bin of tokens, or a folder that tessera "
                           "data prepare has finished",
                           "--data"),
              path_) {
    refuse_binary(bytes(), path_);
  }

  std::string path() const override { return path_; }
  std::uint64_t tokens() const override { return file_.size(); }
  std::uint64_t documents() const override { return file_.size() > 0 ? 1 : 0; }
  std::int64_t vocab() const override { return 256; }
  std::string fingerprint() const override { return byte_tokenizer()->fingerprint(); }
  std::uint64_t bytes_of_text() const override { return file_.size(); }
  bool masked() const override { return false; }
  Document document(std::uint64_t) const override { return {0, file_.size()}; }
  std::uint64_t document_at(std::uint64_t) const override { return 0; }
  void read(std::uint64_t begin, std::span<std::int64_t> out) const override {
    const auto from = bytes().subspan(begin, out.size());
    std::copy(from.begin(), from.end(), out.begin());
  }
  void read_mask(std::uint64_t, std::span<std::uint8_t> out) const override {
    std::fill(out.begin(), out.end(), std::uint8_t{1});
  }

 private:
  std::span<const unsigned char> bytes() const {
    return {reinterpret_cast<const unsigned char*>(file_.bytes().data()), file_.bytes().size()};
  }

  std::string path_;
  MappedFile file_;
};

// Tokens [begin, end) of other data, at document borders if there are several documents.
class PartOfTokens final : public TokenData {
 public:
  PartOfTokens(std::shared_ptr<const TokenData> all, std::uint64_t begin, std::uint64_t end)
      : all_(std::move(all)), begin_(begin), end_(end), first_(all_->document_at(begin)) {
    documents_ = all_->document_at(end - 1) - first_ + 1;
  }

  std::string path() const override { return all_->path(); }
  std::uint64_t tokens() const override { return end_ - begin_; }
  std::uint64_t documents() const override { return documents_; }
  std::int64_t vocab() const override { return all_->vocab(); }
  std::string fingerprint() const override { return all_->fingerprint(); }
  std::uint64_t bytes_of_text() const override {
    const double share = static_cast<double>(tokens()) / static_cast<double>(all_->tokens());
    return static_cast<std::uint64_t>(
        std::llround(share * static_cast<double>(all_->bytes_of_text())));
  }
  bool masked() const override { return all_->masked(); }
  Document document(std::uint64_t number) const override {
    const Document whole = all_->document(first_ + number);
    return {std::max(whole.begin, begin_) - begin_, std::min(whole.end, end_) - begin_};
  }
  std::uint64_t document_at(std::uint64_t token) const override {
    return all_->document_at(begin_ + token) - first_;
  }
  void read(std::uint64_t begin, std::span<std::int64_t> out) const override {
    all_->read(begin_ + begin, out);
  }
  void read_mask(std::uint64_t begin, std::span<std::uint8_t> out) const override {
    all_->read_mask(begin_ + begin, out);
  }

 private:
  std::shared_ptr<const TokenData> all_;
  std::uint64_t begin_, end_, first_;
  std::uint64_t documents_ = 0;
};

}  // namespace

std::shared_ptr<const TokenData> text_tokens(const std::string& path) {
  return std::make_shared<TextTokens>(path);
}

SplitTokens split(const std::shared_ptr<const TokenData>& data, double fraction) {
  const std::uint64_t all = data->tokens();
  std::uint64_t at =
      all -
      std::min(all, static_cast<std::uint64_t>(std::llround(fraction * static_cast<double>(all))));
  if (data->documents() > 1 && at < all) {
    const Document there = data->document(data->document_at(at));
    at = there.begin > 0 ? there.begin : there.end;
  }
  if (at == 0 || at >= all) {
    throw DataError(str("--val-fraction: got ", fraction, ", but ", quote(data->path()), " has ",
                        plural(static_cast<std::int64_t>(data->documents()), "document"), " and ",
                        plural(static_cast<std::int64_t>(all), "token"),
                        ", which leaves one side empty. Use another fraction, or --val-data."));
  }
  return {std::make_shared<PartOfTokens>(data, 0, at),
          std::make_shared<PartOfTokens>(data, at, all)};
}

}  // namespace tessera::data
