#include "tests/data/token_fuzz_targets.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tessera/checkpoint/checksum.h"
#include "tessera/core/errors.h"
#include "tessera/core/fd.h"
#include "tessera/core/log.h"
#include "tessera/core/text.h"
#include "tessera/data/documents.h"
#include "tessera/data/input_stream.h"
#include "tessera/data/json_line.h"
#include "tessera/data/prepare_state.h"
#include "tessera/data/split_text.h"
#include "tessera/data/token_data.h"
#include "tessera/data/token_manifest.h"
#include "tests/fuzz.h"

namespace tessera::data {
namespace {

// In-memory file with a path that opens it.
class MemoryPath {
 public:
  explicit MemoryPath(std::string_view bytes) : fd_(::memfd_create("input", MFD_CLOEXEC)) {
    write_all(fd_.get(), bytes);
  }
  std::string path() const { return str("/proc/self/fd/", fd_.get()); }

 private:
  Fd fd_;
};

// Encodes all parts of an in-memory text in order and returns the documents.
std::vector<std::string> documents_by_parts(std::string_view text, bool jsonl, DocumentOptions how,
                                            std::size_t part_bytes, const Tokenizer& tokenizer) {
  const MemoryPath memory(text);
  InputList list;
  list.files.push_back({memory.path(), jsonl, false, text.size(), 0});
  list.bytes = text.size();
  how.end = *tokenizer.end_of_text();
  const DocumentEncoder encoder(tokenizer, how);
  PartReader reader(list, {.split = how.split, .part_bytes = part_bytes, .longest_line = 4096});
  std::vector<TokenId> ids;
  std::vector<std::string> documents;
  DocumentCounts counts;
  while (std::optional<InputPart> part = reader.next()) {
    TokenPart tokens = encoder.encode(std::move(*part), counts);
    must(tokens.crc == checksum_of(tokens), "a checksum", text);
    UninitializedVector<std::byte> stored(tokens.bytes());
    tokens.copy(0, stored.size(), stored.data());
    tokens.tokens = std::move(stored);
    must(!encoder.masked() || tokens.learned.size() == tokens.tokens.size() / 2, "a mask", text);
    std::size_t end = 0;
    for (std::size_t i = 0; i < tokens.tokens.size() / 2; ++i) {
      ids.push_back(std::to_integer<TokenId>(tokens.tokens[2 * i]) |
                    std::to_integer<TokenId>(tokens.tokens[2 * i + 1]) << 8);
      must(end <= tokens.ends.size(), "ends", text);
      if (end == tokens.ends.size() || tokens.ends[end] != i + 1) continue;
      ++end;
      must(ids.back() == how.end, "the end of a document", text);
      ids.pop_back();
      documents.push_back(tokenizer.decode(ids));
      ids.clear();
    }
    must(end == tokens.ends.size(), "an end behind the part", text);
  }
  must(ids.empty(), "a document without an end", text);
  must(counts.documents == documents.size(), "the count", text);
  return documents;
}

}  // namespace

void fuzz_tokens(std::string_view input) {
  const std::string text = str("{\"crc32c\": \"", checkpoint::to_hex({checkpoint::crc32c(input)}),
                               "\",\n", std::string(input));
  try {
    const TokenManifest manifest = parse_token_manifest(text, "t");
    must(manifest.tokens() <= kMaxTokens && manifest.documents() <= manifest.tokens(), "counts",
         input);
    must(manifest.vocab > 0 && manifest.bytes_per_token == bytes_per_token(manifest.vocab), "width",
         input);
    for (const TokenShard& shard : manifest.shards) {
      must(shard.name.find('/') == std::string::npos && !shard.name.starts_with('.'), "a name",
           input);
      must(shard.tokens > 0 && shard.documents <= shard.tokens, "a shard", input);
    }
    must(parse_token_manifest(to_text(manifest), "t") == manifest, "the way back", input);
  } catch (const DataError&) {
  }
}

void fuzz_prepare(std::string_view input) {
  const std::string text =
      str(checkpoint::to_hex({checkpoint::crc32c(input)}), "\n", std::string(input));
  try {
    const PrepareState state = parse_prepare_state(text, "p");
    must(to_text(parse_prepare_state(to_text(state), "p")) == to_text(state), "the way back",
         input);
  } catch (const DataError&) {
  }
}

void fuzz_bin(std::string_view input) {
  const MemoryPath memory(input);
  try {
    const auto data = open_tokens(memory.path());
    must(data->tokens() > 0 && data->tokens() * 2 <= input.size(), "tokens", input);
    must(data->documents() == 1 && data->document(0).end == data->tokens(), "documents", input);
    std::vector<std::int64_t> ids(data->tokens());
    data->read(0, ids);
    const std::int64_t most = *std::max_element(ids.begin(), ids.end());
    verify_tokens(*data, most + 1);
    bool refused = most == 0;
    try {
      if (!refused) verify_tokens(*data, most);
    } catch (const DataError&) {
      refused = true;
    }
    must(refused, "an id that is too large", input);
  } catch (const DataError&) {
  }
}

void fuzz_jsonl(std::string_view input) {
  if (input.find('\0') != std::string_view::npos) return;  // the other parser treats it as the end
  // It also skips a byte order mark, which may start a file and is removed in input_parts.cpp.
  if (input.starts_with("\xef\xbb\xbf")) return;
  std::string storage;
  const std::string text(clean_utf8(input, BadUtf8::replace, storage).text);
  bool accepted = true, deep = false;
  try {
    JsonReader json(text);
    json.skip_value();
    json.finish();
  } catch (const JsonProblem& problem) {
    accepted = false;
    deep = std::string_view(problem.what()) == "it is nested too deeply";
    must(problem.at() <= text.size(), "a place", input);
  }
  nlohmann::json other;
  bool accepted_there = true;
  try {
    other = nlohmann::json::parse(text);
  } catch (const nlohmann::json::out_of_range&) {
    return;  // a number that is too large for it and not requested from us
  } catch (const nlohmann::json::exception&) {
    accepted_there = false;
  }
  if (!deep) must(accepted == accepted_there, "another parser disagrees", input);
  if (!accepted) return;
  if (!other.is_object()) return;
  JsonReader json(text);
  std::string key_storage, value;
  json.object([&](std::string_view key) {
    const std::string name(key);
    must(other.contains(name), "a key", input);
    if (json.peek() != '"') return json.skip_value(1);
    const std::string got(json.string(value));
    // The other parser keeps the last of duplicate keys.
    if (other[name].is_string() && other[name] != got) {
      must(text.find(name, text.find(name) + 1) != std::string::npos || name.empty() ||
               text.find('\\') != std::string::npos,
           "a string", input);
    }
  });
  json.finish();
}

void fuzz_lines(std::string_view input) {
  if (input.empty()) return;
  const auto tokenizer = byte_tokenizer();
  const auto first = static_cast<unsigned char>(input[0]);
  DocumentOptions how;
  how.format = first % 3 == 0   ? DocumentFormat::text
               : first % 3 == 1 ? DocumentFormat::prompt
                                : DocumentFormat::chat;
  how.chat_template = "plain";
  how.bad_utf8 = first % 2 == 0 ? BadUtf8::replace : BadUtf8::refuse;
  const std::string_view text = input.substr(1);
  const auto of = [&](std::size_t part) -> std::optional<std::vector<std::string>> {
    try {
      return documents_by_parts(text, true, how, part, *tokenizer);
    } catch (const DataError&) {
      return std::nullopt;
    }
  };
  // A line over the limit is reported only if a part does not hold it.
  if (text.size() < 4096) must(of(1 << 20) == of(1 + first % 64), "another part", input);
}

void fuzz_text(std::string_view input) {
  if (input.empty()) return;
  const auto tokenizer = byte_tokenizer();
  const auto first = static_cast<unsigned char>(input[0]);
  DocumentOptions how;
  how.split = first % 3 == 0   ? SplitDocuments::file
              : first % 3 == 1 ? SplitDocuments::blank_line
                               : SplitDocuments::line;
  std::string storage;
  const std::string text(clean_utf8(input.substr(1), BadUtf8::replace, storage).text);
  try {
    const auto joined = [&](std::size_t part) {
      std::string all;
      for (const std::string& one : documents_by_parts(text, false, how, part, *tokenizer)) {
        all += one;
      }
      std::erase_if(all, [](char c) { return c == ' ' || (c >= '\t' && c <= '\r'); });
      return all;
    };
    std::string wanted = text.starts_with("\xef\xbb\xbf") ? text.substr(3) : text;
    std::erase_if(wanted, [](char c) { return c == ' ' || (c >= '\t' && c <= '\r'); });
    must(joined(1 << 20) == wanted, "not all of the text", input);
    must(joined(4 + first % 60) == wanted, "not all of the text, in parts", input);
  } catch (const DataError&) {
  }
}

void fuzz_packed(std::string_view input) {
  const Compression kind = compression_of(input.data(), input.size());
  if (kind == Compression::none) return;
  std::size_t at = 0;
  try {
    const auto stream = decompress(
        kind,
        [&](char* into, std::size_t bytes) {
          const std::size_t count = std::min({bytes, input.size() - at, std::size_t{7}});
          std::copy_n(input.data() + at, count, into);
          at += count;
          return count;
        },
        "p");
    char some[100];
    std::size_t total = 0;
    while (const std::size_t got = stream->read(some, sizeof some)) {
      must(got <= sizeof some, "too much", input);
      total += got;
      if (total > (1 << 20)) return;
    }
    must(stream->consumed() == input.size(), "not all was read", input);
    must(stream->read(some, sizeof some) == 0, "more behind the end", input);
  } catch (const DataError&) {
  }
}

}  // namespace tessera::data
