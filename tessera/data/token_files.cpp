#include "tessera/data/token_files.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "tessera/checkpoint/checksum.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/data/tokenizer.h"

namespace tessera::data {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

// Widens ids and returns the largest, in one vectorizable pass.
template <typename Stored>
std::uint32_t widen(const std::byte* from, std::span<std::int64_t> out) {
  Stored largest = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    Stored id;
    std::memcpy(&id, from + i * sizeof(Stored), sizeof(Stored));
    largest = std::max(largest, id);
    out[i] = id;
  }
  return largest;
}

}  // namespace

std::uint64_t TokenFile::end_of(std::uint64_t document) const {
  if (!indexed) return about.tokens;
  std::uint64_t end;
  std::memcpy(&end, idx.bytes().data() + 8 * document, 8);
  return end;
}

std::uint32_t TokenFile::token(std::uint64_t at) const {
  std::uint32_t id = 0;
  const auto bytes = static_cast<std::size_t>(width);
  std::memcpy(&id, bin.bytes().data() + data_begin + at * bytes, bytes);
  return id;
}

TokenFiles::TokenFiles(std::string path, std::optional<TokenManifest> manifest,
                       std::vector<TokenFile> files)
    : path_(std::move(path)), manifest_(std::move(manifest)), files_(std::move(files)) {
  std::uint64_t open_since = 0;
  for (TokenFile& file : files_) {
    file.first_token = tokens_;
    file.first_document = documents_;
    file.open_since = open_since;
    tokens_ += file.about.tokens;
    documents_ += file.about.documents;
    if (file.about.documents == 0) continue;
    const std::uint64_t last = file.end_of(file.about.documents - 1);
    if (last > file.about.tokens) {
      throw DataError(str(quote(file.path), ": its index has a document that ends at token ", last,
                          ", but it has ", file.about.tokens, " tokens"));
    }
    open_since = file.first_token + last;
  }
  if (open_since != tokens_) {
    throw DataError(str(quote(path_), ": the last document ends at token ", open_since, " of ",
                        tokens_, ": the index is truncated"));
  }
}

std::size_t TokenFiles::file_of_token(std::uint64_t token) const {
  const auto after = std::upper_bound(
      files_.begin(), files_.end(), token,
      [](std::uint64_t at, const TokenFile& file) { return at < file.first_token; });
  return static_cast<std::size_t>(after - files_.begin()) - 1;
}

void TokenFiles::check_range(std::uint64_t begin, std::uint64_t count) const {
  if (begin > tokens_ || count > tokens_ - begin) {
    throw UsageError(str("tokens ", begin, " to ", begin + count, " of ", quote(path_),
                         ", which has ", tokens_));
  }
}

Document TokenFiles::document(std::uint64_t number) const {
  if (number >= documents_) {
    throw UsageError(str("document ", number, " of ", quote(path_), ", which has ", documents_));
  }
  // The last file whose first_document is at most `number`: files without documents share the value
  // of the next one.
  const auto after = std::upper_bound(
      files_.begin(), files_.end(), number,
      [](std::uint64_t at, const TokenFile& file) { return at < file.first_document; });
  const TokenFile& file = *(after - 1);
  const std::uint64_t local = number - file.first_document;
  const std::uint64_t end = file.end_of(local);
  const std::uint64_t begin =
      local == 0 ? file.open_since : file.first_token + file.end_of(local - 1);
  if (end > file.about.tokens || begin >= file.first_token + end) {
    throw DataError(str(quote(file.path), ": its index has document ", number, " from token ",
                        begin, " to ", file.first_token + end, " of ", tokens_,
                        ": it was changed; run `tessera data verify`"));
  }
  return {begin, file.first_token + end};
}

std::uint64_t TokenFiles::document_at(std::uint64_t token) const {
  check_range(token, 1);
  const TokenFile& file = files_[file_of_token(token)];
  std::uint64_t low = 0, high = file.about.documents;  // first document that ends after the token
  while (low < high) {
    const std::uint64_t middle = low + (high - low) / 2;
    if (file.end_of(middle) > token - file.first_token) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  const std::uint64_t number = file.first_document + low;
  const Document found = number < documents_ ? document(number) : Document{};
  if (token < found.begin || token >= found.end) {
    throw DataError(str(quote(file.path), ": its index has no document at token ", token,
                        ": it was changed; run `tessera data verify`"));
  }
  return number;
}

void TokenFiles::refuse_id(std::uint64_t at, std::uint64_t id, std::int64_t vocab) const {
  const std::uint64_t number = document_at(at);
  const TokenFile& file = files_[file_of_token(at)];
  throw DataError(str(quote(file.path), ": token ", at - document(number).begin, " of document ",
                      number, " (", at, " of all) is ", id,
                      ", must be less than the vocabulary of ", vocab,
                      ": it was made for another tokenizer, or changed"));
}

void TokenFiles::read(std::uint64_t begin, std::span<std::int64_t> out) const {
  check_range(begin, out.size());
  for (std::size_t which = out.empty() ? 0 : file_of_token(begin); !out.empty(); ++which) {
    const TokenFile& file = files_[which];
    const std::uint64_t local = begin - file.first_token;
    const auto count =
        static_cast<std::size_t>(std::min<std::uint64_t>(out.size(), file.about.tokens - local));
    const std::byte* const from =
        file.bin.bytes().data() + file.data_begin + local * static_cast<std::uint64_t>(file.width);
    const auto part = out.first(count);
    const std::uint32_t largest =
        file.width == 2 ? widen<std::uint16_t>(from, part) : widen<std::uint32_t>(from, part);
    if (vocab() != 0 && largest >= vocab()) {
      const auto bad =
          std::find_if(part.begin(), part.end(), [&](std::int64_t id) { return id >= vocab(); });
      refuse_id(begin + static_cast<std::uint64_t>(bad - part.begin()),
                static_cast<std::uint64_t>(*bad), vocab());
    }
    out = out.subspan(count);
    begin += count;
  }
}

void TokenFiles::read_mask(std::uint64_t begin, std::span<std::uint8_t> out) const {
  check_range(begin, out.size());
  if (!masked()) {
    std::fill(out.begin(), out.end(), std::uint8_t{1});
    return;
  }
  for (std::size_t which = out.empty() ? 0 : file_of_token(begin); !out.empty(); ++which) {
    const TokenFile& file = files_[which];
    const std::uint64_t local = begin - file.first_token;
    const auto count =
        static_cast<std::size_t>(std::min<std::uint64_t>(out.size(), file.about.tokens - local));
    const std::byte* const bits = file.mask.bytes().data();
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint64_t at = local + i;
      out[i] = static_cast<std::uint8_t>(static_cast<unsigned>(bits[at / 8]) >> (at % 8) & 1u);
    }
    out = out.subspan(count);
    begin += count;
  }
}

std::unique_ptr<Tokenizer> tokenizer_of(const TokenData& data) {
  const auto* const files = dynamic_cast<const TokenFiles*>(&data);
  if (files == nullptr || !files->manifest()) return nullptr;
  auto tokenizer =
      files->manifest()->tokenizer == "bytes" ? byte_tokenizer() : load_tokenizer(data.path());
  if (tokenizer->fingerprint() != data.fingerprint()) {
    throw DataError(str("the tokenizer in ", quote(data.path()), " has the fingerprint ",
                        tokenizer->fingerprint(), ", expected ", data.fingerprint(),
                        ": the tokens were made with other tokenizer files"));
  }
  return tokenizer;
}

namespace {

constexpr std::uint64_t kVerifiedAtOnce = std::uint64_t{1} << 20;  // bytes, or tokens

void check_token_file(const MappedFile& file, const std::string& path, std::uint32_t wanted,
                      const std::function<void(std::uint64_t)>& done) {
  std::uint32_t crc = 0;
  for (auto rest = file.bytes(); !rest.empty();) {
    const auto part = rest.first(std::min<std::size_t>(rest.size(), kVerifiedAtOnce));
    crc = checkpoint::crc32c(part.data(), part.size(), crc);
    rest = rest.subspan(part.size());
    done(part.size());
  }
  if (crc != wanted) {
    throw DataError(str(quote(path), " has the checksum ", checkpoint::to_hex({crc}), ", expected ",
                        checkpoint::to_hex({wanted}),
                        ": its bytes were changed. Copy it again, or prepare it again."));
  }
}

void check_token_index(const TokenFiles& data, const TokenFile& file) {
  std::uint64_t last = 0;
  for (std::uint64_t i = 0; i < file.about.documents; ++i) {
    const std::uint64_t end = file.end_of(i);
    if (end > file.about.tokens || end <= last) {
      throw DataError(str(quote(file.path), ": its index has document ", file.first_document + i,
                          " end at token ", end, ", must be more than ", last, " and at most ",
                          file.about.tokens));
    }
    last = end;
  }
  const std::uint64_t bits = file.about.tokens % 8;
  if (data.masked() && bits != 0 &&
      std::to_integer<unsigned>(file.mask.bytes().back()) >> bits != 0) {
    throw DataError(str(quote(file.path), ": its mask has bits after the last token"));
  }
}

// Checks each id without widening it.
template <typename Stored>
void check_token_ids(const TokenFiles& data, const TokenFile& file, std::int64_t vocab) {
  for (std::uint64_t at = 0; at < file.about.tokens; at += kVerifiedAtOnce) {
    const std::uint64_t end = std::min(file.about.tokens, at + kVerifiedAtOnce);
    const std::byte* const ids = file.bin.bytes().data() + file.data_begin;
    Stored largest = 0;
    for (std::uint64_t i = at; i < end; ++i) {
      Stored id;
      std::memcpy(&id, ids + i * sizeof(Stored), sizeof(Stored));
      largest = std::max(largest, id);
    }
    if (largest < vocab) continue;
    while (file.token(at) < vocab) ++at;
    data.refuse_id(file.first_token + at, file.token(at), vocab);
  }
}

// Views (--val-fraction) have no files of their own; only their ids are checked.
void check_ids_of_view(const TokenData& data, std::int64_t vocab,
                       const std::function<void(std::uint64_t)>& report) {
  if (vocab == 0) return;
  std::vector<std::int64_t> ids(std::size_t{1} << 16);
  for (std::uint64_t at = 0; at < data.tokens(); at += ids.size()) {
    const auto count =
        static_cast<std::size_t>(std::min<std::uint64_t>(ids.size(), data.tokens() - at));
    const std::span<std::int64_t> part(ids.data(), count);
    data.read(at, part);
    const auto bad =
        std::find_if(part.begin(), part.end(), [&](std::int64_t id) { return id >= vocab; });
    if (bad != part.end()) {
      const std::uint64_t token = at + static_cast<std::uint64_t>(bad - part.begin());
      const std::uint64_t number = data.document_at(token);
      throw DataError(str(quote(data.path()), ": token ", token - data.document(number).begin,
                          " of document ", number, " of this part is ", *bad,
                          ", must be less than the vocabulary of ", vocab,
                          ": it was made for another tokenizer, or changed"));
    }
    if (report) report(at + count);
  }
}

}  // namespace

void verify_tokens(const TokenData& data, std::int64_t vocab,
                   const std::function<void(std::uint64_t)>& report) {
  if (vocab == 0) vocab = data.vocab();
  const auto* const files = dynamic_cast<const TokenFiles*>(&data);
  if (files == nullptr) return check_ids_of_view(data, vocab, report);
  std::uint64_t bytes = 0;
  const auto done = [&](std::uint64_t more) {
    bytes += more;
    if (report) report(bytes);
  };
  for (const TokenFile& file : files->files()) {
    if (!file.indexed) continue;
    const std::string path = file.path.substr(0, file.path.size() - 4);
    check_token_file(file.idx, path + ".idx", file.about.idx_crc, done);
    check_token_index(*files, file);
    check_token_file(file.bin, path + ".bin", file.about.bin_crc, done);
    if (data.masked()) check_token_file(file.mask, path + ".mask", file.about.mask_crc, done);
  }
  if (vocab == 0) return;
  for (const TokenFile& file : files->files()) {
    file.width == 2 ? check_token_ids<std::uint16_t>(*files, file, vocab)
                    : check_token_ids<std::uint32_t>(*files, file, vocab);
  }
}

}  // namespace tessera::data
