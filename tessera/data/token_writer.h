#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tessera/data/shard_file.h"
#include "tessera/data/token_manifest.h"
#include "tessera/data/uninitialized_vector.h"

namespace tessera::data {

// Tokens of one part of the input, in the format of a shard.
struct TokenPart {
  UninitializedVector<std::byte> tokens;  // u16 or u32
  // If every byte is a token: these bytes plus one per end of a document, instead of `tokens`. They
  // are widened to u16 when written, which halves the memory traffic.
  UninitializedVector<char> text;
  std::uint16_t end = 0;              // token that ends a document; `text` has a placeholder there
  std::vector<std::uint64_t> ends;    // ends of its documents, relative to its start
  std::vector<std::uint8_t> learned;  // one byte per token; empty without a mask
  std::uint32_t crc = 0;              // of the bytes that the file receives

  // Number of bytes that the file receives.
  std::uint64_t bytes() const { return text.empty() ? tokens.size() : 2 * text.size(); }
  // Copies `count` of these bytes starting at `from`, both even. `first` is the token at which the
  // part starts in `ends`.
  void copy(std::uint64_t from, std::size_t count, std::byte* to, std::uint64_t first = 0) const;
};

// Widens bytes to u16.
void widen_bytes(const char* from, std::size_t count, std::byte* to);
// Returns the checksum of the bytes that the file receives, before the part is claimed.
std::uint32_t checksum_of(const TokenPart& part);

// Progress of a folder, sufficient to resume.
struct WriterState {
  std::vector<TokenShard> finished;
  TokenShard open;               // counts and checksums so far; tokens 0: no open shard
  std::uint8_t mask_rest = 0;    // mask bits of the incomplete last byte
  std::uint64_t tokens() const;  // total
  std::uint64_t documents() const;
};

// Options of TokenWriter.
struct WriterOptions {
  std::string folder;  // must exist
  int bytes_per_token = 2;
  bool masked = false;
  std::int64_t shard_bytes = 256'000'000;  // maximum, of tokens; a larger part gets its own shard
  // Minimum size of parts that are written around the page cache; 0: none. See [Note: around the
  // page cache].
  std::uint64_t direct_bytes = 0;
};

// [Note: writing tokens] Parts are claimed in order, which determines their location and is fast.
// Then they are written in any order by any thread. The contents of the folder therefore depend on
// the parts alone.
class TokenWriter {
 public:
  // Resumes from `state` and removes everything after it. Throws DataError if the files do not
  // match it.
  TokenWriter(WriterOptions options, WriterState state);
  ~TokenWriter();

  struct Shard;  // open files
  // Location of a part.
  struct Place {
    std::shared_ptr<Shard> shard;
    std::uint64_t token = 0, document = 0;  // within the shard
  };
  // Assigns the location of the next part and makes its `ends` relative to the shard. One call at a
  // time.
  Place claim(TokenPart& part);
  // Writes a part to its place. `buffer` must belong to the calling thread.
  void write(const Place& place, const TokenPart& part, const WriteBuffer& buffer) const;
  // State after all claims so far.
  const WriterState& state() const { return state_; }
  // Syncs the shards up to `upto`. All writes of its parts must have finished.
  void sync(const WriterState& upto);

  // Closes the last shard and returns all shards. No part may follow.
  std::vector<TokenShard> finish();

 private:
  void open_next();
  void close_shard();
  void write_mask(const TokenPart& part);
  std::string path(const std::string& name, const char* ending) const;

  WriterOptions options_;
  WriterState state_;
  std::shared_ptr<Shard> shard_;
  std::mutex mutex_;                              // guards unsynced_
  std::vector<std::shared_ptr<Shard>> unsynced_;  // finished or open
};

}  // namespace tessera::data
