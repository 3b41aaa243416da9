#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "tessera/data/documents.h"
#include "tessera/data/input_parts.h"
#include "tessera/data/token_writer.h"

namespace tessera::data {

struct RunOptions {
  int threads = 1;
  double save_seconds = 5;
  // Both are called by the thread that called run(). `save` gets the state after a number of parts
  // that all lie in their files, synced.
  std::function<void(const InputPosition&, const WriterState&, const DocumentCounts&)> save;
  std::function<void(std::uint64_t consumed)> told;
};

// [Note: preparing] One thread reads and cuts the input, several encode; what they have is claimed
// in the order of the input (see [Note: writing tokens]) and then written by whoever is free. The
// parts on their way are bounded, so memory is too. Of several errors that of the earliest part is
// thrown: it does not depend on who was quicker.
class PrepareRun {
 public:
  PrepareRun(PartReader& reader, const DocumentEncoder& encoder, TokenWriter& writer,
             RunOptions options, const DocumentCounts& before);

  // Until the input ends.
  void run();
  const DocumentCounts& counts() const { return counts_; }  // and those before

 private:
  struct Job {
    InputPart part;
    TokenPart tokens;
    DocumentCounts counts;
    TokenWriter::Place place;
  };
  // The state after a part.
  struct Mark {
    InputPosition position;
    std::size_t finished;  // shards
    TokenShard open;
    std::uint8_t mask_rest;
    DocumentCounts counts;
    bool written = false;
  };

  void read();
  void work();
  void claim_in_order();  // under the lock
  void watch();
  void fail(std::uint64_t part);  // with the exception that is being handled; under the lock
  bool is_over() const;           // likewise
  bool is_wanted(std::uint64_t part) const { return !failed_ || part < *failed_; }

  PartReader& reader_;
  const DocumentEncoder& encoder_;
  TokenWriter& writer_;
  RunOptions options_;
  std::atomic<std::uint64_t> consumed_{0};

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::unique_ptr<Job>> to_encode_, to_write_;
  std::map<std::uint64_t, std::unique_ptr<Job>> encoded_;
  std::vector<Uninitialised<char>> spare_;  // memory of parts that are written
  std::map<std::uint64_t, Mark> marks_;  // of parts that are claimed, but not all before is written
  std::optional<Mark> done_;             // of the last part that all up to it are written
  std::uint64_t next_claim_ = 0, next_done_ = 0;
  int on_their_way_ = 0;
  bool ended_ = false;  // nothing more is read
  DocumentCounts counts_;
  std::optional<std::uint64_t> failed_;
  std::exception_ptr error_;
};

}  // namespace tessera::data
