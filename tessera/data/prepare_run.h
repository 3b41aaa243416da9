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

// Options of PrepareRun.
struct RunOptions {
  int threads = 1;
  double save_seconds = 5;
  // Both are called on the thread of run(). `save` receives a state whose parts are all written and
  // synced.
  std::function<void(const InputPosition&, const WriterState&, const DocumentCounts&)> save;
  std::function<void(std::uint64_t consumed)> report;
};

// [Note: preparing] One thread reads and cuts the input, several encode parts. Encoded parts are
// claimed in input order (see [Note: writing tokens]) and then written by any idle thread. The
// number of parts in flight is bounded, and so is memory. Of several errors, that of the earliest
// part is thrown, independent of timing.
class PrepareRun {
 public:
  PrepareRun(PartReader& reader, const DocumentEncoder& encoder, TokenWriter& writer,
             RunOptions options, const DocumentCounts& before);

  // Runs until the input ends.
  void run();
  // Including the counts passed to the constructor.
  const DocumentCounts& counts() const { return counts_; }

 private:
  struct Job {
    InputPart part;
    TokenPart tokens;
    DocumentCounts counts;
    TokenWriter::Place place;
  };
  // State after a part.
  struct Mark {
    InputPosition position;
    std::size_t finished;  // number of finished shards
    TokenShard open;
    std::uint8_t mask_rest;
    DocumentCounts counts;
    bool written = false;
  };

  void read();
  void work();
  void claim_in_order();  // requires the lock
  void watch();
  void fail(std::uint64_t part);  // records the current exception; requires the lock
  bool is_over() const;           // requires the lock
  bool is_needed(std::uint64_t part) const { return !failed_ || part < *failed_; }

  PartReader& reader_;
  const DocumentEncoder& encoder_;
  TokenWriter& writer_;
  RunOptions options_;
  std::atomic<std::uint64_t> consumed_{0};

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::unique_ptr<Job>> to_encode_, to_write_;
  std::map<std::uint64_t, std::unique_ptr<Job>> encoded_;
  std::vector<UninitializedVector<char>> spare_;  // buffers of written parts, for reuse
  std::map<std::uint64_t, Mark> marks_;  // of claimed parts, until all parts up to them are written
  std::optional<Mark> done_;  // of the last part for which all parts up to it are written
  std::uint64_t next_claim_ = 0, next_done_ = 0;
  int in_flight_ = 0;
  bool ended_ = false;  // reading has finished
  DocumentCounts counts_;
  std::optional<std::uint64_t> failed_;
  std::exception_ptr error_;
};

}  // namespace tessera::data
