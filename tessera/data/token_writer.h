#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tessera/data/shard_file.h"
#include "tessera/data/token_manifest.h"
#include "tessera/data/token_part.h"

namespace tessera::data {

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
