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

// How far a folder came: enough to go on from there.
struct WriterState {
  std::vector<TokenShard> finished;
  TokenShard open;               // its counts and checksums so far; without tokens: there is none
  std::uint8_t mask_rest = 0;    // bits of the mask that do not fill a byte yet
  std::uint64_t tokens() const;  // of all
  std::uint64_t documents() const;
};

struct WriterOptions {
  std::string folder;  // is there
  int bytes_per_token = 2;
  bool masked = false;
  std::int64_t shard_bytes = 256'000'000;  // of tokens; a part that is larger has one of its own
  // Parts of so many bytes are written around the page cache; 0: none is. See the note there.
  std::uint64_t direct_bytes = 0;
};

// [Note: writing tokens] Parts are claimed in their order, which says where each lies: that takes
// no time. Then they are written in any order, by any thread. What the folder holds thus depends on
// the parts alone.
class TokenWriter {
 public:
  // Goes on from `state`, which is removed of all that lies behind it. Throws DataError where the
  // files are not as it says.
  TokenWriter(WriterOptions options, WriterState state);
  ~TokenWriter();

  struct Shard;  // files that are open
  struct Place {
    std::shared_ptr<Shard> shard;
    std::uint64_t token = 0, document = 0;  // in it
  };
  // Where the next part lies; its `ends` become those of the shard. One call at a time.
  Place claim(TokenPart& part);
  // Writes it there. The buffer is the thread's own.
  void write(const Place& place, const TokenPart& part, const WriteBuffer& buffer) const;
  // As it is after all claims so far.
  const WriterState& state() const { return state_; }
  // Makes durable what was written of shards up to `upto`: all writes of parts before must be done.
  void sync(const WriterState& upto);

  // No part comes any more: the shards.
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
