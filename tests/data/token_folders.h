#pragma once

// Helpers for the tests of token folders.

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "tessera/checkpoint/checksum.h"
#include "tessera/core/publish.h"
#include "tessera/data/token_manifest.h"
#include "tessera/data/token_writer.h"
#include "tests/temporary_folder.h"
#include "tests/text.h"

namespace tessera::data {

inline std::string write_file(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

// Returns every file of a folder except the lock.
inline std::map<std::string, std::string> files_of(const std::string& folder) {
  std::map<std::string, std::string> all;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name != ".lock") all[name] = read_all(entry.path().string());
  }
  return all;
}

// Expected documents.
struct Expected {
  std::vector<std::vector<std::int64_t>> documents;
  std::vector<std::vector<std::uint8_t>> learned;
};

// Writes them in parts of `part_tokens` tokens, which may cut documents.
inline TokenManifest write_folder(const std::string& folder, const Expected& expected,
                                  std::int64_t vocab, bool masked, std::size_t part_tokens,
                                  std::int64_t shard_bytes, std::uint64_t direct_bytes = 0) {
  std::filesystem::create_directories(folder);
  TokenManifest manifest;
  manifest.tokenizer = "made up";
  manifest.fingerprint = "none";
  manifest.vocab = vocab;
  manifest.bytes_per_token = bytes_per_token(vocab);
  manifest.masked = masked;
  manifest.bytes_of_text = 17;
  TokenWriter writer({.folder = folder,
                      .bytes_per_token = manifest.bytes_per_token,
                      .masked = masked,
                      .shard_bytes = shard_bytes,
                      .direct_bytes = direct_bytes},
                     {});
  const WriteBuffer buffer(2 * direct_block());
  const auto width = static_cast<std::size_t>(manifest.bytes_per_token);
  TokenPart part;
  const auto flush = [&] {
    part.crc = checkpoint::crc32c(part.tokens.data(), part.tokens.size());
    const TokenWriter::Place place = writer.claim(part);
    writer.write(place, part, buffer);
    part = {};
  };
  for (std::size_t d = 0; d < expected.documents.size(); ++d) {
    for (std::size_t i = 0; i < expected.documents[d].size(); ++i) {
      const auto id = static_cast<std::uint32_t>(expected.documents[d][i]);
      const auto* const bytes = reinterpret_cast<const std::byte*>(&id);
      part.tokens.insert(part.tokens.end(), bytes, bytes + width);
      if (masked) part.learned.push_back(expected.learned[d][i]);
      if (i + 1 == expected.documents[d].size()) part.ends.push_back(part.tokens.size() / width);
      if (part.tokens.size() / width == part_tokens) flush();
    }
  }
  flush();
  manifest.shards = writer.finish();
  publish(folder + "/" + kTokensName, to_text(manifest));
  return manifest;
}

inline Expected random_documents(std::uint64_t seed, std::size_t count, std::int64_t vocab) {
  std::mt19937_64 random(seed);
  Expected out;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t length = 1 + random() % (random() % 8 == 0 ? 200 : 12);
    auto& document = out.documents.emplace_back();
    auto& learned = out.learned.emplace_back();
    for (std::size_t k = 0; k < length; ++k) {
      document.push_back(static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(vocab)));
      learned.push_back(random() % 3 == 0 ? 1 : 0);
    }
  }
  return out;
}

}  // namespace tessera::data
