#pragma once

// Result of open_tokens(), for code that needs its files: verify_tokens(), `tessera data inspect`.

#include <optional>

#include "tessera/data/mapped_file.h"
#include "tessera/data/token_data.h"
#include "tessera/data/token_manifest.h"

namespace tessera::data {

// One .bin with its index and mask, if any.
struct TokenFile {
  TokenShard about;
  std::string path;  // of the .bin
  MappedFile bin, idx, mask;
  std::uint64_t data_begin = 0;  // bytes before the tokens
  int width = 2;                 // bytes per token
  bool indexed = false;          // otherwise the file is one document

  // Totals of the shards before it.
  std::uint64_t first_token = 0, first_document = 0;
  std::uint64_t open_since = 0;  // start of the document that continues at its first token

  std::uint64_t end_of(std::uint64_t document) const;  // relative to this file
  std::uint32_t token(std::uint64_t at) const;
};

// Token data in memory-mapped files.
class TokenFiles final : public TokenData {
 public:
  // `manifest` is nullopt for a single .bin. Throws DataError if the files are inconsistent.
  TokenFiles(std::string path, std::optional<TokenManifest> manifest, std::vector<TokenFile> files);

  std::string path() const override { return path_; }
  std::uint64_t tokens() const override { return tokens_; }
  std::uint64_t documents() const override { return documents_; }
  std::int64_t vocab() const override { return manifest_ ? manifest_->vocab : 0; }
  std::string fingerprint() const override { return manifest_ ? manifest_->fingerprint : ""; }
  std::uint64_t bytes_of_text() const override { return manifest_ ? manifest_->bytes_of_text : 0; }
  bool masked() const override { return manifest_ && manifest_->masked; }

  Document document(std::uint64_t number) const override;
  std::uint64_t document_at(std::uint64_t token) const override;
  void read(std::uint64_t begin, std::span<std::int64_t> out) const override;
  void read_mask(std::uint64_t begin, std::span<std::uint8_t> out) const override;

  const std::optional<TokenManifest>& manifest() const { return manifest_; }
  const std::vector<TokenFile>& files() const { return files_; }
  // Throws the DataError for an invalid `id` at token `at`.
  [[noreturn]] void refuse_id(std::uint64_t at, std::uint64_t id, std::int64_t vocab) const;

 private:
  std::size_t file_of_token(std::uint64_t token) const;
  void check_range(std::uint64_t begin, std::uint64_t count) const;

  std::string path_;
  std::optional<TokenManifest> manifest_;
  std::vector<TokenFile> files_;
  std::uint64_t tokens_ = 0, documents_ = 0;
};

}  // namespace tessera::data
