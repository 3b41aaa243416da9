#include <algorithm>
#include <cstring>

#include "tessera/checkpoint/checksum.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/data/token_files.h"

namespace tessera::data {
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
                       const std::function<void(std::uint64_t)>& told) {
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
    if (told) told(at + count);
  }
}

}  // namespace

void verify_tokens(const TokenData& data, std::int64_t vocab,
                   const std::function<void(std::uint64_t)>& told) {
  if (vocab == 0) vocab = data.vocab();
  const auto* const files = dynamic_cast<const TokenFiles*>(&data);
  if (files == nullptr) return check_ids_of_view(data, vocab, told);
  std::uint64_t bytes = 0;
  const auto done = [&](std::uint64_t more) {
    bytes += more;
    if (told) told(bytes);
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
